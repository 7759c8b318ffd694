"""The set function of Section 3: minus the f-divergence of a density from a mixture of chosen kernels.

    F(Z) = offset - D_f(p || q_Z),    q_Z = (1/M) sum_{j in Z} K_j    with M fixed, also while |Z| < M

so that q_Z grows point by point as Z does, and Theorem 1 holds: at each point the integrand q f(p / q) is convex in q,
hence a kernel changes it the less favourably the more there is already. While |Z| < M the mixture is no distribution,
and F may be positive, negative or, at the empty set and for an f of infinite slope, minus infinity. Dividing by |Z|
instead would make every q_Z a distribution and lose submodularity.

The constant C of Section 3's guarantee is the largest divergence that M kernels of the ground set can have: with it as
`offset`, F is non-negative on sets of M elements. An algorithm of factor g, F(found) >= g max F, then has
D(found) <= g min D + (1 - g) C. Bounds on C need no search: q f(p / q) is convex in q, so that a mixture's divergence
is at most the mean of its kernels' own, and its graph lies below the line through its limits, q f(0) + p lim f(x)/x.
C does not make F non-negative on *smaller* sets, which Random Greedy passes through and on which its proof relies:
under KL, for one, F is minus infinity at the empty set whatever C is.

The marginal gain of a candidate x given Z is to be had three ways. Each returns an array over the whole ground set.

exact     F(Z + x) - F(Z), with q_Z = (1/M) sum_{j in Z} K_j.

expected  -E_{z ~ K_x} f(p(z) / q_{Z + x}(z)), which Proposition 1 puts in its place. Writing q for q_Z, the exact gain
          is the sum of two integrals,

              (1/M) * -integral of K_x f(p / (q + K_x / M))  +  integral of q (f(p / q) - f(p / (q + K_x / M))).

          The proposition keeps the first. Its proof bounds the second by a constant but does not show that it is one,
          and it is not: to first order in 1/M it is (1/M) * integral of K_x g(p / q) with g(r) = r f'(r). If all
          kernels have mass 1, that is the same for all candidates when f = -log, reverse KL, and for no other f. The
          two agree at least on the order of candidates, to first order, where f - g rises with f in a straight line:
          for the powers r^a / (a (a - 1)) with a < 1, but not for f + c (r - 1), though it makes the same divergence.
          With a > 1 the order is reversed.

point     log p(z_x) - log q_Z(z_x), with z_x the mode of K_x: the expectation under reverse KL replaced by its value
          at one point, and x itself left out of the mixture. This is what Algorithm 2 maximises, member by member. At
          the empty set it is log p(z_x), as the first member has no diversity term.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedy_ensembles.checks import check_count, check_kind, check_number
from greedy_ensembles.theory.algorithms import Indices, SetFunction, evaluate_all
from greedy_ensembles.theory.divergence import GENERATORS, DivergenceFrom, Function, Generator, as_generator
from greedy_ensembles.theory.grid import Array, in_blocks, non_negative, same_length

#: How far from 1 a density may integrate: room for quadrature and a cut-off tail, not for a forgotten constant.
INTEGRAL_TOLERANCE = 1e-3
#: The factor of Random Greedy for non-negative submodular functions of sets of at most M elements.
RANDOM_GREEDY_FACTOR = 1 / math.e
#: No polynomial algorithm has a larger factor than this on all such functions.
INAPPROXIMABILITY = 0.491


class DivergenceObjective(SetFunction):
    """F(Z) = offset - D_f(p || q_Z) over subsets Z of a ground set of kernels; larger is better.

    Args:
        density: p at the points of a grid, integrating to 1 within 1e-3.
        kernels: (n, points), the ground set: each kernel's density at these points, used as given.
        weights: quadrature weights of the points, such as `trapezoid_weights(grid)`.
        size: M, the number of kernels wanted and the constant that q_Z is divided by.
        generator: f, by name, as a `Generator`, or as a plain callable of arrays where it stays finite.
        offset: the paper's C, which makes F non-negative (see `maximum_divergence`); no choice depends on it.

    >>> grid = np.linspace(-3, 3, 61)
    >>> from greedy_ensembles.theory import KernelMixture, gaussian, greedy, trapezoid_weights
    >>> kernels = KernelMixture([-1.0, 0.0, 1.0], gaussian(0.5)).on_grid(grid)
    >>> density = (kernels[0] + kernels[2]) / 2
    >>> F = DivergenceObjective(density, kernels, trapezoid_weights(grid), size=2, generator="kl")
    >>> F([0, 2]), F([])
    (0.0, -inf)
    >>> greedy(F)
    [1, 0]
    """

    def __init__(
        self,
        density: ArrayLike,
        kernels: ArrayLike,
        weights: ArrayLike,
        size: int,
        generator: str | Generator | Function = "reverse_kl",
        offset: float = 0.0,
    ) -> None:
        self.weights = non_negative("weights", weights, 1).astype(np.float64)
        self.density = non_negative("density", density, 1).astype(np.float64)
        same_length("density", self.density, "weights", self.weights)
        integral = float(self.density @ self.weights)
        if abs(integral - 1) > INTEGRAL_TOLERANCE:
            raise ValueError(f"density must integrate to 1 within {INTEGRAL_TOLERANCE:g}, got {integral:.6g}")
        self.kernels = non_negative("kernels", kernels, 2)
        same_length("kernels", self.kernels, "density", self.density)
        super().__init__(len(self.kernels), size)
        self.generator = as_generator(generator, "generator")
        check_number("offset", offset)
        self.offset = float(offset)
        self._divergence = DivergenceFrom(self.density, self.weights, self.generator)

    def __call__(self, indices: Sequence[int]) -> float:
        """Return F of the set of these indices, of any number of elements."""
        return float(self.of_sums(self._sums(self.checked(indices)[np.newaxis]))[0])

    def mixture(self, indices: Sequence[int]) -> Array:
        """Return q_Z on the grid; a distribution only for a set of M elements."""
        return np.asarray(self._sums(self.checked(indices)[np.newaxis])[0] / self.size)

    def divergence(self, indices: Sequence[int]) -> float:
        """Return D_f(p || q_Z) for a set of exactly M elements; a smaller mixture is no distribution."""
        if len(self.checked(indices)) != self.size:
            raise ValueError(
                f"indices must be {self.size} elements to have a divergence, got {len(indices)}: "
                "report F(indices), which is defined for every set"
            )
        return self.offset - self(indices)

    def marginal_gain(self, indices: Sequence[int], candidate: int) -> float:
        """Return F(Z + x) - F(Z), infinite where it must be, never NaN.

        Where both are minus infinity, the difference is taken over the points at which the candidate's kernel is
        positive, because nothing changes elsewhere. Diminishing returns hold for infinite gains too in this way.
        """
        after, before = self([*indices, candidate]), self(indices)
        if before == after == -math.inf:
            touched = self.weights * (self.kernels[candidate] > 0)
            divergence = DivergenceFrom(self.density, touched, self.generator)
            without, with_candidate = divergence(np.stack([self.mixture(indices), self.mixture([*indices, candidate])]))
            return -math.inf if with_candidate == math.inf else float(without - with_candidate)
        return after - before

    def values(self, sets: NDArray[np.intp]) -> Array:
        """Return F of each row of a (sets, elements) array of distinct indices."""
        sets = np.asarray(sets, dtype=np.intp)
        return in_blocks(lambda block: self.of_sums(self._sums(block)), sets, len(self.density))

    def start(self) -> "GrowingMixture":
        """Return an empty selection, which keeps the sum of its kernels and so pays one kernel for each gain."""
        return GrowingMixture(self)

    def of_sums(self, sums: Array) -> Array:
        """Return F for rows of sum_{j in Z} K_j, which this overwrites."""
        sums /= self.size
        return self.offset - self._divergence(sums)

    def _sums(self, sets: Indices) -> Array:
        """Return sum_{j in Z} K_j for each row of a (sets, elements) array."""
        sums = np.zeros((len(sets), len(self.density)))
        for column in sets.T:  # one element after another, as a growing set does, so that the bits agree
            sums += self.kernels[column]
        return sums


class GrowingMixture:
    """A selection of kernels that remembers their sum."""

    def __init__(self, objective: DivergenceObjective) -> None:
        self._objective = objective
        self._sum = np.zeros(len(objective.density))
        self._empty = True

    @property
    def value(self) -> float:
        """F(Z); NaN at the empty set under a plain callable, whose slope at infinity is not known."""
        if self._empty and math.isnan(self._objective.generator.slope_at_infinity):
            return math.nan
        return float(self._objective.of_sums(self._sum[np.newaxis].copy())[0])

    def gains(self, candidates: Indices) -> Array:
        """Return F(Z + x) for each candidate x."""

        def of_candidates(block: Indices) -> Array:
            sums = self._objective.kernels[block].astype(np.float64, copy=False)
            sums += self._sum
            return self._objective.of_sums(sums)

        return in_blocks(of_candidates, candidates, len(self._sum))

    def accept(self, candidate: int) -> None:
        """Add a kernel to the mixture."""
        self._sum = self._sum + self._objective.kernels[candidate]
        self._empty = False


def maximum_divergence(objective: DivergenceObjective, most_sets: int = 200_000) -> float:
    """Return C = max of D_f(p || q_Z) over |Z| = M: exactly where there are no more sets than that, else a bound."""
    _check_objective(objective)
    check_count("most_sets", most_sets, least=0)
    if math.comb(len(objective), objective.size) > most_sets:
        return divergence_bound(objective)
    return objective.offset - min(float(values.min()) for _, values in evaluate_all(objective))


def divergence_bound(objective: DivergenceObjective) -> float:
    """Return an upper bound on D_f(p || q_Z) over |Z| = M from the kernels one by one; it may be infinite.

    >>> density, weights = np.array([0.5, 0.5]), np.ones(2)
    >>> F = DivergenceObjective(density, np.eye(2), weights, size=1, generator="jensen_shannon")
    >>> round(divergence_bound(F), 4), round(maximum_divergence(F), 4)
    (0.2158, 0.2158)
    """
    _check_objective(objective)
    f, size = objective.generator, objective.size
    bound = _mean_of_largest(in_blocks(objective._divergence, objective.kernels, len(objective.density)), size)
    if math.isfinite(f.limit_at_zero + f.slope_at_infinity):
        at_zero = _mean_of_largest(f.limit_at_zero * (objective.kernels @ objective.weights), size)
        bound = min(bound, at_zero + f.slope_at_infinity * float(objective.density @ objective.weights))
    return bound


def _mean_of_largest(values: np.ndarray, count: int) -> float:
    return float(np.sort(values)[-count:].mean())


def exact_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return F(Z + x) - F(Z) for all candidates x; minus infinity for those already in Z.

    Where F(Z) is minus infinity all that can be compared is F(Z + x), and that is returned.
    """
    outside = _outside(objective, indices)
    selection = objective.start()
    for i in indices:
        selection.accept(int(i))
    gains = np.full(len(objective), -math.inf)
    value = selection.value
    gains[outside] = selection.gains(outside) - (value if math.isfinite(value) else 0.0)
    return gains


