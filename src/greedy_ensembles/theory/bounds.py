"""The constant C of Section 3's guarantee: the largest divergence that M kernels of the ground set can have.

F(Z) = C - D_f(p || q_Z) is non-negative on sets of M elements. An algorithm of factor g, F(found) >= g max F, then has
D(found) <= g min D + (1 - g) C. Bounds need no search: q f(p / q) is convex in q, so that a mixture's divergence is at
most the mean of its kernels' own, and its graph lies below the line through its limits, q f(0) + p lim f(x)/x.

C does not make F non-negative on *smaller* sets, which Random Greedy passes through and on which its proof relies:
under KL, for one, F is minus infinity at the empty set whatever C is.
"""

import math

import numpy as np

from greedy_ensembles.theory.algorithms import evaluate_all
from greedy_ensembles.theory.arrays import in_blocks
from greedy_ensembles.theory.divergence import DivergenceFrom
from greedy_ensembles.theory.objective import DivergenceObjective

#: The factor of Random Greedy for non-negative submodular functions of sets of at most M elements.
RANDOM_GREEDY_FACTOR = 1 / math.e
#: No polynomial algorithm has a larger factor than this on all such functions.
INAPPROXIMABILITY = 0.491


def maximum_divergence(objective: DivergenceObjective, most_sets: int = 200_000) -> float:
    """Return C = max of D_f(p || q_Z) over |Z| = M: exactly where there are no more sets than that, else a bound."""
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
    own = DivergenceFrom(objective.density, objective.weights, objective.generator)
    divergences = in_blocks(own, objective.kernels, len(objective.density))
    return min(_mean_of_largest(divergences, objective.size), _bound_by_limits(objective))


def _bound_by_limits(objective: DivergenceObjective) -> float:
    f, masses = objective.generator, objective.kernels @ objective.weights
    limits = f.limit_at_zero + f.slope_at_infinity
    if not math.isfinite(limits):
        return math.inf
    at_zero = _mean_of_largest(f.limit_at_zero * masses, objective.size)
    return at_zero + f.slope_at_infinity * float(objective.density @ objective.weights)


def _mean_of_largest(values: np.ndarray, count: int) -> float:
    return float(np.sort(values)[-count:].mean())
