"""Max pooling over squares of 2 x 2, which PyTorch's kernels for channels-last images take their time for."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from greedy_ensembles.models.norm_function import HAS_KERNELS


class MaxPool2(nn.Module):
    """Halves the resolution, odd ones rounded up."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the largest value of each square."""
        even = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
        if self.training and x.is_cuda and even and x.is_contiguous(memory_format=torch.channels_last) and HAS_KERNELS:
            return _MaxPool2.apply(x)  # type: ignore[no-any-return, no-untyped-call]
        return max_pool2d(x, 2, ceil_mode=True)


class _MaxPool2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        from greedy_ensembles.models.pool_kernels import pool

        ctx.save_for_backward(x)
        return pool(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        from greedy_ensembles.models.pool_kernels import pool_gradient

        (x,) = ctx.saved_tensors
        return pool_gradient(x, gradients[0].to(x.dtype).contiguous(memory_format=torch.channels_last))