def expected_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return -integral of K_x f(p / q_{Z + x}) for all candidates x; minus infinity for those already in Z."""
    outside, mixture = _outside(objective, indices), objective.mixture(indices)
    density, weights, generator = objective.density, objective.weights, objective.generator

    def expectation(block: Indices) -> Array:
        kernels = objective.kernels[block].astype(np.float64, copy=False)
        counted = (kernels > 0) & (weights > 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            values = generator.function(density / (mixture + kernels / objective.size))
            values = np.where(density > 0, values, generator.limit_at_zero)
            return np.asarray(-np.where(counted, kernels * weights * values, 0.0).sum(axis=1))

    gains = np.full(len(objective), -math.inf)
    gains[outside] = in_blocks(expectation, outside, len(density))
    return gains


def point_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return log p(z_x) - log q_Z(z_x) for all candidates x; minus infinity for those already in Z.

    Reverse KL only. Infinite where p, or the mixture of a set that is not empty, vanishes at the mode of K_x.
    """
    outside = _outside(objective, indices)
    if objective.generator is not GENERATORS["reverse_kl"]:
        raise ValueError(f"objective must use reverse_kl to have a point estimate, got {objective.generator.name}")
    modes = objective.kernels.argmax(axis=1)[outside]
    gains = np.full(len(objective), -math.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_density = np.log(objective.density[modes])
        log_mixture = np.log(objective.mixture(indices)[modes]) if len(indices) else 0.0
        # A candidate outside the support of p is no candidate, however far from the mixture.
        gains[outside] = np.where(log_density > -math.inf, log_density - log_mixture, -math.inf)
    return gains


def _check_objective(objective: object) -> None:
    check_kind("objective", objective, DivergenceObjective, "a DivergenceObjective")


def _outside(objective: DivergenceObjective, indices: Sequence[int]) -> Indices:
    _check_objective(objective)
    return np.setdiff1d(np.arange(len(objective)), objective.checked(indices))
