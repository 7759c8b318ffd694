"""The Triton kernels of `convolution_passes`, for images that lie channels last.

A convolution is a product of two matrices: one row a pixel, one column j a pair of (tap, channel), of which no copy is
made. What tap t sees from pixel p is pixel p + t, a fixed distance away, so that a tile of that matrix is a load with
a mask where taps leave the image. Taps that see the same pixel find it in the cache. With channels enough for a tile of
one tap, taps come one after the other, and whether they leave the image is asked once a pixel; the few channels of a
network's input are taken for all taps together.

The gradient of a weight sums over chunks of pixels to partial sums, which a second kernel adds up in a fixed order: no
atomics, so that the same input gives the same bits every time.
"""

import triton
import triton.language as tl

from greedy_ensembles.models.convolution_tiles import FEW
from greedy_ensembles.models.half_kernel import stored
from greedy_ensembles.models.tf32_kernel import rounded

_FEW = tl.constexpr(FEW)


@triton.jit
def _source(p, H: tl.constexpr, W: tl.constexpr, STRIDE: tl.constexpr):
    """Return which pixels of the input those of the output are taken from, their rows and columns."""
    if STRIDE == 1:
        row = (p // W) % H
        column = p % W
        at = p
    else:
        HO: tl.constexpr = (H - 1) // STRIDE + 1
        WO: tl.constexpr = (W - 1) // STRIDE + 1
        row = (p // WO) % HO * STRIDE
        column = p % WO * STRIDE
        at = (p // (HO * WO) * H + row) * W + column
    return at, row, column


@triton.jit
def _patches(p, there, row, column, x, j, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SIDE: tl.constexpr):
    """Return what columns j = (tap, channel) see from pixels p that are there: 0 outside the image."""
    inside = there[:, None] & (j < SIDE * SIDE * C)[None, :]
    if SIDE == 1:
        at = p[:, None] * C + j[None, :]
    else:
        tap = j // C
        down = tap // SIDE - SIDE // 2
        right = tap % SIDE - SIDE // 2
        at = p[:, None] * C + ((down * W + right) * C + j % C)[None, :]
        rows = row[:, None] + down[None, :]
        columns = column[:, None] + right[None, :]
        inside = inside & (rows >= 0) & (rows < H) & (columns >= 0) & (columns < W)
    # Copies ahead of their use would go around the cache in which neighbouring taps find what they share.
    return tl.load(x + at, mask=inside, other=0.0, cache_modifier=".ca")


@triton.jit
def _seen(
    x,
    p,
    inside,
    row,
    column,
    down,
    right,
    c,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Return channels c of the pixels that lie `down` and `right` of pixels p: 0 outside the image."""
    if SIDE > 1:
        inside = inside & (row + down >= 0) & (row + down < H) & (column + right >= 0) & (column + right < W)
    at = (p + down * W + right)[:, None] * C + c[None, :]
    return tl.load(x + at, mask=inside[:, None] & (c < C)[None, :], other=0.0, cache_modifier=".ca")


@triton.jit
def _channels(values, o, OUT: tl.constexpr):
    return tl.load(values + o, mask=o < OUT, other=1.0).to(tl.float32)[None, :]


@triton.jit
def _products(values, factors, total, PRECISION: tl.constexpr):
    """Return the total plus the product of two tiles."""
    return tl.dot(rounded(values, PRECISION), rounded(factors, PRECISION), total, input_precision=PRECISION)


@triton.jit
def convolution(
    x,
    weight,
    unit,
    residual,
    y,
    norm_weight,
    norm_bias,
    norm_mean,
    norm_variance,
    norm_eps,
    pixels,
    output_stride,
    input_stride,
    tap_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    SIDE: tl.constexpr,
    STRIDE: tl.constexpr,
    UNIT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NORM: tl.constexpr,
    PRECISION: tl.constexpr,
    BP: tl.constexpr,
    BO: tl.constexpr,
    BJ: tl.constexpr,
):
    """Convolve; take in units, add a residual, normalise and activate where asked to, before the one rounding."""
    p = tl.program_id(0) * BP + tl.arange(0, BP)
    o = tl.program_id(1) * BO + tl.arange(0, BO)
    total = tl.zeros((BP, BO), tl.float32)
    there = p < pixels
    source, row, column = _source(p, H, W, STRIDE)
    if C < _FEW:
        for first in range(0, SIDE * SIDE * C, BJ):
            j = first + tl.arange(0, BJ)
            values = _patches(source, there, row, column, x, j, H, W, C, SIDE)
            at = ((j // C) * tap_stride + (j % C) * input_stride)[:, None] + (o * output_stride)[None, :]
            factors = tl.load(weight + at, mask=(j < SIDE * SIDE * C)[:, None] & (o < OUT)[None, :], other=0.0)
            total = _products(values, factors, total, PRECISION)
    else:
        for tap in tl.static_range(SIDE * SIDE):
            for first in range(0, C, BJ):
                c = first + tl.arange(0, BJ)
                down: tl.constexpr = tap // SIDE - SIDE // 2
                right: tl.constexpr = tap % SIDE - SIDE // 2
                values = _seen(x, source, there, row, column, down, right, c, H, W, C, SIDE)
                at = tap * tap_stride + (c * input_stride)[:, None] + (o * output_stride)[None, :]
                factors = tl.load(weight + at, mask=(c < C)[:, None] & (o < OUT)[None, :], other=0.0)
                total = _products(values, factors, total, PRECISION)
    at = p[:, None] * OUT + o[None, :]
    inside = there[:, None] & (o < OUT)[None, :]
    if UNIT:
        total *= _channels(unit, o, OUT)
    if RESIDUAL:
        total += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = _channels(norm_weight, o, OUT) / tl.sqrt(_channels(norm_variance, o, OUT) + norm_eps)
        total = (total - _channels(norm_mean, o, OUT)) * scale + _channels(norm_bias, o, OUT)
        total = tl.where(total < 0, 0.0, total)  # not a maximum, which would make 0 of what is no number
        total = stored(total, y.dtype.element_ty)
    tl.store(y + at, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def convolution_sums_by_row(
    x,
    gradient,
    partial,
    pixels,
    chunk,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    SIDE: tl.constexpr,
    BP: tl.constexpr,
    BO: tl.constexpr,
    BJ: tl.constexpr,
):
    """What `convolution_sums` does, for the taps of a row together, which share the gradient, and BJ channels."""
    program = tl.program_id(0)
    blocks: tl.constexpr = (C + BJ - 1) // BJ
    tap_row = tl.program_id(1) // blocks
    down = tap_row - SIDE // 2
    c = (tl.program_id(1) % blocks) * BJ + tl.arange(0, BJ)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    start = program * chunk
    stop = tl.minimum(start + chunk, pixels)
    left = tl.zeros((BJ, BO), tl.float32)
    middle = tl.zeros((BJ, BO), tl.float32)
    right = tl.zeros((BJ, BO), tl.float32)
    for first in range(start, stop, BP):
        p = first + tl.arange(0, BP)
        inside = p < stop
        _, row, column = _source(p, H, W, 1)
        at = p[:, None] * OUT + o[None, :]
        g = tl.load(gradient + at, mask=inside[:, None] & (o < OUT)[None, :], other=0.0)
        values = _seen(x, p, inside, row, column, down, 0, c, H, W, C, SIDE)
        middle = tl.dot(tl.trans(values), g, middle, input_precision="tf32")
        if SIDE == 3:
            values = _seen(x, p, inside, row, column, down, -1, c, H, W, C, SIDE)
            left = tl.dot(tl.trans(values), g, left, input_precision="tf32")
            values = _seen(x, p, inside, row, column, down, 1, c, H, W, C, SIDE)
            right = tl.dot(tl.trans(values), g, right, input_precision="tf32")
    out = partial + ((program * OUT + o[None, :]) * SIDE * SIDE + tap_row * SIDE) * C + c[:, None]
    there = (c < C)[:, None] & (o < OUT)[None, :]
    if SIDE == 3:
        tl.store(out, left, mask=there)
        tl.store(out + C, middle, mask=there)
        tl.store(out + 2 * C, right, mask=there)
    else:
        tl.store(out, middle, mask=there)


@triton.jit
def convolution_sums(
    x,
    gradient,
    partial,
    pixels,
    chunk,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    OUT: tl.constexpr,
    SIDE: tl.constexpr,
    BP: tl.constexpr,
    BO: tl.constexpr,
    BJ: tl.constexpr,
):
    """Sum products of patches and gradients over a chunk of pixels; partial sums are (programs, OUT, taps, C)."""
    program = tl.program_id(0)
    j = tl.program_id(1) * BJ + tl.arange(0, BJ)
    o = tl.program_id(2) * BO + tl.arange(0, BO)
    start = program * chunk
    stop = tl.minimum(start + chunk, pixels)
    total = tl.zeros((BJ, BO), tl.float32)
    for first in range(start, stop, BP):
        p = first + tl.arange(0, BP)
        source, row, column = _source(p, H, W, 1)
        values = _patches(source, p < stop, row, column, x, j, H, W, C, SIDE)
        inside = (p < stop)[:, None] & (o < OUT)[None, :]
        g = tl.load(gradient + p[:, None] * OUT + o[None, :], mask=inside, other=0.0)
        total = tl.dot(tl.trans(values), g, total, input_precision="tf32")
    columns: tl.constexpr = SIDE * SIDE * C
    at = (program * OUT + o[None, :]) * columns + j[:, None]
    tl.store(partial + at, total, mask=(j < columns)[:, None] & (o < OUT)[None, :])


@triton.jit
def convolution_add_up(partial, out, programs, elements, BR: tl.constexpr, BLOCK: tl.constexpr):
    """Add up the partial sums of all programs."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BR, BLOCK), tl.float32)
    for first in range(0, programs, BR):
        r = first + tl.arange(0, BR)
        inside = (r < programs)[:, None] & (i < elements)[None, :]
        total += tl.load(partial + r[:, None] * elements + i[None, :], mask=inside, other=0.0)
    tl.store(out + i, tl.sum(total, 0).to(out.dtype.element_ty), mask=i < elements)
