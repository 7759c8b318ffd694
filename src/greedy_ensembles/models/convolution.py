"""Convolutions without bias that keep the resolution, or divide it by their stride: those of residual networks.

Networks for small images have few channels, for which cuDNN's kernels leave most of a GPU idle. There the layer runs
kernels of its own (`convolution_function`); elsewhere it is PyTorch's.
"""

import torch
from torch import Tensor, nn

from greedy_ensembles.models.convolution_function import can_convolve, convolve, convolve_prediction
from greedy_ensembles.models.norm import NormReLU
from greedy_ensembles.models.norm_function import Given


class Convolution(nn.Conv2d):
    """A convolution of an odd `side`, with as much padding as keeps the resolution at stride 1."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, side, stride, side // 2, bias=False)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: NormReLU | None = None) -> Tensor:
        """Return the convolution of x, plus the residual, after the layer that follows where one is given."""
        dtype, stride = _type_of_products(x, self.weight), self.stride[0]
        if can_convolve(x, self.weight, residual, dtype, stride):
            x, weight = x.to(dtype), self.weight.to(dtype)
            if not torch.is_grad_enabled():
                given = None if norm is None or norm.training else Given.by(norm)
                y = convolve_prediction(x, weight, residual, stride, given)
                return y if norm is None or given is not None else norm(y)
            y = convolve(x, weight, residual)
        else:
            y = super().forward(x)
            y = y if residual is None else y + residual
        return y if norm is None else norm(y)


def _type_of_products(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the type in which PyTorch's own convolution would run: autocast tells that one alone."""
    if torch.is_autocast_enabled("cuda") and torch.float64 not in (x.dtype, weight.dtype):
        return torch.get_autocast_dtype("cuda")
    return x.dtype if x.dtype == weight.dtype else None
