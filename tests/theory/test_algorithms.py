import itertools
import math
from collections import Counter

import numpy as np
import pytest
from benchmarks.theory import Counted
from hypothesis import given, settings
from hypothesis import strategies as st

from greedy_ensembles import theory
from greedy_ensembles.theory import algorithms

NAMES = list(theory.GENERATORS)
names = pytest.mark.parametrize("name", NAMES)
ALGORITHMS = {
    "greedy": theory.greedy,
    "lazy_greedy": theory.lazy_greedy,
    "random_greedy": lambda F: theory.random_greedy(F, np.random.default_rng(0)),
    "stochastic_greedy": lambda F: theory.stochastic_greedy(F, np.random.default_rng(0)),
    "exhaustive": theory.exhaustive,
}


class Table(theory.SetFunction):
    """Any set function at all, from a dictionary."""

    def __init__(self, values: dict[frozenset[int], float], count: int, size: int) -> None:
        super().__init__(count, size)
        self.table = values

    def __call__(self, indices: list[int]) -> float:
        return self.table[frozenset(indices)]


def by_hand(F: theory.SetFunction) -> list[int]:
    chosen: list[int] = []
    for _ in range(F.size):
        chosen.append(max((i for i in range(len(F)) if i not in chosen), key=lambda i: (F([*chosen, i]), -i)))
    return chosen


@names
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("size", [1, 3, 10])
def test_exactly_so_many_distinct_indices(make_objective, algorithm: str, name: str, size: int) -> None:
    chosen = ALGORITHMS[algorithm](make_objective(size=size, generator=name))
    assert len(chosen) == len(set(chosen)) == size
    assert all(type(i) is int and 0 <= i < 10 for i in chosen)


@names
@pytest.mark.parametrize("seed", range(5))
def test_greedy_by_hand(make_objective, name: str, seed: int) -> None:
    F = make_objective(seed=seed, generator=name)
    assert theory.greedy(F) == by_hand(F)


@names
def test_exhaustive_by_hand(make_objective, name: str) -> None:
    F = make_objective(generator=name)
    assert theory.exhaustive(F) == list(max(itertools.combinations(range(10), 3), key=F))


