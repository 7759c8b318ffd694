import multiprocessing
import os

import numpy as np
import pytest

from greedy_ensembles import theory
from greedy_ensembles.theory import arrays


def test_the_trapezoid_rule() -> None:
    grid = np.sort(np.random.default_rng(0).uniform(-1, 3, 50))
    weights = theory.trapezoid_weights(grid)
    assert weights.sum() == pytest.approx(grid[-1] - grid[0])
    assert weights @ (2 * grid + 1) == pytest.approx(
        grid[-1] ** 2 + grid[-1] - grid[0] ** 2 - grid[0]
    )  # exact on lines


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_cover_all_rows(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = arrays._cores
    arrays.set_threads(threads)
    monkeypatch.setattr(arrays, "_BLOCK", 50)
    try:
        rows = np.random.default_rng(0).normal(size=(103, 10))
        assert np.array_equal(arrays.in_blocks(lambda block: block.sum(axis=1), rows, 10), rows.sum(axis=1))
        assert np.array_equal(arrays.in_blocks(lambda block: 2 * block, rows, 10, 10), 2 * rows)
    finally:
        arrays.set_threads(before)


def test_what_a_block_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(block: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    monkeypatch.setattr(arrays, "_BLOCK", 1)
    with pytest.raises(ValueError, match="no"):
        arrays.in_blocks(refuse, np.zeros((4, 4)), 4)


def _sum_in_blocks(rows: np.ndarray) -> None:
    arrays._BLOCK = 50
    arrays.in_blocks(lambda block: block.sum(axis=1), rows, 10)
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_starts_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_BLOCK", 50)
    rows = np.ones((40, 10))
    arrays.in_blocks(lambda block: block.sum(axis=1), rows, 10)  # the parent's threads are running now
    child = multiprocessing.get_context("fork").Process(target=_sum_in_blocks, args=(rows,))
    child.start()
    child.join(300)  # it never ends if it waits for the threads of its parent
    hung = child.is_alive()
    if hung:
        child.kill()
    assert not hung
    assert child.exitcode == 0
