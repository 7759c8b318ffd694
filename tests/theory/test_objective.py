import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greedy_ensembles import theory
from greedy_ensembles.theory import DivergenceObjective

NAMES = list(theory.GENERATORS)
names = pytest.mark.parametrize("name", NAMES)


def by_definition(F: DivergenceObjective, indices: list[int]) -> float:
    """Return F(Z) by plain loops over members and points, for densities that do not vanish."""
    total = 0.0
    for point, (p, weight) in enumerate(zip(F.density, F.weights, strict=True)):
        q = sum(F.kernels[j][point] for j in indices) / F.size
        total += weight * q * float(F.generator(p / q))
    return F.offset - total


@names
@pytest.mark.parametrize("indices", [[4], [0, 7], [2, 5, 9], [0, 1, 2, 3, 4]])
def test_it_is_what_the_definition_says(make_objective, name: str, indices: list[int]) -> None:
    F = make_objective(generator=name, offset=1.5, width=2.0)
    assert F(indices) == pytest.approx(by_definition(F, indices), rel=1e-9)


@names
def test_at_the_empty_set_it_is_the_slope_at_infinity(make_objective, name: str) -> None:
    F = make_objective(generator=name, offset=2.0)
    assert F([]) == pytest.approx(2.0 - F.generator.slope_at_infinity, rel=1e-3)
    assert (F([]) == -math.inf) == (name in ("kl", "pearson_chi2"))


@names
def test_a_full_set_has_a_divergence_and_a_smaller_one_has_none(make_objective, name: str) -> None:
    F = make_objective(generator=name, offset=3.0)
    assert F.divergence([1, 2, 3]) == pytest.approx(
        theory.f_divergence(F.density, F.mixture([1, 2, 3]), name, F.weights)
    )
    assert F.mixture([1, 2, 3]) @ F.weights == pytest.approx(1)
    assert F.mixture([1, 2]) @ F.weights == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match=r"indices must be 3 .*got 2: .*F\(indices\)"):
        F.divergence([1, 2])


@names
def test_growing_one_at_a_time_gives_the_same_bits_as_starting_over(make_objective, name: str) -> None:
    F = make_objective(generator=name, count=40, size=5)
    selection, chosen = F.start(), []
    for accepted in (17, 3, 30):
        outside = np.array([i for i in range(40) if i not in chosen])
        gains = selection.gains(outside)
        assert gains.tolist() == [F([*chosen, int(i)]) for i in outside]
        assert selection.gains(outside[4:5])[0] == gains[4]  # no matter which candidates are asked about together
        selection.accept(accepted)
        chosen.append(accepted)
        assert selection.value == F(chosen)


def test_blocks_and_threads_change_nothing(make_objective) -> None:
    F = make_objective(count=700, size=4, points=1000)  # several blocks
    outside = np.arange(700)
    gains = F.start().gains(outside)
    assert gains.tolist() == [F([i]) for i in range(700)]
    sets = np.random.default_rng(0).permuted(np.tile(outside, (300, 1)), axis=1)[:, :4]
    assert F.values(sets).tolist() == [F(row.tolist()) for row in sets]


def test_single_precision_kernels_are_computed_with_in_double(make_objective) -> None:
    F = make_objective()
    kernels = F.kernels.astype(np.float32)
    single = DivergenceObjective(F.density, kernels, F.weights, 3)
    double = DivergenceObjective(F.density, kernels.astype(np.float64), F.weights, 3)
    assert single.kernels.dtype == np.float32
    assert theory.greedy(single) == theory.greedy(double)
    assert single([1, 2]) == double([1, 2])


def test_sets_tuples_and_numpy_integers_will_do(make_objective) -> None:
    F = make_objective(size=np.int64(3))
    assert F({1, 2}) == F((1, 2)) == F(np.array([1, 2])) == F([1, 2])
    assert F.marginal_gain((1, 2), np.int64(3)) == F.marginal_gain([1, 2], 3)