def test_exhaustive_refuses_what_would_not_end(make_objective) -> None:
    with pytest.raises(ValueError, match=r"size 20 .* 60 .*4191844505805495 sets.* use greedy"):
        theory.exhaustive(make_objective(count=60, size=20))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    name=st.sampled_from(NAMES),
    count=st.integers(2, 40),
    width=st.sampled_from([0.02, 0.1, 0.5, 3.0]),  # the narrow ones underflow, so that F is minus infinity for a while
    copies=st.booleans(),
    symmetric=st.booleans(),
)
def test_lazy_greedy_chooses_what_greedy_does(
    seed: int, name: str, count: int, width: float, copies: bool, symmetric: bool
) -> None:
    rng = np.random.default_rng(seed)
    grid = np.linspace(-6, 6, 121)
    centres = rng.uniform(-6, 6, count)
    if copies:
        centres[count // 2 :] = centres[: count - count // 2]  # ties
    if symmetric:
        centres[: count // 2] = -centres[count - count // 2 :]  # ties but for rounding
    density = theory.KernelMixture([-2.0, 2.0], theory.laplace(1.0)).on_grid(grid).mean(axis=0)
    if seed % 3 == 0:
        density[:20] = 0  # and where the density vanishes, some gains are minus infinity for ever
        density /= density @ theory.trapezoid_weights(grid)
    kernels = theory.KernelMixture(centres, theory.gaussian(width)).on_grid(grid)
    size = int(rng.integers(1, count + 1))
    F = theory.DivergenceObjective(density, kernels, theory.trapezoid_weights(grid), size, name)
    assert theory.lazy_greedy(F) == theory.greedy(F)


def test_lazy_greedy_asks_for_fewer_gains(make_objective) -> None:
    eager, lazy = (Counted(make_objective(count=300, size=12, width=10 / 70)) for _ in range(2))
    assert theory.lazy_greedy(lazy) == theory.greedy(eager)
    assert eager.asked == sum(300 - k for k in range(12))
    assert lazy.asked < eager.asked / 3


def test_ties_go_to_the_lowest_index() -> None:
    kernels = np.tile([[0.5, 0.5]], (6, 1))
    F = theory.DivergenceObjective([0.5, 0.5], kernels, np.ones(2), 3)
    assert theory.greedy(F) == theory.lazy_greedy(F) == theory.exhaustive(F) == [0, 1, 2]


def test_where_all_is_minus_infinity_the_lowest_index_wins_too() -> None:
    F = theory.DivergenceObjective([0.0, 1.0], np.tile([[0.5, 0.5]], (4, 1)), np.ones(2), 2, "reverse_kl")
    assert F([0]) == -math.inf
    assert theory.greedy(F) == theory.lazy_greedy(F) == theory.exhaustive(F) == [0, 1]


def test_values_are_compared_and_not_differences() -> None:
    """Under KL all first gains are infinite; F({x}) still tells them apart."""
    kernels = [[0.9, 0.1], [0.1, 0.9], [0.5, 0.5]]
    F = theory.DivergenceObjective([0.5, 0.5], kernels, np.ones(2), 1, "kl")
    assert [F.marginal_gain([], i) for i in range(3)] == [math.inf] * 3
    assert theory.greedy(F) == theory.lazy_greedy(F) == [2]


class TestRandomGreedy:
    def test_the_first_is_uniform_over_the_best_of_size(self, make_objective) -> None:
        F = make_objective(size=4)
        best = np.argsort([-F([i]) for i in range(10)])[:4]
        rng = np.random.default_rng(0)
        counts = Counter(theory.random_greedy(F, rng)[0] for _ in range(2000))
        assert set(counts) == set(best.tolist())
        assert all(abs(count - 500) < 5 * math.sqrt(2000 * 0.25 * 0.75) for count in counts.values())

    def test_the_next_are_uniform_over_the_best_that_remain(self, make_objective) -> None:
        F = make_objective(size=3)
        rng = np.random.default_rng(1)
        for _ in range(50):
            chosen = theory.random_greedy(F, rng)
            for k, index in enumerate(chosen):
                rest = [i for i in range(10) if i not in chosen[:k]]
                assert index in sorted(rest, key=lambda i: (-F([*chosen[:k], i]), i))[:3]

    def test_the_generator_decides(self, make_objective) -> None:
        F = make_objective(count=30, size=8)
        draws = [tuple(theory.random_greedy(F, np.random.default_rng(seed))) for seed in (0, 0, 1, 2)]
        assert draws[0] == draws[1]
        assert len(set(draws)) > 1

    def test_the_whole_ground_set_can_be_wanted(self, make_objective) -> None:
        assert sorted(theory.random_greedy(make_objective(size=10), np.random.default_rng(0))) == list(range(10))

    def test_dummies_keep_out_what_lowers_the_value(self) -> None:
        table = {frozenset(s): -float(len(s)) for k in range(4) for s in itertools.combinations(range(4), k)}
        rng = np.random.default_rng(0)
        assert theory.random_greedy(Table(table, 4, 3), rng, dummies=True) == []
        assert len(theory.random_greedy(Table(table, 4, 3), rng)) == 3

    def test_dummies_share_the_draw_with_what_raises_it(self) -> None:
        worth = [5.0, -1.0, -1.0, -1.0]
        table = {frozenset(s): sum(worth[i] for i in s) for k in range(4) for s in itertools.combinations(range(4), k)}
        rng = np.random.default_rng(0)
        answers = Counter(tuple(theory.random_greedy(Table(table, 4, 3), rng, dummies=True)) for _ in range(3000))
        assert set(answers) == {(0,), ()}
        assert answers[()] / 3000 == pytest.approx((2 / 3) ** 3, abs=0.04)  # missed thrice: one of three is no dummy

    def test_its_guarantee_holds_with_dummies_on_cuts(self) -> None:
        """Directed cuts are non-negative, submodular and far from monotone."""
        rng = np.random.default_rng(0)
        for _ in range(10):
            graph = rng.random((7, 7)) * (rng.random((7, 7)) < 0.4)
            subsets = [frozenset(s) for k in range(4) for s in itertools.combinations(range(7), k)]
            cut = {s: sum(graph[i, j] for i in s for j in range(7) if j not in s) for s in subsets}
            F = Table(cut, 7, 3)
            mean = np.mean([F(theory.random_greedy(F, rng, dummies=True)) for _ in range(300)])
            assert mean >= max(cut.values()) / math.e

    def test_with_dummies_an_answer_is_a_value_and_no_divergence(self) -> None:
        """Kernels on a half where the density has little mass: adding them lowers F."""
        F = theory.DivergenceObjective([0.999, 0.001], [[0.0, 1.0]] * 3, np.ones(2), 3, "total_variation")
        chosen = theory.random_greedy(F, np.random.default_rng(0), dummies=True)
        assert chosen == []
        assert F(chosen) == pytest.approx(-0.5)
        with pytest.raises(ValueError, match="to have a divergence"):
            F.divergence(chosen)


class TestStochasticGreedy:
    def test_it_asks_for_a_number_of_gains_that_does_not_grow_with_the_size(self, make_objective) -> None:
        for size in (5, 20):
            F = Counted(make_objective(count=200, size=size))
            theory.stochastic_greedy(F, np.random.default_rng(0), epsilon=0.1)
            assert F.asked == pytest.approx(200 * math.log(10), rel=0.05)

    def test_with_every_candidate_in_the_sample_it_is_greedy(self, make_objective) -> None:
        F = make_objective(count=12, size=3)
        assert theory.stochastic_greedy(F, np.random.default_rng(0), epsilon=0.01) == theory.greedy(F)


def test_any_object_with_the_two_methods_will_do(make_objective) -> None:
    """A set function of someone else's: modular, and never called as a whole."""

    class Chosen:
        value = 0.0

        def gains(self, candidates: np.ndarray) -> np.ndarray:
            return self.value + np.sin(candidates)

        def accept(self, candidate: int) -> None:
            self.value += math.sin(candidate)

    class Foreign:
        size = 3

        def __len__(self) -> int:
            return 9

        def start(self) -> Chosen:
            return Chosen()

    assert theory.greedy(Foreign()) == theory.lazy_greedy(Foreign()) == [8, 2, 1]
    assert sorted(theory.stochastic_greedy(Foreign(), np.random.default_rng(0), epsilon=0.01)) == [1, 2, 8]


def test_all_sets_come_in_order(make_objective, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(algorithms, "_SETS_AT_ONCE", 7)
    F = make_objective()
    blocks = list(algorithms.evaluate_all(F))
    assert [tuple(row) for sets, _ in blocks for row in sets] == list(itertools.combinations(range(10), 3))
    assert theory.exhaustive(F) == list(max(itertools.combinations(range(10), 3), key=F))
