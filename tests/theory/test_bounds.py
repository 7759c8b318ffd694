import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greedy_ensembles import theory


@pytest.mark.parametrize("name", theory.GENERATORS)
def test_exhaustively(make_objective, name: str) -> None:
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
