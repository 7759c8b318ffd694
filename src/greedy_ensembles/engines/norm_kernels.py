"""The passes of `norm` on a GPU: Triton kernels, and on how many programs they run.

Each kernel reads the activations once, in rows of contiguous channels. Sums go over chunks of rows to partial sums,
which a second, tiny kernel adds up in a fixed order: no atomics, so that the same input gives the same bits every time.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from greedy_ensembles.engines.norm import Coefficients, Given, Sums

_PROGRAMS = 264  # partial sums at most: two for each processor of an H200, all at once, and few to add up
_TILE = 4096  # elements of a tile
_WARPS = 8  # of a program: enough loads under way to keep memory busy


@triton.jit
def norm_moments(x, partial, rows, chunk, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Sum x - k and its square over a chunk of rows, k being the first row, so that large means cost no digits."""
    program, channels = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    k = tl.load(x + channels).to(tl.float32)
    total = tl.zeros((BR, BC), tl.float32)
    squares = tl.zeros((BR, BC), tl.float32)
    start = program * chunk
    stop = tl.minimum(start + chunk, rows)
    for first in range(start, stop, BR):
        r = first + tl.arange(0, BR)
        inside = (r < stop)[:, None]
        v = tl.load(x + r[:, None] * C + channels[None, :], mask=inside, other=0.0).to(tl.float32)
        d = tl.where(inside, v - k[None, :], 0.0)
        total += d
        squares += d * d
    tl.store(partial + (program * 2) * C + channels, tl.sum(total, 0))
    tl.store(partial + (program * 2 + 1) * C + channels, tl.sum(squares, 0))


@triton.jit
def norm_finish_moments(
    x,
    partial,
    programs,
    rows,
    weight,
    running_mean,
    running_var,
    tracked,
    out,
    momentum,
    eps,
    FROZEN: tl.constexpr,
    C: tl.constexpr,
    P: tl.constexpr,
    BC: tl.constexpr,
):
    """Add up the partial sums, update the running statistics, and write scale, center and rstd of both groups."""
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    p = tl.arange(0, P)
    there = (p < programs)[:, None]
    at = (p[:, None] * 2) * C + channels[None, :]
    total = tl.sum(tl.load(partial + at, mask=there, other=0.0), 0)
    squares = tl.sum(tl.load(partial + at + C, mask=there, other=0.0), 0)
    k = tl.load(x + channels).to(tl.float32)
    w = tl.load(weight + channels)
    offset = total / rows
    mean = k + offset
    var = squares / rows - offset * offset
    var = tl.where(var < 0, 0.0, var)  # by rounding; not tl.maximum, which would make 0 of what is no number, too
    rm = tl.load(running_mean + channels)
    rv = tl.load(running_var + channels)
    rm += momentum * (mean - rm)
    rv += momentum * (var * (rows / tl.maximum(rows - 1, 1).to(tl.float32)) - rv)
    tl.store(running_mean + channels, rm)
    tl.store(running_var + channels, rv)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)
    rstd = 1.0 / tl.sqrt(var + eps)
    others_center = mean
    others_rstd = rstd
    if FROZEN:
        others_center = rm
        others_rstd = 1.0 / tl.sqrt(rv + eps)
    tl.store(out + channels, w * rstd)
    tl.store(out + C + channels, w * others_rstd)
    tl.store(out + 2 * C + channels, mean)
    tl.store(out + 3 * C + channels, others_center)
    tl.store(out + 4 * C + channels, rstd)
    tl.store(out + 5 * C + channels, others_rstd)


@triton.jit
def _rows_of(program, first_programs, chunk, rows, count):
    """Return whether a program's rows are others than the first `count`, where they begin, and where its group ends.

    Programs below `first_programs` share the first rows, the rest the others: all rows of a program are of one group.
    """
    other = program >= first_programs
    start = tl.where(other, count + (program - first_programs) * chunk, program * chunk)
    return other, start, tl.where(other, rows, count)


