"""Scores of in-domain and out-of-distribution examples, on their way into the metrics that tell the two apart.

Scores are compared in the precision they come in (single where that is half, which changes no comparison), so that
ties are exactly those of the input.
"""

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.metrics.arrays import Values, check_floating, to_tensor


def to_scores(id_scores: Values, ood_scores: Values) -> tuple[Tensor, Tensor]:
    """Return both as tensors of one precision on the device of the first; refuse what cannot be ranked."""
    inside, outside = to_tensor("id_scores", id_scores).detach(), to_tensor("ood_scores", ood_scores).detach()
    for name, scores in (("id_scores", inside), ("ood_scores", outside)):
        check_floating(name, scores, "(n,)")
        if not scores.numel():
            raise ValueError(f"{name} must hold at least one score: without it there is nothing to tell apart")
        if not scores.isfinite().all():
            raise ValueError(f"{name} must be finite, got {int((~scores.isfinite()).sum())} that are infinite or NaN")
    common = torch.promote_types(torch.promote_types(inside.dtype, outside.dtype), torch.float32)
    return inside.to(common), outside.to(inside.device, common)


def sort_scores(scores: Tensor) -> Tensor:
    """Return the scores in ascending order."""
    # On the CPU by numpy, which sorts values alone: torch.sort carries indices along, at two to three times the cost.
    return torch.from_numpy(np.sort(scores.numpy())) if scores.device.type == "cpu" else scores.sort().values
