"""The passes of `norm` on a GPU: which kernels of `norm_kernels` run, on how many programs."""

import torch
import triton
from torch import Tensor

from greedy_ensembles.engines import norm_kernels as kernels
from greedy_ensembles.engines.norm import Coefficients, Given, Sums

_PROGRAMS = 264  # partial sums at most: two for each processor of an H200, all at once, and few to add up
_TILE = 4096  # elements of a tile
_WARPS = 8  # of a program: enough loads under way to keep memory busy


class TritonPasses:
    """The passes on a GPU; x is (rows, channels), contiguous, `count` its first rows."""

    @staticmethod
    def moments(
        x: Tensor,
        count: int,
        frozen: bool,
        weight: Tensor,
        shift: Tensor | None,
        buffers: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Coefficients:
        """Update the running statistics, and return what to normalise by."""
        channels = x.shape[1]
        height, width = _tile(channels)
        chunk, programs = _chunks(count, height, channels // width)
        partial = x.new_empty((programs, 2, channels), dtype=torch.float32)
        out = x.new_empty((3, 2, channels), dtype=torch.float32)
        kernels.norm_moments[(programs, channels // width)](
            x, partial, count, chunk, channels, height, width, num_warps=_WARPS
        )
        narrow = min(width, 8)
        kernels.norm_finish_moments[(channels // narrow,)](
            x,
            partial,
            programs,
            count,
            weight,
            weight if shift is None else shift,
            *buffers,
            out,
            momentum,
            eps,
            frozen,
            shift is not None,
            channels,
            triton.next_power_of_2(programs),
            narrow,
        )
        return Coefficients(*out.unbind())

    @staticmethod
    def output(x: Tensor, count: int, by: Coefficients, bias: Tensor, y: Tensor) -> None:
        """Write the activated, normalised rows into y."""
        grid, sizes = _pointwise(x, count)
        kernels.norm_output[grid](x, y, by.scale, bias, *sizes, num_warps=_WARPS)

    @staticmethod
    def gradient_sums(x: Tensor, gradient: Tensor, count: int, frozen: bool, by: Coefficients, bias: Tensor) -> Sums:
        """Return sums of the gradient over rows."""
        rows, channels = x.shape
        height, width = _tile(channels)
        chunk, _ = _chunks(rows, height, channels // width)
        first, others = triton.cdiv(count, chunk), triton.cdiv(rows - count, chunk)
        programs = first + others
        partial = x.new_empty((programs, 2, channels), dtype=torch.float32)
        sums = x.new_empty((5, channels), dtype=torch.float32)
        kernels.norm_gradient_sums[(programs, channels // width)](
            x, gradient, by.scale, bias, partial, rows, count, chunk, first, channels, height, width, num_warps=_WARPS
        )
        narrow = min(width, 8)
        kernels.norm_finish_sums[(channels // narrow,)](
            partial,
            by.scale,
            sums,
            first if frozen else programs,
            programs,
            channels,
            triton.next_power_of_2(programs),
            narrow,
        )
        return Sums(*sums.unbind())

    @staticmethod
    def gradient(x: Tensor, gradient: Tensor, count: int, by: Coefficients, bias: Tensor, sums: Sums) -> Tensor:
        """Return the gradient with respect to x."""
        dx = torch.empty_like(x)
        grid, sizes = _pointwise(x, count)
        kernels.norm_gradient[grid](x, gradient, dx, by.scale, bias, sums.mean, *sizes, num_warps=_WARPS)
        return dx

    @staticmethod
    def prediction(x: Tensor, given: Given) -> Tensor:
        """Return rows normalised by given statistics, and activated."""
        y = torch.empty_like(x)
        rows, channels = x.shape
        height, width = _tile(channels)
        grid = (triton.cdiv(rows, height), channels // width)
        kernels.norm_prediction[grid](x, y, *given, rows, channels, height, width, num_warps=_WARPS)
        return y


def _pointwise(x: Tensor, count: int) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the grid of a pass that treats every tile by itself, and the sizes that its kernel is given."""
    rows, channels = x.shape
    height, width = _tile(channels)
    first, others = triton.cdiv(count, height), triton.cdiv(rows - count, height)
    return (first + others, channels // width), (rows, count, first, channels, height, width)


def _tile(channels: int) -> tuple[int, int]:
    """Return rows and channels of a tile; its channels divide those of x."""
    width = min(channels & -channels, 64)
    return max(_TILE // width, 1), width


def _chunks(rows: int, height: int, blocks: int) -> tuple[int, int]:
    """Return how many rows a program sums, whole tiles of them, and how many programs that makes."""
    programs = max(_PROGRAMS // blocks, 1)
    chunk = triton.cdiv(triton.cdiv(rows, programs), height) * height
    return chunk, triton.cdiv(rows, chunk)
