"""Max pooling over squares of 2 x 2 and its gradient as Triton kernels, for images of even sides, channels last.

The gradient finds the largest value again instead of being told where it was, which would be one more array to move.
Of equal values it takes the first in reading order, as PyTorch does.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # results of a program


@triton.jit
def _corner(i, C: tl.constexpr, W: tl.constexpr):
    """Return where the square of result i begins: results and x count channels, columns, rows, images in this order."""
    c = i % C
    column = (i // C) % W
    row = i // (C * W)  # of all images: their heights are even
    return (row * 2 * (2 * W) + column * 2) * C + c


@triton.jit
def _value(at, inside):
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _largest(a, b):
    """Return the larger of two; of what is no number, none."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _pool(x, y, elements, C: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < elements
    at = x + _corner(i, C, W)
    below = 2 * W * C
    upper = _largest(_value(at, inside), _value(at + C, inside))
    lower = _largest(_value(at + below, inside), _value(at + below + C, inside))
    tl.store(y + i, _largest(upper, lower).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _pool_gradient(x, dy, dx, elements, C: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < elements
    corner = _corner(i, C, W)
    below = 2 * W * C
    a = _value(x + corner, inside)
    b = _value(x + corner + C, inside)
    c = _value(x + corner + below, inside)
    d = _value(x + corner + below + C, inside)
    g = _value(dy + i, inside)
    largest = _largest(_largest(a, b), _largest(c, d))
    is_a = a == largest
    is_b = (b == largest) & (a != largest)
    is_c = (c == largest) & (a != largest) & (b != largest)
    is_d = (a != largest) & (b != largest) & (c != largest)
    tl.store(dx + corner, tl.where(is_a, g, 0.0).to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + corner + C, tl.where(is_b, g, 0.0).to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + corner + below, tl.where(is_c, g, 0.0).to(dx.dtype.element_ty), mask=inside)
    tl.store(dx + corner + below + C, tl.where(is_d, g, 0.0).to(dx.dtype.element_ty), mask=inside)


def pool(x: Tensor) -> Tensor:
    """Return the largest value of each square of x (n, channels, height, width)."""
    n, channels, height, width = x.shape
    y = torch.empty(
        (n, channels, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    _pool[(triton.cdiv(y.numel(), _BLOCK),)](x, y, y.numel(), channels, width // 2, _BLOCK)
    return y


def pool_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with respect to x, given that of its pooled values."""
    dx = torch.empty_like(x)
    grid = (triton.cdiv(gradient.numel(), _BLOCK),)
    _pool_gradient[grid](x, gradient, dx, gradient.numel(), x.shape[1], x.shape[3] // 2, _BLOCK)
    return dx
