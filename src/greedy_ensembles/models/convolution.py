"""Convolutions without bias that keep the resolution, or divide it by their stride: those of residual networks.

Networks for small images have few channels, for which cuDNN's kernels leave most of a GPU idle. There the layer runs
kernels of its own (`convolution_function`); elsewhere it is PyTorch's.
"""

import torch
from torch import Tensor, nn

from greedy_ensembles.models.convolution_function import can_convolve, convolve


class Convolution(nn.Conv2d):
    """A convolution of an odd `side`, with as much padding as keeps the resolution at stride 1."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, side, stride, side // 2, bias=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Return the convolution of x, plus the residual."""
        if x.is_cuda and self.stride == (1, 1):
            dtype = _type_of_products(x, self.weight)
            if can_convolve(x, self.weight, residual, dtype):
                return convolve(x.to(dtype), self.weight.to(dtype), residual)
        change = super().forward(x)
        return change if residual is None else change + residual


def _type_of_products(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the type in which PyTorch's own convolution would run: autocast tells that one alone."""
    if torch.is_autocast_enabled("cuda") and torch.float64 not in (x.dtype, weight.dtype):
        return torch.get_autocast_dtype("cuda")
    return x.dtype if x.dtype == weight.dtype else None
