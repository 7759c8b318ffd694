"""Activations and weights as `half` stores them: the former where kernels write them, the latter in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from greedy_ensembles.models.half import EXPONENTS, LARGEST, SCALE, NarrowWeight

_SCALE = tl.constexpr(SCALE)
_UNSCALE = tl.constexpr(1 / SCALE)
_LARGEST_STORED = tl.constexpr(LARGEST)
_SMALLEST_EXPONENT = tl.constexpr(EXPONENTS[0])
_LARGEST_EXPONENT = tl.constexpr(EXPONENTS[1])


@triton.jit
def stored(values, type: tl.constexpr):
    """Return activations, which are not negative, in the type of memory: half precision as `models.half` has it."""
    if type == tl.float16:
        values = values * _SCALE
        # Not a minimum: what is no number, or infinite, stays that.
        values = tl.where((values > _LARGEST_STORED) & (values < float("inf")), _LARGEST_STORED, values)
    return values.to(type)


@triton.jit
def _power(exponent):
    """Return two to the power of whole numbers from -126 to 127, by their place in a number of single precision."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _narrow_weight(
    weight,
    stored,
    unit,
    output_stride,
    input_stride,
    tap_stride,
    C: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Store all weights of an output, and their unit."""
    o = tl.program_id(0)
    j = tl.arange(0, BLOCK)  # pairs of (tap, channel), as they are stored
    inside = j < C * TAPS
    at = weight + o * output_stride + (j % C) * input_stride + (j // C) * tap_stride
    values = tl.load(at, mask=inside, other=0.0)
    largest = tl.max(tl.abs(values), 0)
    biased = largest.to(tl.int32, bitcast=True) >> 23
    exponent = tl.minimum(tl.maximum(biased - 126, _SMALLEST_EXPONENT), _LARGEST_EXPONENT)
    exponent = tl.where(biased == 255, 0, exponent)  # of what is infinite or no number
    tl.store(stored + o * C * TAPS + j, (values * _power(-exponent)).to(tl.float16), mask=inside)
    tl.store(unit + o, _power(exponent) * _UNSCALE)


def narrow_weight(weight: Tensor) -> NarrowWeight:
    """Return weights (outputs, inputs, side, side), whose taps are one stride apart, as they are stored."""
    outputs, inputs, side, _ = weight.shape
    stored = torch.empty((outputs, side, side, inputs), dtype=torch.float16, device=weight.device)
    unit = torch.empty(outputs, dtype=torch.float32, device=weight.device)
    strides = weight.stride(0), weight.stride(1), weight.stride(3)
    block = triton.next_power_of_2(inputs * side * side)
    _narrow_weight[(outputs,)](weight, stored, unit, *strides, inputs, side * side, block)
    return NarrowWeight(stored.permute(0, 3, 1, 2), unit)
