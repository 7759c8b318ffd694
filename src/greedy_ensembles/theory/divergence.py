"""The f-divergence of two densities, right also where one of them vanishes.

    D_f(p || q) = sum_i w_i q_i f(p_i / q_i)

over the points of a grid with quadrature weights w, or over the outcomes of a discrete distribution with w = 1.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from greedy_ensembles.theory.arrays import non_negative, same_length
from greedy_ensembles.theory.generators import Array, Function, Generator, as_generator


class DivergenceFrom:
    """D_f(p || .) for one p: called with (k, points) densities q, it returns their k divergences.

    The points are sorted once by whether p vanishes. Where it does, the integrand is linear in q.
    """

    def __init__(self, density: Array, weights: Array, generator: Generator) -> None:
        self._generator = generator
        support = (density > 0) & (weights > 0)
        self._support = None if support.all() else np.flatnonzero(support)
        self._density, self._weights = density[support], weights[support]
        self._void = np.flatnonzero((density == 0) & (weights > 0))
        self._void_weights = weights[self._void]

    def __call__(self, mixtures: Array) -> Array:
        """Return the divergence of each row; infinite where it must be, never NaN."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            # take, unlike an index, returns rows in one piece, whose sums have the same bits in any company.
            q = mixtures if self._support is None else mixtures.take(self._support, axis=1)
            return self._over_support(q) + self._over_void(mixtures)

    def _over_support(self, q: Array) -> Array:
        terms = self._generator.perspective(self._density, q)
        vanishing = q == 0
        if vanishing.any():
            np.copyto(terms, self._density * self._known("slope_at_infinity"), where=vanishing)
        terms *= self._weights
        return np.asarray(terms.sum(axis=1), dtype=np.float64)

    def _over_void(self, mixtures: Array) -> Array:
        if self._void.size == 0:
            return np.zeros(len(mixtures))
        mass = (mixtures.take(self._void, axis=1) * self._void_weights).sum(axis=1)
        # Not mass * limit throughout: a mixture that is zero here owes nothing, even if the limit is infinite.
        return np.where(mass > 0, mass * self._known("limit_at_zero") if mass.any() else 0.0, 0.0)

    def _known(self, limit: str) -> float:
        value: float = getattr(self._generator, limit)
        if math.isnan(value):
            raise ValueError(
                f"generator {self._generator.name} is a plain callable, without a finite {limit} that is known, and a "
                "density vanishes where the other does not: give a theory.Generator with its limits"
            )
        return value


def f_divergence(
    p: ArrayLike, q: ArrayLike, f: str | Generator | Function = "reverse_kl", weights: ArrayLike | None = None
) -> float:
    """Return D_f(p || q).

    Args:
        p: the density approximated, at the points of a grid.
        q: the approximation, at the same points. Neither need integrate to 1: unfinished mixtures do not.
        f: a `Generator`, the name of one in `GENERATORS`, or a plain callable of arrays where it stays finite.
        weights: of the points, such as `trapezoid_weights(grid)`; ones by default, for discrete distributions.

    >>> round(f_divergence([0.5, 0.5], [0.25, 0.75], "kl"), 6)  # log(4/3) / 2
    0.143841
    >>> f_divergence([0.5, 0.5], [1.0, 0.0], "kl"), f_divergence([0.5, 0.5], [1.0, 0.0], "total_variation")
    (inf, 0.5)
    """
    p, q = (non_negative(name, values, 1).astype(np.float64) for name, values in (("p", p), ("q", q)))
    weights = np.ones(len(p)) if weights is None else non_negative("weights", weights, 1).astype(np.float64)
    same_length("q", q, "p", p)
    same_length("weights", weights, "p", p)
    return float(DivergenceFrom(p, weights, as_generator(f))(q[np.newaxis])[0])
