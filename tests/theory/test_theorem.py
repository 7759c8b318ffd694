"""Theorem 1 as a property: minus an f-divergence from a mixture has diminishing returns, for a fixed M.

Hypothesis draws the density, the kernels, the ground set, A within B, and x outside B. Zeros are drawn on purpose, in
the density and in the kernels, so that infinite values are among what the theorem is tested on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from greedy_ensembles import theory

ALL = [*theory.GENERATORS.values(), *map(theory.alpha, (-1.0, 0.0, 0.4, 1.0, 1.5, 3.0))]
generators = pytest.mark.parametrize("f", ALL, ids=lambda f: f.name)

values = st.one_of(st.just(0.0), st.floats(1e-3, 5.0))


@dataclass
class Case:
    density: np.ndarray
    kernels: np.ndarray
    weights: np.ndarray
    size: int
    small: list[int]  # A
    large: list[int]  # B, which holds A
    x: int  # outside B


@st.composite
def cases(draw: st.DrawFn) -> Case:
    points, count = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    row = st.lists(values, min_size=points, max_size=points)
    weights = np.array(draw(st.lists(st.floats(0.1, 2.0), min_size=points, max_size=points)))
    density = np.array(draw(row.filter(any)))
    kernels = np.array(draw(st.lists(row, min_size=count, max_size=count)))
    order = draw(st.permutations(range(count)))
    larger = draw(st.integers(0, count - 1))
    smaller = draw(st.integers(0, larger))
    size = draw(st.integers(1, count))
    return Case(density / (density @ weights), kernels, weights, size, order[:smaller], order[:larger], order[larger])


Gain = Callable[[Case, theory.Generator, list[int]], float]


def gain(case: Case, f: theory.Generator, indices: list[int]) -> float:
    F = theory.DivergenceObjective(case.density, case.kernels, case.weights, case.size, f)
    return F.marginal_gain(indices, case.x)


def gain_normalised_by_members(case: Case, f: theory.Generator, indices: list[int]) -> float:
    """Return the gain of the wrong variant, which divides by |Z| so that every mixture is a distribution."""
    after = theory.DivergenceObjective(case.density, case.kernels, case.weights, len(indices) + 1, f)
    before = theory.DivergenceObjective(case.density, case.kernels, case.weights, max(1, len(indices)), f)
    before_value, after_value = before(indices), after([*indices, case.x])
    return math.inf if before_value == -math.inf else after_value - before_value


def check_diminishing_returns(generators: list[theory.Generator], gain: Gain, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, phases=[Phase.generate])
    @given(cases())
    def check(case: Case) -> None:
        for f in generators:  # all of them on each case: cases take longer to draw than to check
            first, later = gain(case, f, case.small), gain(case, f, case.large)
            assert not math.isnan(first), f.name
            assert not math.isnan(later), f.name
            assert first >= later - 1e-9 * max(1, abs(first) if math.isfinite(first) else 1), f.name

    check()


def test_returns_diminish() -> None:
    check_diminishing_returns(ALL, gain, examples=200)


@generators
def test_dividing_by_the_number_of_members_is_caught(f: theory.Generator) -> None:
    with pytest.raises(AssertionError):
        check_diminishing_returns([f], gain_normalised_by_members, examples=2000)


def test_a_function_that_is_not_convex_is_caught() -> None:
    def root(x: np.ndarray) -> np.ndarray:
        return np.sqrt(x) - 1

    concave = theory.Generator("root", root, lambda p, q: np.sqrt(p * q) - q, -1.0, 0.0)
    with pytest.raises(AssertionError):
        check_diminishing_returns([concave], gain, examples=500)


@generators
@given(st.floats(0.01, 20), st.floats(0.01, 20), st.floats(0.01, 0.99), st.floats(0.05, 5))
def test_the_integrand_is_convex_in_the_mixture(
    f: theory.Generator, low: float, high: float, share: float, a: float
) -> None:
    def g(x: float) -> float:
        return float(f.perspective(np.array(a), np.array(x)))

    chord = share * g(low) + (1 - share) * g(high)
    assert g(share * low + (1 - share) * high) <= chord + 1e-9 * (1 + abs(chord))


@settings(max_examples=50, deadline=None)
@given(case=cases(), slope=st.floats(-3, 3))
def test_a_straight_line_in_f_changes_no_choice(case: Case, slope: float) -> None:
    """f + c (x - 1) adds c (1 - |Z| / M) to a mixture of normalised kernels: a constant at each step."""
    kernels = case.kernels + 0.1
    kernels /= (kernels @ case.weights)[:, np.newaxis]
    density = np.full(len(case.weights), 1 / case.weights.sum())
    indices = [*case.large, case.x]
    shift = slope * (1 - len(indices) / case.size)
    for f in ALL:
        plain = theory.DivergenceObjective(density, kernels, case.weights, case.size, f)
        other = theory.DivergenceObjective(density, kernels, case.weights, case.size, tilted(f, slope))
        assert other(indices) == pytest.approx(plain(indices) - shift, abs=1e-9, rel=1e-9), f.name


def tilted(f: theory.Generator, slope: float) -> theory.Generator:
    return theory.Generator(
        f.name, f.function, lambda p, q: f.perspective(p, q) + slope * (p - q), f.limit_at_zero - slope, math.nan
    )
