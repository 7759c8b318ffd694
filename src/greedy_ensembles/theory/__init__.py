"""Section 3 as code: approximating a density by a mixture of kernels, as the choice of a set. No neural networks.

>>> import numpy as np
>>> from greedy_ensembles import theory
>>> grid = np.linspace(-4, 8, 241)
>>> density = theory.KernelMixture([0.0, 0.0, 5.0], theory.gaussian(1.0)).density(grid)
>>> centres = np.linspace(-2, 6, 9)
>>> kernels = theory.KernelMixture(centres, theory.gaussian(1.0)).on_grid(grid)
>>> F = theory.DivergenceObjective(density, kernels, theory.trapezoid_weights(grid), size=3, generator="jensen_shannon")
>>> centres[theory.greedy(F)], centres[theory.exhaustive(F)]
(array([0., 5., 1.]), array([0., 1., 5.]))

A density on a grid and a ground set of kernels make a set function (`DivergenceObjective`); algorithms choose M of
its elements. `SetFunction` says how the two meet, so that either can be replaced.
"""

from greedy_ensembles.theory.algorithms import (
    Selection,
    SetFunction,
    exhaustive,
    greedy,
    lazy_greedy,
    random_greedy,
    stochastic_greedy,
)
from greedy_ensembles.theory.divergence import GENERATORS, Generator, alpha, f_divergence
from greedy_ensembles.theory.grid import (
    Kernel,
    KernelMixture,
    gaussian,
    generalised_exponential,
    laplace,
    trapezoid_weights,
)
from greedy_ensembles.theory.objective import (
    DivergenceObjective,
    divergence_bound,
    exact_gains,
    expected_gains,
    maximum_divergence,
    point_gains,
)

__all__ = [
    "GENERATORS",
    "DivergenceObjective",
    "Generator",
    "Kernel",
    "KernelMixture",
    "Selection",
    "SetFunction",
    "alpha",
    "divergence_bound",
    "exact_gains",
    "exhaustive",
    "expected_gains",
    "f_divergence",
    "gaussian",
    "generalised_exponential",
    "greedy",
    "laplace",
    "lazy_greedy",
    "maximum_divergence",
    "point_gains",
    "random_greedy",
    "stochastic_greedy",
    "trapezoid_weights",
]
