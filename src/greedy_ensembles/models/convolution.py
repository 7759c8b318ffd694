"""Convolutions that keep the resolution, or divide it by their stride.

Networks for small images have few channels, for which cuDNN's kernels leave most of a GPU idle. There layers run
kernels of their own (`convolution_function`); elsewhere they are PyTorch's.
"""

import torch
from torch import Tensor, nn

from greedy_ensembles.models.convolution_function import can_convolve, convolve, convolve_prediction, reads_half
from greedy_ensembles.models.convolution_tiles import FEW
from greedy_ensembles.models.half import Narrow, narrow_weight
from greedy_ensembles.models.kernels import can_launch
from greedy_ensembles.models.norm import NormReLU
from greedy_ensembles.models.plain import is_plain


class Convolution(nn.Conv2d):
    """A convolution of an odd `side`, with as much padding as keeps the resolution at stride 1."""

    def __init__(self, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        super().__init__(inputs, outputs, side, stride, side // 2, bias=False)

    def forward(  # type: ignore[override]  # what follows it is part of it
        self,
        x: Tensor | Narrow,
        residual: Tensor | None = None,
        norm: nn.Module | None = None,
        then: nn.Module | None = None,
    ) -> Tensor | Narrow:
        """Return the convolution of x, plus the residual, after the layer that follows where one is given.

        Where `then`, another layer, alone reads the result, it may be left `Narrow`.
        """
        image, dtype = (x.stored, torch.float32) if isinstance(x, Narrow) else (x, _type_of_products(x, self.weight))
        if can_convolve(image, self.weight, residual, dtype, self.stride[0]):
            if not torch.is_grad_enabled():
                return self._predict(x, image, dtype, residual, norm, then)
            y = convolve(image.to(dtype), self.weight.to(dtype), residual)
        else:
            y = super().forward(x.widened() if isinstance(x, Narrow) else x)
            y = y if residual is None else y + residual
        return y if norm is None else norm(y)

    def _predict(
        self,
        x: Tensor | Narrow,
        image: Tensor,
        dtype: torch.dtype | None,
        residual: Tensor | None,
        norm: nn.Module | None,
        then: nn.Module | None,
    ) -> Tensor | Narrow:
        given = norm.given() if isinstance(norm, NormReLU) else None
        to_narrow = then is not None and given is not None and reads_narrow(then, image) and is_plain(self, Convolution)
        unit = None
        if isinstance(x, Narrow):
            weight, unit = narrow_weight(self.weight)
        else:  # weights with a tap's channels together are read 16 bytes at a time
            image, weight = x.to(dtype), self.weight.to(dtype, memory_format=torch.channels_last)
        result = torch.float16 if to_narrow else dtype
        y = convolve_prediction(image, weight, residual, self.stride[0], given, result, unit)
        if to_narrow:
            return Narrow(y)
        return y if norm is None or given is not None else norm(y)


def reads_narrow(layer: nn.Module, x: Tensor) -> bool:
    """Return whether what a layer is to convolve is best left `Narrow`, in a network in which x occurs."""
    return isinstance(layer, Convolution) and is_plain(layer, Convolution) and reads_half(x, layer.weight)


class ConvNormReLU(nn.Module):
    """A 3x3 convolution with bias, BatchNorm and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = NormReLU(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated, normalised convolution."""
        plain = is_plain(self.conv, nn.Conv2d) and is_plain(self.norm, NormReLU)
        if plain and can_launch(x) and (self.training or not torch.is_grad_enabled()):
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
