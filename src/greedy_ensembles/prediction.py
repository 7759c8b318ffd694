"""What one member says about a batch: the same in `Ensemble.predict_proba` and in exported graphs."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import Normalize, dtype_of, to_model
from greedy_ensembles.models.convolution import Convolution
from greedy_ensembles.models.convolution_function import has_tensor_cores
from greedy_ensembles.models.kernels import can_launch, is_traced
from greedy_ensembles.models.norm import NormReLU
from greedy_ensembles.tf32 import allowed_in_convolutions

#: Channels of the widest layer. Measured on one and two cores: up to here predictions are 1.1 to 1.6 times as fast with
#: the channels of a pixel together, with twice as many they are slower.
_NARROW = 256


#: What is made of a member, a batch and its normalisation.
Statement = Callable[[nn.Module, Tensor, Normalize | None], Tensor]


def probabilities(member: nn.Module, batch: Tensor, normalize: Normalize | None) -> Tensor:
    """Return a member's class probabilities (n, classes) for inputs in the space of the data, on its own device.

    They are in double precision where the member is, otherwise in single.
    """
    return logits(member, batch, normalize).softmax(dim=1)


def log_probabilities(member: nn.Module, batch: Tensor, normalize: Normalize | None) -> Tensor:
    """Return the logarithms of `probabilities`, of which none is lost to rounding."""
    return logits(member, batch, normalize).log_softmax(dim=1)


def logits(member: nn.Module, batch: Tensor, normalize: Normalize | None) -> Tensor:
    """Return a member's logits, as `probabilities` has them, in its own layout and at least single precision."""
    x = to_model(batch, normalize, dtype_of(member))
    if wants_channels_last(member, x):
        x = _channels_last(x)  # which weights need not be
    found: Tensor = member(x)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def _channels_last(x: Tensor) -> Tensor:
    """Return images with the channels of a pixel together.

    Those of one channel lie so in any case; it is by their strides that PyTorch tells in which layout to go on.
    """
    _, channels, height, width = x.shape
    laid_out = x.contiguous(memory_format=torch.channels_last)
    return laid_out.as_strided(x.shape, (channels * height * width, 1, channels * width, channels))


def wants_channels_last(member: nn.Module, x: Tensor) -> bool:
    """Return whether the member has layers of ours, whose kernels want the channels of a pixel together.

    Networks from elsewhere get images as they are: some take them apart in ways that their layout forbids. Those whose
    convolutions are cuDNN's want it where it uses tensor cores. On a CPU narrow networks do.
    """
    if x.ndim != 4:
        return False
    if x.device.type == "cpu":
        if torch.compiler.is_compiling() or is_traced():
            return False
        if len(x) < 2:  # for one image it changes nothing, and costs a copy
            return False
        widths = [layer.out_channels for layer in member.modules() if isinstance(layer, Convolution)]
        return bool(widths) and max(widths) <= _NARROW
    if not has_tensor_cores(x.dtype) or not can_launch(x):
        return False
    rounded = x.dtype != torch.float32 or allowed_in_convolutions()
    kinds = (Convolution, NormReLU) if rounded else (Convolution,)
    return any(isinstance(layer, kinds) for layer in member.modules())
