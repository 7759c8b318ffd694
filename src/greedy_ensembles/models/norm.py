"""BatchNorm followed by ReLU as one layer, which a GPU runs as one operation.

Between convolutions, small networks spend most of their time on moving activations through memory. The fused operation
(`norm_function`) touches them as rarely as can be; elsewhere the layer is what PyTorch's own two layers are.
"""

import torch
from torch import Tensor, nn

from greedy_ensembles.models.half import Narrow
from greedy_ensembles.models.norm_function import (
    Given,
    can_fuse,
    can_predict,
    norm_relu,
    norm_relu_fork,
    norm_relu_prediction,
)
from greedy_ensembles.models.plain import is_plain


class NormReLU(nn.BatchNorm2d):
    """BatchNorm2d, then ReLU.

    `shift`, a number a channel, is added to the input first: the bias of a convolution in front, which then need not
    be added in a pass of its own. Inside `split_batchnorm`, `first_rows` of the batch are those to train on, and
    `frozen` says whether the others are normalised by the running statistics.
    """

    def forward(self, x: Tensor, shift: Tensor | None = None) -> Tensor:
        """Return the activated, normalised input."""
        if self.training and can_fuse(self, x):
            return norm_relu(x, self, shift, getattr(self, "first_rows", len(x)), getattr(self, "frozen", True))
        if self.predicts(x):
            return norm_relu_prediction(x, self, shift)
        if shift is not None:
            x = x + shift.to(x.dtype)[:, None, None]
        return self.normalise(x).relu()

    def predicts(self, x: Tensor) -> bool:
        """Return whether this is a prediction that the kernels take."""
        return not (self.training or torch.is_grad_enabled()) and can_predict(self, x)

    def given(self) -> Given | None:
        """Return what a prediction is normalised by, for an operation in front that does it on the way.

        None where something would be left out: batch statistics, hooks, or what a class derived from this one does.
        """
        plain = type(self) is NormReLU and is_plain(self, NormReLU)
        known = not self.training and self.running_mean is not None and self.weight is not None
        return Given.by(self) if plain and known else None

    def normalise(self, x: Tensor) -> Tensor:
        """Return the normalised input: what `split_batchnorm` takes over."""
        return super().forward(x)


def fork(norm: nn.Module, x: Tensor, may_narrow: bool = False) -> tuple[Tensor | Narrow, Tensor]:
    """Return what a layer makes of its input, and the input, for a shortcut.

    Where the layer is one of ours and runs kernels of our own, one of them adds the gradients of both; and in
    predictions, what is made may be left `Narrow`, where its only reader wants that.
    """
    if not isinstance(norm, NormReLU) or not is_plain(norm, NormReLU):
        return norm(x), x
    if norm.training and can_fuse(norm, x):
        return norm_relu_fork(x, norm, None, getattr(norm, "first_rows", len(x)), getattr(norm, "frozen", True))
    if norm.predicts(x):
        active = norm_relu_prediction(x, norm, dtype=torch.float16 if may_narrow else None)
        return (Narrow(active) if may_narrow else active), x
    return norm(x), x
