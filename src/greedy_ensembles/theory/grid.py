"""Densities on a grid: what its arrays must be, quadrature, kernels, and their mixtures.

The approximation of Section 3 is q_M(z) = (1/M) sum_m K(z, z_m).

All kernels are of one family, K(z, c) proportional to exp(-strength * |z - c|^power), with power 2 for Gaussians, 1 for
Laplace's, and the paper's generalised exponential kernel (Section 4.1) in general. The distance is Euclidean. In d
dimensions the constant is known,

    integral of exp(-s |z|^a) over R^d = 2 pi^(d/2) / Gamma(d/2) * Gamma(d/a) / (a s^(d/a)),

while on a grid in one dimension kernels are divided by their own quadrature, so that every mixture of them is a
distribution there: a kernel that the grid cuts off, or resolves badly, would otherwise leak mass.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedy_ensembles import machine
from greedy_ensembles.checks import check_kind, check_number, check_unmasked

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
        with ThreadPoolExecutor(_cores) as threads:
            list(threads.map(fill, starts))  # the list raises what a block raised
    return results


def set_threads(count: int) -> None:
    """Use so many threads from now on; for programs that already keep all cores busy with processes of their own."""
    global _cores
    _cores = count


@dataclass(frozen=True)
class Kernel:
    """exp(-strength * distance^power), up to its constant."""

    strength: float
    power: float

    def __post_init__(self) -> None:
        check_number("strength of a kernel", self.strength, above=0)
        check_number("power of a kernel", self.power, above=0)

    def log_constant(self, dimensions: int) -> float:
        """Return the logarithm of the integral of exp(-strength * |z|^power) over all z of so many dimensions."""
        half, ratio = dimensions / 2, dimensions / self.power
        sphere = math.log(2) + half * math.log(math.pi) - math.lgamma(half)
        return sphere + math.lgamma(ratio) - math.log(self.power) - ratio * math.log(self.strength)


def gaussian(width: float) -> Kernel:
    """Return the Gaussian kernel of that standard deviation."""
    check_number("width of a kernel", width, above=0)
    return Kernel(0.5 / width / width, 2.0)


def laplace(width: float) -> Kernel:
    """Return the Laplace kernel exp(-distance / width)."""
    check_number("width of a kernel", width, above=0)
    return Kernel(1 / width, 1.0)


def generalised_exponential(strength: float, power: float) -> Kernel:
    """Return the kernel exp(-strength * distance^power)."""
    return Kernel(strength, power)


class KernelMixture:
    """The kernels at some centres, and the mixture of all of them with equal weights.

    Args:
        centres: (M,) on the line, or (M, d).
        kernel: `gaussian(width)`, `laplace(width)` or `generalised_exponential(strength, power)`.

    >>> mixture = KernelMixture([-1.0, 1.0], gaussian(0.5))
    >>> mixture.density([0.0]).round(4)  # the normal density two standard deviations out, twice halved
    array([0.108])
    >>> mixture.on_grid(np.linspace(-4, 4, 101)).shape
    (2, 101)
    """

    def __init__(self, centres: ArrayLike, kernel: Kernel) -> None:
        check_kind("kernel", kernel, Kernel, "a Kernel such as theory.gaussian(0.5)")
        dimensions = np.ndim(centres)
        if dimensions not in (1, 2):
            raise ValueError(f"centres must be of shape (M,) or (M, d), got {np.shape(centres)}")
        self.centres = floats("centres", centres, dimensions).astype(np.float64)
        self.kernel = kernel

    def __len__(self) -> int:
        return len(self.centres)

    def kernels(self, points: ArrayLike) -> Array:
        """Return the (M, points) densities of the kernels, normalised over all space by closed form."""
        points = floats("points", points, self.centres.ndim).astype(np.float64)
        dimensions = 1 if self.centres.ndim == 1 else self.centres.shape[1]
        if points.ndim == 2 and points.shape[1] != dimensions:
            raise ValueError(f"points must have {dimensions} columns as centres do, got {points.shape[1]}")
        log_constant = self.kernel.log_constant(dimensions)

        def densities(centres: Array) -> Array:
            with np.errstate(under="ignore"):
                return np.exp(-self._energies(centres, points) - log_constant)

        return in_blocks(densities, self.centres, len(points) * dimensions, len(points))

    def density(self, points: ArrayLike) -> Array:
        """Return the density of the mixture at (n,) or (n, d) points, normalised over all space by closed form."""
        return np.asarray(self.kernels(points).mean(axis=0), dtype=np.float64)

    def on_grid(self, grid: ArrayLike) -> Array:
        """Return the (M, grid) densities of the kernels, each integrating to 1 by the trapezoid rule on the grid."""
        grid = increasing_grid(grid)
        if self.centres.ndim != 1:
            raise ValueError("centres must be on the line to be normalised on a grid; use kernels(points)")
        if self.centres.min() < grid[0] or self.centres.max() > grid[-1]:
            raise ValueError(f"centres must lie within the grid, from {grid[0]:g} to {grid[-1]:g}")
        weights = trapezoid_weights(grid)

        def densities(centres: Array) -> Array:
            energies = self._energies(centres, grid)
            # From the nearest point on, so that a kernel far narrower than the grid does not vanish from it.
            energies -= energies.min(axis=1, keepdims=True)
            with np.errstate(under="ignore"):
                values = np.exp(-energies)
                values /= (values * weights).sum(axis=1, keepdims=True)
            return np.asarray(values, dtype=np.float64)

        return in_blocks(densities, self.centres, len(grid), len(grid))

    def _energies(self, centres: Array, points: Array) -> Array:
        differences = np.abs(centres[:, np.newaxis] - points)
        distances = differences if differences.ndim == 2 else np.sqrt((differences**2).sum(axis=2))
        with np.errstate(over="ignore", under="ignore"):
            energies: Array = distances**self.kernel.power
            energies *= self.kernel.strength
        return energies
