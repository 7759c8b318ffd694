"""Single precision in half of its memory, between a norm and the convolution that reads it, in predictions.

Where TF32 is allowed, factors of a product are rounded to ten bits behind the point, which half precision has as well.
What it lacks is range, so powers of two move it to where numbers are: activations that a norm leaves are about 1, and
may be as large as four million; weights may be as small as a millionth, and as large as a thousand.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

#: Of what is stored of an activation; weights, which it is multiplied with, are stored as so many times larger.
SCALE = 2.0**-6
#: Of numbers in half precision. What would be beyond is stored as this.
LARGEST = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Narrow:
    """Activations as they are stored: not a tensor, so that nobody takes them for what they stand for."""

    stored: Tensor

    def widened(self) -> Tensor:
        """Return the activations in single precision."""
        return self.stored.float() / SCALE


def narrow(activations: Tensor) -> Tensor:
    """Return what is stored of activations."""
    return (activations * SCALE).clamp(-LARGEST, LARGEST).half()


def narrow_weight(weight: Tensor) -> Tensor:
    """Return weights for activations that are stored, channels last."""
    out = torch.empty_like(weight, dtype=torch.float16, memory_format=torch.channels_last)
    return torch.mul(weight, 1 / SCALE, out=out)
