import numpy as np
import pytest

from greedy_ensembles import theory
from greedy_ensembles.theory import grid


def test_the_trapezoid_rule() -> None:
    grid = np.sort(np.random.default_rng(0).uniform(-1, 3, 50))
    weights = theory.trapezoid_weights(grid)
    assert weights.sum() == pytest.approx(grid[-1] - grid[0])
    assert weights @ (2 * grid + 1) == pytest.approx(
        grid[-1] ** 2 + grid[-1] - grid[0] ** 2 - grid[0]
    )  # exact on lines


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_cover_all_rows(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = grid._cores
    grid.set_threads(threads)
    monkeypatch.setattr(grid, "_BLOCK", 50)
    try:
        rows = np.random.default_rng(0).normal(size=(103, 10))
        assert np.array_equal(grid.in_blocks(lambda block: block.sum(axis=1), rows, 10), rows.sum(axis=1))
        assert np.array_equal(grid.in_blocks(lambda block: 2 * block, rows, 10, 10), 2 * rows)
    finally:
        grid.set_threads(before)


def test_what_a_block_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(block: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    monkeypatch.setattr(grid, "_BLOCK", 1)
    with pytest.raises(ValueError, match="no"):
        grid.in_blocks(refuse, np.zeros((4, 4)), 4)