@triton.jit
def _coefficients(by, bias, other, channels, C: tl.constexpr):
    """Return scale, center, rstd and bias of a group's channels, each a row."""
    at = by + tl.where(other, C, 0) + channels
    b = tl.load(bias + channels)
    return tl.load(at)[None, :], tl.load(at + 2 * C)[None, :], tl.load(at + 4 * C)[None, :], b[None, :]


@triton.jit
def norm_output(x, y, by, bias, rows, count, first_programs, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Normalise by the coefficients of a row's group, and activate."""
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    other, start, stop = _rows_of(tl.program_id(0), first_programs, BR, rows, count)
    scale, center, _, b = _coefficients(by, bias, other, channels, C)
    r = tl.arange(0, BR)
    at = r[:, None] * C + channels[None, :]
    inside = (r < stop - start)[:, None]
    base = start.to(tl.int64) * C
    v = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32)
    z = (v - center) * scale + b
    tl.store(y + base + at, tl.where(z <= 0, 0.0, z).to(y.dtype.element_ty), mask=inside)


@triton.jit
def norm_gradient_sums(
    x, dy, by, bias, partial, rows, count, chunk, first_programs, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Sum g and g h over a chunk of rows."""
    program, channels = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    other, start, end = _rows_of(program, first_programs, chunk, rows, count)
    stop = tl.minimum(start + chunk, end)
    scale, center, _, b = _coefficients(by, bias, other, channels, C)
    total = tl.zeros((BR, BC), tl.float32)
    products = tl.zeros((BR, BC), tl.float32)
    for first in range(start, stop, BR):
        r = first + tl.arange(0, BR)
        at = r[:, None] * C + channels[None, :]
        inside = (r < stop)[:, None]
        d = tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - center
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.where(d * scale + b > 0, g, 0.0)
        total += g
        products += g * d
    tl.store(partial + (program * 2) * C + channels, tl.sum(total, 0))
    # How many of these programs run at once is limited by registers: 1/std is not in the loop.
    rstd = tl.load(by + tl.where(other, C, 0) + 4 * C + channels)
    tl.store(partial + (program * 2 + 1) * C + channels, tl.sum(products, 0) * rstd)


@triton.jit
def norm_finish_sums(partial, sums, free_programs, programs, C: tl.constexpr, P: tl.constexpr, BC: tl.constexpr):
    """Add up the partial sums; programs below `free_programs` have rows that are not frozen."""
    channels = tl.program_id(0) * BC + tl.arange(0, BC)
    p = tl.arange(0, P)[:, None]
    at = (p * 2) * C + channels[None, :]
    total = tl.load(partial + at, mask=p < programs, other=0.0)
    products = tl.load(partial + at + C, mask=p < programs, other=0.0)
    free = p < free_programs
    free_total = tl.sum(tl.where(free, total, 0.0), 0)
    free_products = tl.sum(tl.where(free, products, 0.0), 0)
    frozen_total = tl.sum(tl.where(free, 0.0, total), 0)
    frozen_products = tl.sum(tl.where(free, 0.0, products), 0)
    tl.store(sums + channels, free_total)
    tl.store(sums + C + channels, free_products)
    tl.store(sums + 2 * C + channels, free_products + frozen_products)
    tl.store(sums + 3 * C + channels, free_total + frozen_total)


@triton.jit
def norm_gradient(
    x, dy, dx, by, bias, sums, rows, count, first_programs, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Write the gradient with respect to x."""
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    other, start, stop = _rows_of(tl.program_id(0), first_programs, BR, rows, count)
    scale, center, rstd, b = _coefficients(by, bias, other, channels, C)
    # What the mean and variance of the first rows pass on, which is nothing to the others.
    mean = tl.where(other, 0.0, tl.load(sums + channels) / count)[None, :]
    slope = tl.where(other, 0.0, tl.load(sums + C + channels) / count)[None, :] * rstd
    r = tl.arange(0, BR)
    at = r[:, None] * C + channels[None, :]
    inside = (r < stop - start)[:, None]
    base = start.to(tl.int64) * C
    d = tl.load(x + base + at, mask=inside, other=0.0).to(tl.float32) - center
    g = tl.load(dy + base + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.where(d * scale + b > 0, g, 0.0)
    total = scale * (g - mean - d * slope)
    tl.store(dx + base + at, total.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def norm_prediction(x, y, weight, bias, mean, variance, eps, rows, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Normalise by given statistics, and activate."""
    r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    channels = tl.program_id(1) * BC + tl.arange(0, BC)
    scale = tl.load(weight + channels).to(tl.float32) / tl.sqrt(tl.load(variance + channels).to(tl.float32) + eps)
    center = tl.load(mean + channels).to(tl.float32)
    b = tl.load(bias + channels).to(tl.float32)
    at = r[:, None] * C + channels[None, :]
    inside = (r < rows)[:, None]
    v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    z = (v - center[None, :]) * scale[None, :] + b[None, :]
    z = tl.where(z < 0, 0.0, z)  # not a maximum, which would make 0 of what is no number
    tl.store(y + at, z.to(y.dtype.element_ty), mask=inside)


class TritonPasses:
    """The passes on a GPU; x is (rows, channels), contiguous, `count` its first rows."""

    @staticmethod
    def moments(
        x: Tensor,
        count: int,
        frozen: bool,
        weight: Tensor,
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
        norm_moments[(programs, channels // width)](x, partial, count, chunk, channels, height, width, num_warps=_WARPS)
        narrow = min(width, 8)
        norm_finish_moments[(channels // narrow,)](
            x,
            partial,
            programs,
            count,
            weight,
            *buffers,
            out,
            momentum,
            eps,
            frozen,
            channels,
            triton.next_power_of_2(programs),
            narrow,
        )
        return Coefficients(*out.unbind())

    @staticmethod
    def output(x: Tensor, count: int, by: Coefficients, bias: Tensor, y: Tensor) -> None:
        """Write the activated, normalised rows into y."""
        grid, sizes = _pointwise(x, count)
        norm_output[grid](x, y, by.scale, bias, *sizes, num_warps=_WARPS)

    @staticmethod
    def gradient_sums(x: Tensor, gradient: Tensor, count: int, frozen: bool, by: Coefficients, bias: Tensor) -> Sums:
        """Return sums of the gradient over rows."""
        rows, channels = x.shape
        height, width = _tile(channels)
        chunk, _ = _chunks(rows, height, channels // width)
        first, others = triton.cdiv(count, chunk), triton.cdiv(rows - count, chunk)
        programs = first + others
        partial = x.new_empty((programs, 2, channels), dtype=torch.float32)
        sums = x.new_empty((4, channels), dtype=torch.float32)
        norm_gradient_sums[(programs, channels // width)](
            x, gradient, by.scale, bias, partial, rows, count, chunk, first, channels, height, width, num_warps=_WARPS
        )
        narrow = min(width, 8)
        norm_finish_sums[(channels // narrow,)](
            partial, sums, first if frozen else programs, programs, channels, triton.next_power_of_2(programs), narrow
        )
        return Sums(*sums.unbind())

    @staticmethod
    def gradient(x: Tensor, gradient: Tensor, count: int, by: Coefficients, bias: Tensor, sums: Sums) -> Tensor:
        """Return the gradient with respect to x."""
        dx = torch.empty_like(x)
        grid, sizes = _pointwise(x, count)
        norm_gradient[grid](x, gradient, dx, by.scale, bias, sums.mean, *sizes, num_warps=_WARPS)
        return dx

    @staticmethod
    def prediction(x: Tensor, given: Given) -> Tensor:
        """Return rows normalised by given statistics, and activated."""
        y = torch.empty_like(x)
        rows, channels = x.shape
        height, width = _tile(channels)
        grid = (triton.cdiv(rows, height), channels // width)
        norm_prediction[grid](x, y, *given, rows, channels, height, width, num_warps=_WARPS)
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
