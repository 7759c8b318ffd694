"""f-divergences of two densities, and the generators f that make them (the definition that opens Section 3).

    D_f(p || q) = sum_i w_i q_i f(p_i / q_i)

over the points of a grid with quadrature weights w, or over the outcomes of a discrete distribution with w = 1. A
generator is a convex function f with f(1) = 0. The summand is the perspective of f. Written as q f(p / q) it overflows
where q is tiny, so each generator also has the form in which nothing does. Where a density vanishes the summand is a
limit, which the generator knows:

    p = 0 < q      q * limit_at_zero          limit_at_zero     = lim f(x)     as x -> 0
    q = 0 < p      p * slope_at_infinity      slope_at_infinity = lim f(x) / x as x -> infinity
    p = q = 0      0

f and f + c (x - 1) make the same divergence of distributions. On the unfinished mixtures of a greedy algorithm, which
integrate to less than 1, they differ by an amount that depends on the number of members alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from greedy_ensembles.checks import check_choice, check_number
from greedy_ensembles.theory.grid import Array, non_negative, same_length

Function = Callable[[Array], Array]  #: a plain f, of an array of ratios
Perspective = Callable[[Array, Array], Array]  #: q f(p / q) for p > 0 and q > 0, broadcasting p against q


@dataclass(frozen=True)
class Generator:
    """A convex f with f(1) = 0, its limits, and its perspective.

    >>> GENERATORS["kl"]([0.0, 1.0, 2.0])  # the last one is 2 log 2
    array([0.        , 0.        , 1.38629436])
    >>> GENERATORS["kl"].limit_at_zero, GENERATORS["kl"].slope_at_infinity
    (0.0, inf)
    """

    name: str
    function: Function
    perspective: Perspective
    limit_at_zero: float  #: NaN: unknown, and refused where it is needed
    slope_at_infinity: float  #: NaN: unknown, and refused where it is needed

    def __call__(self, x: ArrayLike) -> Array:
        """Return f(x) for x >= 0, with its limits at 0 and infinity."""
        x = np.asarray(x, dtype=np.float64)
        if np.isnan(x).any() or (x < 0).any():
            raise ValueError(f"x must not be negative or NaN: {self.name} takes ratios of densities")
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            values = np.where(x > 0, self.function(x), self.limit_at_zero)
        if self.slope_at_infinity > 0:
            values[np.isinf(x)] = math.inf  # where the formula may say infinity minus infinity
        return values[()]


def _jensen_shannon(p: Array, q: Array) -> Array:
    log_middle = np.log((p + q) / 2)
    terms: Array = (p * (np.log(p) - log_middle) + q * (np.log(q) - log_middle)) / 2
    return terms


_GENERATORS = (
    Generator("kl", lambda x: x * np.log(x), lambda p, q: p * (np.log(p) - np.log(q)), 0.0, math.inf),
    Generator("reverse_kl", lambda x: -np.log(x), lambda p, q: q * (np.log(q) - np.log(p)), math.inf, 0.0),
    Generator(
        "jensen_shannon",  # (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2: between 0 and log 2
        lambda x: (x * np.log(x) - (x + 1) * np.log((x + 1) / 2)) / 2,
        _jensen_shannon,
        math.log(2) / 2,
        math.log(2) / 2,
    ),
    Generator(
        "squared_hellinger",  # 1 - integral of sqrt(p q): between 0 and 1
        lambda x: (np.sqrt(x) - 1) ** 2 / 2,
        lambda p, q: (np.sqrt(p) - np.sqrt(q)) ** 2 / 2,
        0.5,
        0.5,
    ),
    Generator("pearson_chi2", lambda x: (x - 1) ** 2, lambda p, q: (p - q) ** 2 / q, 1.0, math.inf),
    Generator("neyman_chi2", lambda x: (x - 1) ** 2 / x, lambda p, q: (p - q) ** 2 / p, math.inf, 1.0),
    Generator(
        "total_variation",  # between 0 and 1; convex, though not strictly
        lambda x: np.abs(x - 1) / 2,
        lambda p, q: np.abs(p - q) / 2,
        0.5,
        0.5,
    ),
)

#: The named generators.
GENERATORS: dict[str, Generator] = {generator.name: generator for generator in _GENERATORS}


def alpha(a: float) -> Generator:
    """Return the generator of the alpha divergence, f(x) = (x^a - a x + a - 1) / (a (a - 1)).

    Its limits, a = 1 and a = 0, are Kullback-Leibler and its reverse; a = 2 and a = -1 are half of Pearson's and
    Neyman's chi-squared, a = 1/2 is four times the squared Hellinger distance.

    >>> round(float(alpha(2.0)(3.0)), 12)  # (3 - 1)^2 / 2
    2.0
    """
    check_number("a", a)
    a = float(a)

    def perspective(p: Array, q: Array) -> Array:
        # Two ways to write the same, one without cancellation near a = 0 and the other near a = 1.
        log_ratio = np.log(p) - np.log(q)
        if a < 0.5:
            return (q * _power_less_one(log_ratio, a) - p + q) / (a - 1)
        return (p * _power_less_one(log_ratio, a - 1) - p + q) / a

    limit_at_zero = 1 / a if a > 0 else math.inf
    slope_at_infinity = 1 / (1 - a) if a < 1 else math.inf
    one = np.ones(())
    return Generator(f"alpha({a:g})", lambda x: perspective(x, one), perspective, limit_at_zero, slope_at_infinity)


def _power_less_one(log_x: Array, a: float) -> Array:
    """Return (x^a - 1) / a, which is log x in the limit of a = 0."""
    return np.asarray(np.expm1(a * log_x) / a) if a else log_x


def as_generator(f: "str | Generator | Function", argument: str = "f") -> Generator:
    """Return the generator that a name, a generator or a plain callable of arrays stands for.

    A callable's limit at zero is its value there if that is finite; its slope at infinity stays unknown.
    """
    if isinstance(f, Generator):
        return f
    if isinstance(f, str):
        check_choice(argument, f, GENERATORS)
        return GENERATORS[f]
    if not callable(f):
        raise TypeError(f"{argument} must be a generator, the name of one, or a callable, got {f!r}")
    with np.errstate(all="ignore"):
        values = np.asarray(f(np.array([1.0, 0.0])))
    if values.shape != (2,):
        raise ValueError(f"{argument} must take an array and return one of the same shape, got {values.shape} for (2,)")
    at_one, at_zero = map(float, values)
    if not abs(at_one) < 1e-9:
        raise ValueError(f"{argument} must be convex with f(1) = 0, got f(1) = {at_one}")
    limit = at_zero if math.isfinite(at_zero) else math.nan
    name = getattr(f, "__name__", "f")
    return Generator(name, f, lambda p, q: q * f(p / q), limit, math.nan)


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
