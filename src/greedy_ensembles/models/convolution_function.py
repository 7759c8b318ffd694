"""Convolutions that keep the resolution, with a gradient of their own: the mathematics, on any device.

A kernel of side 1 or 3 has taps t, each a shift of the image; pixels outside are 0. With x[p + t] the channels of the
pixel that tap t sees from p, and an optional residual r,

    y[p] = r[p] + sum over t of  w[t] x[p + t],
    dx[p] = sum over t of  w[t]^T dy[p - t],        dw[t] = sum over p of  dy[p] x[p + t]^T,        dr = dy.

The gradient of the input is thus a convolution as well, its taps in reverse order, its weights transposed.

Predictions need the output alone. There, p may go in strides, and what follows a convolution, BatchNorm by the running
statistics and ReLU, happens before y is written, which may then be stored in half precision (`half`).

The passes are Triton kernels on a GPU (`convolution_passes`) and PyTorch elsewhere; the latter is what the tests hold
against `conv2d`, and the kernels against it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from greedy_ensembles.models.kernels import can_launch, on_device_of, refuse_second_derivatives
from greedy_ensembles.models.norm_function import Given
from greedy_ensembles.models.norm_function import TorchPasses as NormPasses
from greedy_ensembles.tf32 import allowed_in_convolutions

#: Most channels, in and out, that the kernels take by the side of the convolution: beyond, cuDNN is as fast.
MOST_CHANNELS = {1: 256, 3: 64}
_MOST_ELEMENTS = 2**31 - 2**24  # of an activation: the kernels count them in 32 bits


def can_convolve(
    x: Tensor, weight: Tensor, residual: Tensor | None, dtype: torch.dtype | None, stride: int = 1
) -> bool:
    """Return whether the kernels take these, cast to a type: channels last on a GPU, few channels, tensor cores.

    Only predictions may go in strides. Paddings that do not keep the resolution are for the caller to sort out.
    """
    return (
        can_launch(x)
        and (stride == 1 or not torch.is_grad_enabled())
        and has_tensor_cores(dtype)
        and x.ndim == 4
        and x.shape[1] == weight.shape[1]
        and x.is_contiguous(memory_format=torch.channels_last)
        and _is_small(weight)
        and 0 < x.shape[0] * x.shape[2] * x.shape[3] * max(weight.shape[:2]) < _MOST_ELEMENTS
        and (residual is None or (residual.dtype == dtype and _is_output(residual, x, weight, stride)))
    )


def reads_half(x: Tensor, weight: Tensor) -> bool:
    """Return whether, in a network in which x occurs, what these weights are to convolve is best stored in half.

    That is so in predictions in single precision whose factors may be rounded to TF32, where the kernels run. What
    occurs may itself have been stored so.
    """
    return (
        x.dtype in (torch.float32, torch.float16)
        and weight.dtype == torch.float32
        and has_tensor_cores(torch.float32)
        and not torch.is_autocast_enabled("cuda")
        and not torch.compiler.is_compiling()
        and can_launch(x)
        and allowed_in_convolutions()
        and x.ndim == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and _is_small(weight)
    )


def has_tensor_cores(dtype: torch.dtype | None) -> bool:
    """Return whether products of this type go to tensor cores now; of single precision, in predictions alone."""
    return dtype == torch.bfloat16 or (dtype == torch.float32 and not torch.is_grad_enabled())


def _is_small(weight: Tensor) -> bool:
    """Return whether the channels are as few as the kernels take, and one stride leads from tap to tap."""
    side = weight.shape[3]
    regular = weight.shape[2] == side and (side == 1 or weight.stride(2) == side * weight.stride(3))
    return regular and max(weight.shape[:2]) <= MOST_CHANNELS.get(side, 0)


def _is_output(residual: Tensor, x: Tensor, weight: Tensor, stride: int) -> bool:
    shape = (len(x), len(weight), *(strided(side, stride) for side in x.shape[2:]))
    return residual.shape == shape and residual.is_contiguous(memory_format=torch.channels_last)


def strided(side: int, stride: int) -> int:
    """Return the side of the output's image, given that of the input's."""
    return (side - 1) // stride + 1


def convolve(x: Tensor, weight: Tensor, residual: Tensor | None = None) -> Tensor:
    """Return the convolution of x (n, channels, height, width), plus the residual."""
    return _Convolution.apply(x, weight, residual)  # type: ignore[no-any-return, no-untyped-call]


def convolve_prediction(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    stride: int = 1,
    given: Given | None = None,
    dtype: torch.dtype | None = None,
    unit: Tensor | None = None,
) -> Tensor:
    """Return the convolution of x, plus the residual, normalised and activated if `given` says how; no gradients.

    The result is of the type asked for, or else of x's, which weights have as well. Where activations in half precision
    are asked for, they are as `half` stores them; where x and the weights are so stored, `unit` says in what units.
    """
    with on_device_of(x):
        return _passes(x).output(x, weight, residual, stride, given, dtype, unit)  # type: ignore[no-any-return]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, residual: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with on_device_of(x):
            return _passes(x).output(x, weight, residual)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        refuse_second_derivatives(x)
        passes = _passes(x)
        gradient = gradients[0].to(x.dtype).contiguous(memory_format=torch.channels_last)
        of_x, of_weight, of_residual = ctx.needs_input_grad
        with on_device_of(x):
            return (
                passes.input_gradient(gradient, weight) if of_x else None,
                passes.weight_gradient(x, gradient, weight) if of_weight else None,
                gradient if of_residual else None,
            )


def _passes(x: Tensor) -> Any:
    if not x.is_cuda:
        return TorchPasses
    from greedy_ensembles.models.convolution_passes import TritonPasses  # where there is a GPU, there is Triton

    return TritonPasses


class TorchPasses:
    """The three passes in PyTorch, tap by tap; all activations are (n, channels, height, width)."""

    @staticmethod
    def output(
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        stride: int = 1,
        given: Given | None = None,
        dtype: torch.dtype | None = None,
        unit: Tensor | None = None,
    ) -> Tensor:
        """Return the convolution in units, plus the residual, normalised and activated as given, rounded once.

        The result is of the type asked for, or else of x's.
        """
        y = sum(
            torch.einsum("oc,nchw->nohw", _wide(weight[:, :, row, column]), shifted[:, :, ::stride, ::stride])
            for row, column, shifted in _shifts(_wide(x), weight.shape[3])
        )
        assert isinstance(y, Tensor)
        y = y if unit is None else y * unit[:, None, None]
        y = y if residual is None else y + _wide(residual)
        if given is not None:
            return NormPasses.prediction(y.movedim(1, -1), given, dtype or x.dtype).movedim(-1, 1)
        return y.to(dtype or x.dtype)

    @staticmethod
    def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to x, given that of the output."""
        return TorchPasses.output(gradient, weight.flip(2, 3).transpose(0, 1), None)

    @staticmethod
    def weight_gradient(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the weight, of its type."""
        dw = torch.empty_like(weight)
        for row, column, shifted in _shifts(_wide(x), weight.shape[3]):
            dw[:, :, row, column] = torch.einsum("nohw,nchw->oc", _wide(gradient), shifted)
        return dw


def _wide(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _shifts(x: Tensor, side: int) -> list[tuple[int, int, Tensor]]:
    """Return row and column of every tap, and what it sees from every pixel."""
    height, width = x.shape[2:]
    reach = side // 2
    padded = pad(x, (reach, reach, reach, reach))
    return [(i, j, padded[:, :, i : i + height, j : j + width]) for i in range(side) for j in range(side)]
