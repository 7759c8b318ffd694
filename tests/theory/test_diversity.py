"""What Section 2 claims of the risks of members and of plain pairwise diversity."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles import theory

LOSSES = {
    "squared": lambda z, y: (z - y) ** 2,
    "absolute": lambda z, y: np.abs(z - y),
    "logistic": lambda z, y: np.logaddexp(0, -np.sign(y) * z),
}
seeds = st.integers(0, 2**32)


def nested(seed: int, count: int) -> tuple[list[int], list[int], int]:
    """Return A, B and x with A a subset of B and x outside B."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(count).tolist()
    larger = int(rng.integers(0, count))
    return order[: int(rng.integers(0, larger + 1))], order[:larger], order[larger]


@pytest.mark.parametrize("loss", LOSSES)
@given(seeds)
def test_the_mean_member_risk_is_modular(loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    risk = theory.MeanMemberRisk(rng.normal(size=(8, 5)), rng.normal(size=5), LOSSES[loss], size=4)
    small, large, x = nested(seed, 8)
    assert risk([*small, x]) - risk(small) == pytest.approx(risk([*large, x]) - risk(large))
    assert risk([]) == 0


@pytest.mark.parametrize("loss", LOSSES)
@given(seeds)
def test_the_mean_member_risk_bounds_the_risk_of_the_mean(loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, targets = rng.normal(size=(6, 5)) * 3, rng.normal(size=5)
    members = theory.MeanMemberRisk(outputs, targets, LOSSES[loss], size=3)
    for chosen in ([0, 1, 2], [3, 4, 5]):
        assert theory.ensemble_risk(outputs[chosen], targets, LOSSES[loss]) <= -members(chosen) + 1e-12


def test_without_convexity_the_bound_fails() -> None:
    def loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.minimum((z - y) ** 2, 1)

    outputs = [[0.0], [1.8]]  # one member is right, the mean is not
    assert theory.ensemble_risk(outputs, [0.0], loss) > -theory.MeanMemberRisk(outputs, [0.0], loss, 2)([0, 1])


@given(seeds, st.integers(1, 3))
def test_pairwise_diversity_has_increasing_returns(seed: int, dimensions: int) -> None:
    points = np.random.default_rng(seed).normal(size=(8, dimensions))
    diversity = theory.PairwiseDiversity(points, size=4)
    small, large, x = nested(seed, 8)
    gain_small = diversity([*small, x]) - diversity(small)
    gain_large = diversity([*large, x]) - diversity(large)
    assert gain_large >= gain_small - 1e-9
    assert gain_large > gain_small or len(small) == len(large)


def test_pairwise_diversity_by_hand() -> None:
    points = np.array([0.0, 1.0, 4.0])
    pairs = sum((points[i] - points[j]) ** 2 for i, j in itertools.permutations(range(3), 2))
    assert theory.PairwiseDiversity(points, 3, strength=0.5)([0, 1, 2]) == pytest.approx(0.5 * pairs)


@pytest.mark.parametrize("name", ["kl", "reverse_kl"])
def test_its_maximiser_runs_to_the_extremes_and_its_divergence_grows_without_bound(name: str) -> None:
    """A standard normal density and ground sets that reach further and further out: R = 3, 6, 12, 24."""
    naive, greedy = [], []
    for reach in (3, 6, 12, 24):
        grid = np.linspace(-reach - 6, reach + 6, 40 * (reach + 6) + 1)
        weights = theory.trapezoid_weights(grid)
        density = theory.KernelMixture([0.0], theory.gaussian(1.0)).on_grid(grid)[0]
        centres = np.concatenate([[-reach, reach, -0.5 - reach, 0.5 + reach], np.linspace(-3, 3, 9)])
        kernels = theory.KernelMixture(centres, theory.gaussian(0.9)).on_grid(grid)
        F = theory.DivergenceObjective(density, kernels, weights, 4, name)
        chosen = theory.exhaustive(theory.PairwiseDiversity(centres, 4))
        assert np.abs(centres[chosen]).min() >= reach  # the whole ensemble sits at the extremes
        naive.append(F.divergence(chosen))
        greedy.append(F.divergence(theory.greedy(F)))
    growth = np.array(naive[1:]) / naive[:-1]
    assert (growth > 2.5).all()  # about fourfold, as the square of the distance
    assert max(greedy) < 0.25
    assert np.ptp(greedy) < 1e-3


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="points must be finite"):
        theory.PairwiseDiversity([0.0, np.nan], 1)
    with pytest.raises(ValueError, match="outputs must have 2 dimension"):
        theory.ensemble_risk([0.0], [0.0], LOSSES["squared"])
