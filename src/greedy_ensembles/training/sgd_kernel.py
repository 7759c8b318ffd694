"""The step of `sgd` as a Triton kernel over flat memory."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048  # numbers of a program


@triton.jit
def _sgd(weight, buffer, gradient, copy, rate, momentum, decay, elements, NESTEROV: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < elements
    w = tl.load(weight + i, mask=inside, other=0.0)
    d = tl.load(gradient + i, mask=inside, other=0.0).to(tl.float32) + decay * w
    b = momentum * tl.load(buffer + i, mask=inside, other=0.0) + d
    if NESTEROV:
        d += momentum * b
    else:
        d = b
    w -= tl.load(rate) * d
    tl.store(buffer + i, b, mask=inside)
    tl.store(weight + i, w, mask=inside)
    tl.store(copy + i, w.to(copy.dtype.element_ty), mask=inside)


def launch(
    weight: Tensor,
    buffer: Tensor,
    gradient: Tensor,
    copy: Tensor,
    rate: Tensor,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None:
    """Take a step on tensors that lie alike in memory, without gaps."""
    grid = (triton.cdiv(weight.numel(), _BLOCK),)
    _sgd[grid](weight, buffer, gradient, copy, rate, momentum, decay, weight.numel(), nesterov, _BLOCK)
