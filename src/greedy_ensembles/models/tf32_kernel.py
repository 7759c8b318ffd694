"""Rounding to TF32 inside kernels: to the nearest, as cuDNN does. Tensor cores alone cut, and shrink every product."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from greedy_ensembles.tf32 import allowed_in_convolutions


@triton.jit
def rounded(values, PRECISION: tl.constexpr):
    """Round single precision to TF32 where that is the precision of products."""
    if PRECISION == "tf32":
        bits = tl.inline_asm_elementwise(
            "cvt.rna.tf32.f32 $0, $1;", "=r,f", [values], dtype=tl.int32, is_pure=True, pack=1
        )
        values = bits.to(tl.float32, bitcast=True)
    return values


def precision(x: Tensor) -> str:
    """Return how factors of x's type are multiplied.

    Those of single precision are rounded to TF32 where that is allowed, or else split in two, whose three products are
    as good as single precision; others, and interpreted ones, are multiplied as they are.
    """
    return "tf32" if x.is_cuda and x.dtype == torch.float32 and allowed_in_convolutions() else "tf32x3"
