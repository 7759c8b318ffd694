"""Convolutions that keep the resolution, or divide it by their stride.

Networks for small images have few channels, for which cuDNN's kernels leave most of a GPU idle. There layers run
kernels of their own (`convolution_function`); elsewhere they are PyTorch's.
"""

import torch
from torch import Tensor, nn

from greedy_ensembles.models.convolution_function import can_convolve, convolve, convolve_prediction
from greedy_ensembles.models.convolution_tiles import FEW
from greedy_ensembles.models.norm import NormReLU


class Convolution(nn.Conv2d):
    """A convolution of an odd `side`, with as much padding as keeps the resolution at stride 1."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, side, stride, side // 2, bias=False)

    def forward(self, x: Tensor, residual: Tensor | None = None, norm: nn.Module | None = None) -> Tensor:
        """Return the convolution of x, plus the residual, after the layer that follows where one is given."""
        dtype, stride = _type_of_products(x, self.weight), self.stride[0]
        if can_convolve(x, self.weight, residual, dtype, stride):
            x, weight = x.to(dtype), self.weight.to(dtype)
            if not torch.is_grad_enabled():
                given = norm.given() if isinstance(norm, NormReLU) else None
                y = convolve_prediction(x, weight, residual, stride, given)
                return y if norm is None or given is not None else norm(y)
            y = convolve(x, weight, residual)
        else:
            y = super().forward(x)
            y = y if residual is None else y + residual
        return y if norm is None else norm(y)


class ConvNormReLU(nn.Module):
    """A 3x3 convolution with bias, BatchNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = NormReLU(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated, normalised convolution."""
        if self.training and x.is_cuda:
            return self.norm(self._without_bias(x), self.conv.bias)  # type: ignore[no-any-return]
        return self.norm(self.conv(x))  # type: ignore[no-any-return]

    def _without_bias(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        dtype = _type_of_products(x, weight)
        # Of images alone: all other layers of such networks have channels enough for cuDNN.
        if weight.shape[1] < FEW and can_convolve(x, weight, None, dtype):
            return convolve(x.to(dtype), weight.to(dtype))
        return self.conv._conv_forward(x, weight, None)  # type: ignore[no-any-return]


def _type_of_products(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the type in which PyTorch's own convolution would run: autocast tells that one alone."""
    if torch.is_autocast_enabled("cuda") and torch.float64 not in (x.dtype, weight.dtype):
        return torch.get_autocast_dtype("cuda")
    return x.dtype if x.dtype == weight.dtype else None
