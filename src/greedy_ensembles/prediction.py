"""What one member says about a batch: the same in `Ensemble.predict_proba` and in exported graphs."""

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import Normalize, dtype_of, to_model
from greedy_ensembles.models.convolution import Convolution
from greedy_ensembles.models.convolution_function import has_tensor_cores
from greedy_ensembles.models.kernels import can_launch
from greedy_ensembles.models.norm import NormReLU


def probabilities(member: nn.Module, batch: Tensor, normalize: Normalize | None) -> Tensor:
    """Return a member's class probabilities (n, classes) for inputs in the space of the data, on its own device.

    They are in double precision where the member is, otherwise in single.
    """
    x = to_model(batch, normalize, dtype_of(member))
    if wants_channels_last(member, x):
        x = x.contiguous(memory_format=torch.channels_last)  # which weights need not be
    logits: Tensor = member(x)
    return logits.softmax(dim=1) if logits.dtype == torch.float64 else logits.float().softmax(dim=1)


def wants_channels_last(member: nn.Module, x: Tensor) -> bool:
    """Return whether the member has layers of ours, whose kernels want the channels of a pixel together.

    Networks from elsewhere get images as they are: some take them apart in ways that their layout forbids.
    """
    tensor_cores = x.ndim == 4 and has_tensor_cores(x.dtype) and can_launch(x)
    return tensor_cores and any(isinstance(layer, Convolution | NormReLU) for layer in member.modules())
