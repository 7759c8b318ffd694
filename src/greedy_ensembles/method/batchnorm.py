"""Keeping samples of p* out of BatchNorm's statistics (Section 4.2: freezing it helped convergence substantially)."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextmanager
def frozen_batchnorm(model: nn.Module) -> Iterator[None]:
    """Run BatchNorm layers of `model` on their running statistics, without updating them, inside the block.

    Affine parameters still receive gradients, and dropout stays as it was. For a training loop of your own::

        with ge.frozen_batchnorm(model):
            outputs = model(weighting_samples).softmax(dim=1)
        ge.diversity_term(outputs, earlier, strength, size).backward()

    Give a layer right before BatchNorm no bias. BatchNorm takes it out of the training examples, so the loss does not
    hold it, while here it counts: the diversity term moves it ahead of the running mean, and a member can then be right
    in training and wrong in eval mode, all the more with Adam.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
