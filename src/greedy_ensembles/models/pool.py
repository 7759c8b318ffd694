"""Max pooling over squares of 2 x 2, which PyTorch's kernels for channels-last images take their time for."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from greedy_ensembles.models.kernels import can_launch, on_device_of, refuse_second_derivatives


class MaxPool2(nn.Module):
    """Halves the resolution, odd ones rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest value of each square."""
        even = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
        ours = (self.training or not torch.is_grad_enabled()) and x.dtype in (torch.float32, torch.bfloat16)
        if ours and even and can_launch(x) and x.is_contiguous(memory_format=torch.channels_last):
            return _MaxPool2.apply(x)  # type: ignore[no-any-return, no-untyped-call]
        return max_pool2d(x, 2, ceil_mode=True)


class _MaxPool2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from greedy_ensembles.models.pool_kernels import pool

        ctx.save_for_backward(x)
        with on_device_of(x):
            return pool(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        from greedy_ensembles.models.pool_kernels import pool_gradient

        (x,) = ctx.saved_tensors
        refuse_second_derivatives(x)
        with on_device_of(x):
            return pool_gradient(x, gradients[0].to(x.dtype).contiguous(memory_format=torch.channels_last))
