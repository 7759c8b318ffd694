"""A step of SGD on one weight, its half-precision gradient and its working copy, in one pass over memory.

With weight decay c, momentum m, learning rate r and a gradient g of the working copy, as torch.optim.SGD has it,

    g + c w -> d,    m b + d -> b,    w - r b -> w    (Nesterov: w - r (d + m b) -> w),

and the copy gets w, rounded. Casting the gradient, updating, and casting the weight move 32 bytes for each of its
numbers; together they move 20. On a GPU that is a Triton kernel (`sgd_kernel`), elsewhere PyTorch.
"""

from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.engines.kernels import has_kernels, on_device_of


def can_update(optimizer: torch.optim.Optimizer | None) -> bool:
    """Return whether the optimizer does what this step does: SGD as recipes make it, with momentum."""
    if type(optimizer) is not torch.optim.SGD:
        return False
    plain = all(
        group["momentum"] and not group["dampening"] and not group["maximize"] for group in optimizer.param_groups
    )
    on_gpu = any(p.is_cuda for group in optimizer.param_groups for p in group["params"])
    return plain and (not on_gpu or has_kernels())


@torch.no_grad()
def update(weight: Tensor, momentum: Tensor, gradient: Tensor, copy: Tensor, group: dict[str, Any]) -> None:
    """Take a step; all four lie alike in memory, and `group` is the weight's of the optimizer, its `lr` a tensor."""
    if weight.is_cuda:
        from greedy_ensembles.training.sgd_kernel import launch  # where there is a GPU, there is Triton

        settings = group["lr"], group["momentum"], group["weight_decay"], group["nesterov"]
        with on_device_of(weight):
            launch(weight, momentum, gradient, copy, *settings)
        return
    d = gradient.to(weight.dtype) + group["weight_decay"] * weight
    momentum.mul_(group["momentum"]).add_(d)
    weight.sub_(group["lr"] * (d + group["momentum"] * momentum if group["nesterov"] else momentum))
    copy.copy_(weight)
