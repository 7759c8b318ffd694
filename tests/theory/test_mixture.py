import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import laplace, multivariate_normal, norm

from greedy_ensembles import theory
from greedy_ensembles.theory import KernelMixture


def test_gaussian_kernels_against_scipy() -> None:
    points = np.linspace(-3, 3, 7)
    mixture = KernelMixture([-1.0, 2.0], theory.gaussian(0.7))
    expected = (norm.pdf(points, -1, 0.7) + norm.pdf(points, 2, 0.7)) / 2
    np.testing.assert_allclose(mixture.density(points), expected, rtol=1e-12)


def test_laplace_kernels_against_scipy() -> None:
    points = np.linspace(-3, 3, 7)
    np.testing.assert_allclose(
        KernelMixture([0.5], theory.laplace(0.7)).density(points), laplace.pdf(points, 0.5, 0.7), rtol=1e-12
    )


def test_gaussian_kernels_in_three_dimensions_against_scipy() -> None:
    rng = np.random.default_rng(0)
    centres, points = rng.normal(size=(4, 3)), rng.normal(size=(6, 3))
    expected = np.stack([multivariate_normal(centre, 0.25 * np.eye(3)).pdf(points) for centre in centres])
    np.testing.assert_allclose(KernelMixture(centres, theory.gaussian(0.5)).kernels(points), expected, rtol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.floats(0.2, 4.0), st.floats(0.5, 4.0))
def test_the_closed_form_integrates_to_one_in_any_dimension(dimensions: int, strength: float, power: float) -> None:
    kernel = theory.generalised_exponential(strength, power)
    sphere = 2 * math.pi ** (dimensions / 2) / math.gamma(dimensions / 2)
    radius = (60 / strength) ** (1 / power)  # exp(-60) is left outside

    def shell(r: float) -> float:
        return sphere * r ** (dimensions - 1) * math.exp(-strength * r**power - kernel.log_constant(dimensions))

    pieces = np.linspace(0, radius, 9)
    total = sum(quad(shell, low, high)[0] for low, high in pairwise(pieces))
    assert total == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    "kernel",
    [theory.gaussian(0.5), theory.laplace(0.5), theory.generalised_exponential(1.5, 3.0), theory.gaussian(1e-6)],
)
def test_on_a_grid_every_kernel_integrates_to_one(kernel: theory.Kernel) -> None:
    grid = np.sort(np.random.default_rng(0).uniform(-2, 2, 200))
    centres = np.linspace(grid[0], grid[-1], 11)  # those at the ends lose half their mass, the narrow ones nearly all
    kernels = KernelMixture(centres, kernel).on_grid(grid)
    np.testing.assert_allclose(kernels @ theory.trapezoid_weights(grid), 1, rtol=1e-12)


def test_grid_and_closed_form_agree_where_the_grid_is_fine_and_wide() -> None:
    grid = np.linspace(-9, 9, 2001)
    mixture = KernelMixture([-1.0, 0.5], theory.generalised_exponential(1.3, 1.5))
    np.testing.assert_allclose(mixture.on_grid(grid), mixture.kernels(grid), atol=1e-6)


def test_many_kernels_are_the_same_as_few() -> None:
    grid, centres = np.linspace(-5, 5, 1000), np.linspace(-4, 4, 700)  # several blocks
    kernels = KernelMixture(centres, theory.gaussian(0.3)).on_grid(grid)
    assert np.array_equal(kernels[613], KernelMixture(centres[613:614], theory.gaussian(0.3)).on_grid(grid)[0])


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="strength of a kernel must be finite and above 0, got 0"):
        theory.generalised_exponential(0.0, 2.0)
    plane = KernelMixture([[0.0, 0.0]], theory.gaussian(1.0))
    with pytest.raises(ValueError, match="points must have 2 columns"):
        plane.density([[0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="centres must be on the line"):
        plane.on_grid([0.0, 1.0])
    for centres in ([0.5, 2.0], [-0.5, 0.5]):
        with pytest.raises(ValueError, match="centres must lie within the grid, from 0 to 1"):
            KernelMixture(centres, theory.gaussian(1.0)).on_grid([0.0, 1.0])
