"""What the arrays of this room must be, and quadrature on a grid: messages name the argument at fault."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedy_ensembles import machine
from greedy_ensembles.checks import check_unmasked

Array = NDArray[np.float64]

_cores = machine.cores()
_BLOCK = 1 << 17  # numbers a block: its handful of temporaries stays in the cache, and far from filling the memory


def floats(name: str, values: ArrayLike, dimensions: int) -> Array:
    """Return values as a floating array of so many dimensions without NaN or infinity (single precision stays)."""
    check_unmasked(name, values)
    array = np.asarray(values)
    if array.dtype not in (np.float32, np.float64):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"{name} must hold numbers, got an array of {array.dtype}") from None
    if array.ndim != dimensions or array.size == 0:
        raise ValueError(f"{name} must have {dimensions} dimension(s) and not be empty, got shape {array.shape}")
    extremes = np.array([array.min(), array.max()])  # both are NaN if any element is; no temporary of array's size
    if not np.isfinite(extremes).all():
        raise ValueError(f"{name} must be finite, got {'NaN' if np.isnan(extremes).any() else 'infinity'}")
    return array


def non_negative(name: str, values: ArrayLike, dimensions: int) -> Array:
    """Return values as a floating array without a negative element."""
    array = floats(name, values, dimensions)
    if (least := array.min()) < 0:
        raise ValueError(f"{name} must not be negative, got {least:g}")
    return array


def same_length(name: str, array: Array, other_name: str, other: Array) -> None:
    """Raise unless the last axes of two arrays agree."""
    if array.shape[-1] != other.shape[-1]:
        raise ValueError(f"{name} must have as many points as {other_name}, got {array.shape[-1]} != {other.shape[-1]}")


def increasing_grid(values: ArrayLike) -> Array:
    """Return values as a strictly increasing grid of at least two points."""
    grid = floats("grid", values, 1).astype(np.float64)
    if len(grid) < 2 or not (np.diff(grid) > 0).all():
        raise ValueError("grid must be strictly increasing, with at least two points")
    return grid


def trapezoid_weights(grid: ArrayLike) -> Array:
    """Return the weights w of the trapezoid rule, so that (w * values).sum() integrates over an increasing grid.

    >>> trapezoid_weights([0.0, 1.0, 3.0])
    array([0.5, 1.5, 1. ])
    """
    steps = np.diff(increasing_grid(grid))
    weights: Array = (np.append(steps, 0) + np.append(0, steps)) / 2
    return weights


def in_blocks(function: Callable[[Any], Array], rows: NDArray[Any], width: int, columns: int | None = None) -> Array:
    """Return function(rows), of shape (rows,) or (rows, columns), computed in blocks of rows on all cores.

    `width` numbers a row are needed on the way. Ufuncs of numpy use one core but release the interpreter's lock, so
    that threads do use the others. A row's result must not depend on the rows beside it; elementwise work and sums
    along the last axis see to that.
    """
    results = np.empty(len(rows) if columns is None else (len(rows), columns))
    step = max(1, _BLOCK // width)

    def fill(start: int) -> None:
        results[start : start + step] = function(rows[start : start + step])

    starts = range(0, len(rows), step)
    if len(starts) <= 1 or _cores == 1:
        for start in starts:  # not worth waking a thread
            fill(start)
    else:
        list(_threads().map(fill, starts))  # the list raises what a block raised
    return results


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores, thread_name_prefix="greedy-ensembles-theory")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # threads stay behind, and waiting for them would not end


def set_threads(count: int) -> None:
    """Use so many threads from now on; for programs that already keep all cores busy with processes of their own."""
    global _cores
    _cores = count
    _threads.cache_clear()
