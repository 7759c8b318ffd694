import math

import numpy as np
import pytest

from greedy_ensembles import theory
from greedy_ensembles.theory import exact_gains, expected_gains, point_gains

NAMES = list(theory.GENERATORS)
names = pytest.mark.parametrize("name", NAMES)


@names
def test_exact_gains_are_marginal_gains(make_objective, name: str) -> None:
    F = make_objective(generator=name, width=2.0)
    gains = exact_gains(F, [3, 5])
    assert gains[[3, 5]].tolist() == [-math.inf] * 2
    assert [gains[i] for i in (0, 9)] == [F.marginal_gain([3, 5], i) for i in (0, 9)]


def test_where_the_set_is_worth_nothing_exact_gains_are_the_values_ahead(make_objective) -> None:
    F = make_objective(generator="kl")
    assert exact_gains(F, []).tolist() == [F([i]) for i in range(10)]


@names
def test_expected_gains_by_sampling_the_kernel(make_objective, name: str) -> None:
    """E_{z ~ K_x} f(p / q_{Z + x}) as the mean over draws of z from the kernel."""
    F = make_objective(generator=name, width=2.5)
    rng = np.random.default_rng(0)
    mass = F.kernels[4] * F.weights
    drawn = rng.choice(len(mass), 20_000, p=mass / mass.sum())
    ratios = (F.density / F.mixture([1, 2, 4]))[drawn]
    values = F.generator(ratios)
    error = 5 * values.std() / math.sqrt(len(values))
    assert expected_gains(F, [1, 2])[4] == pytest.approx(-values.mean(), abs=error)


@names
def test_the_proposition_leaves_out_a_term_that_depends_on_the_candidate(make_objective, name: str) -> None:
    F = make_objective(generator=name, width=1.5)
    outside = [i for i in range(10) if i not in (1, 2)]
    q = F.mixture([1, 2])
    left_out = []
    for i in outside:
        change = F.generator(F.density / q) - F.generator(F.density / F.mixture([1, 2, i]))
        left_out.append((q * change * F.weights).sum())
    kept = expected_gains(F, [1, 2])[outside] / F.size
    np.testing.assert_allclose(exact_gains(F, [1, 2])[outside], kept + left_out, atol=1e-12)
    assert np.ptp(left_out) > 1e-3


@names
def test_to_first_order_the_proposition_is_exact_for_reverse_kl_alone(name: str) -> None:
    """Light kernels on top of a heavy one: the gains differ by a constant under f = -log, and only there."""
    grid = np.linspace(-6, 6, 200)
    weights = theory.trapezoid_weights(grid)
    kernels = theory.KernelMixture([0.2, -1.0, -0.5, 0.0, 0.5, 1.0], theory.gaussian(1.0)).on_grid(grid)
    density = theory.KernelMixture([0.0], theory.gaussian(1.3)).on_grid(grid)[0]
    spread = []
    for scale in (1e-3, 1e-4):
        light = kernels.copy()
        light[1:] *= scale
        F = theory.DivergenceObjective(density, light, weights, 1, name)
        shift = exact_gains(F, [0])[1:] - expected_gains(F, [0])[1:]
        spread.append(np.ptp(shift) / scale)
    if name == "reverse_kl":
        assert spread[1] < 1e-3
        assert spread[1] < spread[0] / 5
    else:
        assert spread[1] > 0.03


def test_the_expectation_where_densities_vanish() -> None:
    F = theory.DivergenceObjective([0.5, 0.5, 0.0], np.eye(3), np.ones(3), 2, "reverse_kl")
    assert expected_gains(F, [0])[1:].tolist() == [0.0, -math.inf]
    F = theory.DivergenceObjective([0.5, 0.5, 0.0], np.eye(3), np.ones(3), 2, "squared_hellinger")
    assert expected_gains(F, [0])[1:].tolist() == [-0.0, -0.5]


def test_the_point_estimate_by_hand(make_objective) -> None:
    grid = np.linspace(-6, 6, 241)
    centres = np.array([-2.0, 0.0, 3.0, 4.0])
    kernels = theory.KernelMixture(centres, theory.gaussian(1.0)).on_grid(grid)
    density = theory.KernelMixture([0.0], theory.gaussian(2.0)).on_grid(grid)[0]
    F = theory.DivergenceObjective(density, kernels, theory.trapezoid_weights(grid), 3, "reverse_kl")
    at = np.searchsorted(grid, centres - 1e-9)
    mixture = kernels[1][at] / 3  # M divides, not the number chosen
    gains = point_gains(F, [1])
    assert gains[1] == -math.inf
    np.testing.assert_allclose(gains[[0, 2, 3]], (np.log(density[at]) - np.log(mixture))[[0, 2, 3]])
    np.testing.assert_allclose(point_gains(F, []), np.log(density[at]))  # the first member has no diversity term


def test_the_point_estimate_prefers_what_is_likely_and_far_from_the_others() -> None:
    grid = np.linspace(-6, 6, 241)
    kernels = theory.KernelMixture([-2.0, -1.5, 2.0, 5.5], theory.gaussian(0.5)).on_grid(grid)
    density = theory.KernelMixture([-2.0, 2.0], theory.gaussian(0.5)).density(grid)
    F = theory.DivergenceObjective(density, kernels, theory.trapezoid_weights(grid), 2, "reverse_kl")
    assert point_gains(F, [0])[2] > point_gains(F, [0])[1]
    assert point_gains(F, [])[3] == point_gains(F, []).min()


def test_the_point_estimate_where_densities_vanish() -> None:
    F = theory.DivergenceObjective([0.5, 0.5, 0.0], np.eye(3), np.ones(3), 2, "reverse_kl")
    assert point_gains(F, [0]).tolist() == [-math.inf, math.inf, -math.inf]


def test_the_point_estimate_is_for_reverse_kl(make_objective) -> None:
    with pytest.raises(ValueError, match=r"objective must use reverse_kl .*got kl$"):
        point_gains(make_objective(generator="kl"), [])


@pytest.mark.parametrize(("a", "sign"), [(-1.0, 1), (0.3, 1), (0.5, 1), (1.5, -1), (2.0, -1)])
def test_to_first_order_powers_below_one_keep_the_order_and_those_above_reverse_it(a: float, sign: int) -> None:
    scale = 1 / (a * (a - 1))
    power = theory.Generator(
        "power",
        lambda x: scale * (x**a - 1),
        lambda p, q: scale * (p**a * q ** (1 - a) - q),
        -scale if a > 0 else math.inf,
        0.0 if a < 1 else math.inf,
    )
    grid = np.linspace(-6, 6, 200)
    weights = theory.trapezoid_weights(grid)
    kernels = theory.KernelMixture([0.2, -1.0, -0.5, 0.1, 0.5, 1.0], theory.gaussian(1.0)).on_grid(grid)
    kernels[1:] *= 1e-4
    density = theory.KernelMixture([0.0], theory.gaussian(1.1)).on_grid(grid)[0]
    F = theory.DivergenceObjective(density, kernels, weights, 1, power)
    exact, expected = exact_gains(F, [0])[1:], expected_gains(F, [0])[1:]
    assert np.argsort(exact).tolist() == np.argsort(sign * expected).tolist()
