"""The marginal gain of a candidate x given Z, three ways. Each returns an array over the whole ground set.

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

from greedy_ensembles.checks import check_kind
from greedy_ensembles.theory.arrays import Array, in_blocks
from greedy_ensembles.theory.divergence import GENERATORS
from greedy_ensembles.theory.objective import DivergenceObjective
from greedy_ensembles.theory.set_function import Indices


def exact_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return F(Z + x) - F(Z) for all candidates x; minus infinity for those already in Z.

    Where F(Z) is minus infinity all that can be compared is F(Z + x), and that is returned.
    """
    _check_objective(objective)
    selection = objective.start()
    for i in objective.checked(indices):
        selection.accept(int(i))
    outside = _outside(objective, indices)
    gains = np.full(len(objective), -math.inf)
    value = selection.value
    gains[outside] = selection.gains(outside) - (value if math.isfinite(value) else 0.0)
    return gains


def expected_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return -integral of K_x f(p / q_{Z + x}) for all candidates x; minus infinity for those already in Z."""
    _check_objective(objective)
    mixture = objective.mixture(indices)
    density, weights, generator = objective.density, objective.weights, objective.generator

    def expectation(block: Indices) -> Array:
        kernels = objective.kernels[block].astype(np.float64, copy=False)
        counted = (kernels > 0) & (weights > 0)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
            values = generator.function(density / (mixture + kernels / objective.size))
            values = np.where(density > 0, values, generator.limit_at_zero)
            return np.asarray(-np.where(counted, kernels * weights * values, 0.0).sum(axis=1))

    outside = _outside(objective, indices)
    gains = np.full(len(objective), -math.inf)
    gains[outside] = in_blocks(expectation, outside, len(density))
    return gains


def point_gains(objective: DivergenceObjective, indices: Sequence[int]) -> Array:
    """Return log p(z_x) - log q_Z(z_x) for all candidates x; minus infinity for those already in Z.

    Reverse KL only. Infinite where p, or the mixture of a set that is not empty, vanishes at the mode of K_x.
    """
    _check_objective(objective)
    if objective.generator is not GENERATORS["reverse_kl"]:
        raise ValueError(f"objective must use reverse_kl to have a point estimate, got {objective.generator.name}")
    outside = _outside(objective, indices)
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
    return np.setdiff1d(np.arange(len(objective)), objective.checked(indices))
