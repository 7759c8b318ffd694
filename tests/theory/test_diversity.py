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


def mean_risk(outputs: np.ndarray, targets: np.ndarray, loss, chosen: list[int], size: int) -> float:
    """Return (1/M) sum_{m in Z} R(z_m), problem (3)."""
    return sum(loss(outputs[m], targets).mean() for m in chosen) / size


def risk_of_mean(outputs: np.ndarray, targets: np.ndarray, loss) -> float:
    return loss(outputs.mean(axis=0), targets).mean()


class PairwiseDiversity(theory.SetFunction):
    """The sum over ordered pairs of |z_i - z_j|^2, as anyone would write it."""

    def __init__(self, points: np.ndarray, size: int) -> None:
        super().__init__(len(points), size)
        self.points = points.reshape(len(points), -1)

    def __call__(self, indices) -> float:
        pairs = itertools.permutations(self.points[list(indices)], 2)
        return float(sum(((one - other) ** 2).sum() for one, other in pairs))


def nested(seed: int, count: int) -> tuple[list[int], list[int], int]:
    """Return A, B and x with A a subset of B and x outside B."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(count).tolist()
    larger = int(rng.integers(0, count))
    return order[: int(rng.integers(0, larger + 1))], order[:larger], order[larger]


@pytest.mark.parametrize("loss", LOSSES)
@given(seeds)
def test_the_mean_member_risk_bounds_the_risk_of_the_mean(loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    outputs, targets = rng.normal(size=(3, 5)) * 3, rng.normal(size=5)
    assert (
        risk_of_mean(outputs, targets, LOSSES[loss]) <= mean_risk(outputs, targets, LOSSES[loss], [0, 1, 2], 3) + 1e-12
    )


def test_without_convexity_the_bound_fails() -> None:
    def loss(z: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.minimum((z - y) ** 2, 1)

    outputs, targets = np.array([[0.0], [1.8]]), np.zeros(1)  # one member is right, the mean is not
    assert risk_of_mean(outputs, targets, loss) > mean_risk(outputs, targets, loss, [0, 1], 2)


@given(seeds, st.integers(1, 3))
def test_pairwise_diversity_has_increasing_returns(seed: int, dimensions: int) -> None:
    points = np.random.default_rng(seed).normal(size=(8, dimensions))
    diversity = PairwiseDiversity(points, size=4)
    small, large, x = nested(seed, 8)
    gain_small = diversity([*small, x]) - diversity(small)
    gain_large = diversity([*large, x]) - diversity(large)
    assert gain_large >= gain_small - 1e-9
    assert gain_large > gain_small or len(small) == len(large)


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
        chosen = theory.exhaustive(PairwiseDiversity(centres, 4))
        assert np.abs(centres[chosen]).min() >= reach  # the whole ensemble sits at the extremes
        naive.append(F.divergence(chosen))
        greedy.append(F.divergence(theory.greedy(F)))
    growth = np.array(naive[1:]) / naive[:-1]
    assert (growth > 2.5).all()  # about fourfold, as the square of the distance
    assert max(greedy) < 0.25
    assert np.ptp(greedy) < 1e-3
