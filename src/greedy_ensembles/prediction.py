"""What one member says about a batch: the same in `Ensemble.predict_proba` and in exported graphs."""

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import Normalize, dtype_of, to_model


def probabilities(member: nn.Module, batch: Tensor, normalize: Normalize | None) -> Tensor:
    """Return a member's class probabilities (n, classes) for inputs in the space of the data, on its own device.

    They are in double precision where the member is, otherwise in single.
    """
    logits: Tensor = member(to_model(batch, normalize, dtype_of(member)))
    return logits.softmax(dim=1) if logits.dtype == torch.float64 else logits.float().softmax(dim=1)
