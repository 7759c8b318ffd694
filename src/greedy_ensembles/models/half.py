"""Single precision in half of its memory, between a norm and the convolution that reads it, in predictions.

Where TF32 is allowed, factors of a product are rounded to ten bits behind the point, which half precision has as well.
What it lacks is range, so powers of two move it to where numbers are.

- Activations that a norm leaves are about 1. Stored are 2^-6 of them, which has all ten bits from 0.004 to four
  million: what is smaller has an error of at most 2e-6, what is larger is cut off; what is infinite stays infinite.
- Weights in front of a norm may be of any size, since it divides by it. Those of each output are stored as fractions of
  the power of two next above the largest of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from greedy_ensembles.models.kernels import on_device_of

#: What is stored of an activation.
SCALE = 2.0**-6
#: Of finite numbers in half precision.
LARGEST = torch.finfo(torch.float16).max
#: Of powers of two that weights are fractions of, smallest and largest: their inverses and their units are numbers.
EXPONENTS = -125, 121


@dataclass(frozen=True)
class Narrow:
    """Activations as they are stored: not a tensor, so that nobody takes them for what they stand for."""

    stored: Tensor

    def widened(self) -> Tensor:
        """Return the activations in single precision."""
        return self.stored.float() / SCALE


class NarrowWeight(NamedTuple):
    """Weights as they are stored, channels last, and the unit of their products with stored activations."""

    stored: Tensor
    unit: Tensor  #: a power of two for each output; what a convolution of what is stored is to be multiplied by


def narrow(activations: Tensor) -> Tensor:
    """Return what is stored of activations, which are not negative."""
    scaled = activations * SCALE
    return torch.where(scaled.isfinite(), scaled.clamp(max=LARGEST), scaled).half()


def narrow_weight(weight: Tensor) -> NarrowWeight:
    """Return weights (outputs, inputs, side, side) as they are stored."""
    if weight.is_cuda:
        from greedy_ensembles.models.half_kernel import narrow_weight as launch  # where there is a GPU, there is Triton

        with on_device_of(weight):
            return launch(weight)
    largest = weight.abs().amax(dim=(1, 2, 3))
    exponent = torch.where(largest.isfinite(), torch.frexp(largest).exponent.clamp(*EXPONENTS), 0)
    stored = torch.ldexp(weight, -exponent[:, None, None, None]).half().contiguous(memory_format=torch.channels_last)
    return NarrowWeight(stored, torch.ldexp(torch.ones_like(largest), exponent) / SCALE)