class TestMarginalGain:
    def test_it_is_the_difference(self, make_objective) -> None:
        F = make_objective(offset=1.0)
        assert F.marginal_gain([1, 4], 7) == F([1, 4, 7]) - F([1, 4])

    def test_the_first_kernel_is_an_infinite_gain_under_kl(self, make_objective) -> None:
        F = make_objective(generator="kl")
        assert F([3]) > -math.inf
        assert F.marginal_gain([], 3) == math.inf

    def test_a_kernel_where_the_density_vanishes_is_an_infinite_loss_under_reverse_kl(self) -> None:
        F = DivergenceObjective([1.0, 0.0], [[1.0, 0.0], [0.5, 0.5]], [1.0, 1.0], 2, "reverse_kl")
        assert F([]) == 0.0
        assert F([1]) == -math.inf
        assert F.marginal_gain([], 1) == F.marginal_gain([0], 1) == -math.inf
        assert F.marginal_gain([1], 0) == pytest.approx(-(0.75 * math.log(0.75) - 0.25 * math.log(0.25)), rel=1e-9)

    def test_between_infinities_it_looks_where_the_candidate_is(self) -> None:
        thirds = np.full(3, 1 / 3)
        F = DivergenceObjective(thirds, np.eye(3), np.ones(3), 3, "kl")
        assert F([0]) == F([0, 1]) == -math.inf
        assert F.marginal_gain([0], 1) == math.inf  # covers a point that was bare
        kernels = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]
        F = DivergenceObjective(thirds, kernels, np.ones(3), 3, "kl")
        assert F([1]) == F([1, 0]) == -math.inf
        assert F.marginal_gain([1], 0) == pytest.approx(math.log(3) / 3)  # 1/6 becomes 1/2 at the first point

    def test_a_generator_infinite_at_both_ends(self) -> None:
        jeffreys = theory.Generator(
            "jeffreys", lambda x: (x - 1) * np.log(x), lambda p, q: (p - q) * np.log(p / q), math.inf, math.inf
        )
        F = DivergenceObjective([1.0, 0.0], [[0.5, 0.5], [1.0, 0.0]], np.ones(2), 2, jeffreys)
        assert F.marginal_gain([], 0) == -math.inf


def test_a_plain_callable_is_accepted_where_it_stays_finite(make_objective) -> None:
    F = make_objective(generator=lambda x: (x - 1) ** 2, width=2.0)
    named = make_objective(generator="pearson_chi2", width=2.0)
    assert F([1, 2]) == pytest.approx(named([1, 2]))
    assert theory.greedy(F) == theory.greedy(named) == theory.lazy_greedy(F)
    with pytest.raises(ValueError, match="slope_at_infinity"):
        F([])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"density": [0.5, 0.5, 0.5]}, "density must integrate to 1 within 0.001, got 1.5"),
        ({"density": [0.5, 0.5]}, "density must have as many points as weights"),
        ({"kernels": [[1.0, 0.0]] * 3}, "kernels must have as many points as density"),
        ({"size": 4}, "size must not exceed the ground set, got 4 of 3 elements"),
        ({"generator": lambda x: x}, r"generator must be convex with f\(1\) = 0"),
    ],
)
def test_bad_input(changes: dict[str, object], message: str) -> None:
    good = {"density": [0.2, 0.3, 0.5], "kernels": np.eye(3), "weights": np.ones(3), "size": 2}
    DivergenceObjective(**good)
    with pytest.raises(ValueError, match=message):
        DivergenceObjective(**{**good, **changes})


@pytest.mark.parametrize("name", theory.GENERATORS)
def test_the_largest_divergence_exhaustively(make_objective, name: str) -> None:
    F = make_objective(generator=name, offset=7.0)
    worst = max(F.divergence(list(s)) for s in itertools.combinations(range(10), 3))
    assert theory.maximum_divergence(F) == pytest.approx(worst)
    assert theory.divergence_bound(F) >= worst - 1e-12
    assert theory.maximum_divergence(F, most_sets=119) == theory.divergence_bound(F)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([*theory.GENERATORS.values(), theory.alpha(0.3), theory.alpha(1.5)]))
def test_the_bound_is_one_on_unnormalised_kernels_too(seed: int, f: theory.Generator) -> None:
    rng = np.random.default_rng(seed)
    density = rng.dirichlet(np.ones(6)) * (rng.random(6) < 0.9)
    density /= density.sum()
    kernels = rng.exponential(size=(6, 6)) * (rng.random((6, 6)) < 0.7)
    F = theory.DivergenceObjective(density, kernels, np.ones(6), 3, f)
    assert theory.divergence_bound(F) >= theory.maximum_divergence(F) - 1e-9


@pytest.mark.parametrize(
    ("name", "most"), [("jensen_shannon", math.log(2)), ("squared_hellinger", 1), ("kl", math.inf)]
)
def test_kernels_beside_the_density_reach_the_bound(name: str, most: float) -> None:
    F = theory.DivergenceObjective([1.0, 0.0], [[0.0, 1.0]] * 3, np.ones(2), 2, name)
    assert theory.maximum_divergence(F) == theory.divergence_bound(F) == pytest.approx(most)


def test_with_the_constant_as_offset_sets_of_full_size_are_not_negative(make_objective) -> None:
    F = make_objective(generator="kl", offset=theory.maximum_divergence(make_objective(generator="kl")))
    assert min(F(list(s)) for s in itertools.combinations(range(10), 3)) == pytest.approx(0, abs=1e-12)
    assert F([]) == -math.inf  # smaller sets still may be
