"""Random instances of the problem: a density on a grid, a ground set of kernels, and how many are wanted."""

from collections.abc import Callable

import numpy as np
import pytest

from greedy_ensembles import theory

MakeObjective = Callable[..., theory.DivergenceObjective]


@pytest.fixture
def make_objective() -> MakeObjective:
    def make(seed=0, count=10, size=3, generator="reverse_kl", points=120, width=0.8, offset=0.0):
        rng = np.random.default_rng(seed)
        grid = np.linspace(-6, 6, points)
        weights = theory.trapezoid_weights(grid)
        density = theory.KernelMixture(rng.uniform(-3, 3, 3), theory.laplace(0.9)).on_grid(grid).mean(axis=0)
        kernels = theory.KernelMixture(rng.uniform(-5, 5, count), theory.gaussian(width)).on_grid(grid)
        return theory.DivergenceObjective(density, kernels, weights, size, generator, offset)

    return make
