"""The Triton kernels of `norm_passes`: each reads the activations once, in rows of contiguous channels.

Sums go over chunks of rows to partial sums, which a second, tiny kernel adds up in a fixed order: no atomics, so that
the same input gives the same bits every time.
"""

import triton
import triton.language as tl


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
    shift,
    running_mean,
    running_var,
    tracked,
    out,
    momentum,
    eps,
    FROZEN: tl.constexpr,
    HAS_SHIFT: tl.constexpr,
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
    s = tl.zeros((BC,), tl.float32)
    if HAS_SHIFT:
        s = tl.load(shift + channels)
    offset = total / rows
    mean = k + offset
    var = squares / rows - offset * offset
    var = tl.where(var < 0, 0.0, var)  # by rounding; not tl.maximum, which would make 0 of what is no number, too
    rm = tl.load(running_mean + channels)
    rv = tl.load(running_var + channels)
    rm += momentum * (mean + s - rm)
    rv += momentum * (var * (rows / tl.maximum(rows - 1, 1).to(tl.float32)) - rv)
    tl.store(running_mean + channels, rm)
    tl.store(running_var + channels, rv)
    if tl.program_id(0) == 0:
        tl.store(tracked, tl.load(tracked) + 1)
    rstd = 1.0 / tl.sqrt(var + eps)
    others_center = mean
    others_rstd = rstd
    if FROZEN:
        others_center = rm - s
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
def norm_finish_sums(
    partial,
    by,
    sums,
    free_programs,
    programs,
    C: tl.constexpr,
    P: tl.constexpr,
    BC: tl.constexpr,
):
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
    tl.store(sums + 4 * C + channels, frozen_total * tl.load(by + C + channels))


@triton.jit
def norm_gradient(
    x,
    dy,
    dx,
    by,
    bias,
    sums,
    rows,
    count,
    first_programs,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
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
def norm_prediction(
    x,
    y,
    weight,
    bias,
    mean,
    variance,
    eps,
    rows,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
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
