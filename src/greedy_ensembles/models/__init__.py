"""Networks of the paper's experiments, in PyTorch's own layers; any nn.Module classifier will do in their place."""

import re
from collections.abc import Callable
from functools import partial

from torch import nn

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.models.fine_tuning import heads
from greedy_ensembles.models.mlp import MLP
from greedy_ensembles.models.preresnet import PreResNet
from greedy_ensembles.models.vgg import VGG16BN
from greedy_ensembles.models.wide_resnet import WideResNet28x10

__all__ = ["MLP", "VGG16BN", "PreResNet", "WideResNet28x10", "heads", "named"]

#: The networks of the paper; any other depth of a PreResNet has a name too.
_PAPER = ("PreResNet8", "PreResNet20", "PreResNet164", "VGG16BN", "WideResNet28x10")


def named(name: str, classes: int, channels: int) -> Callable[[], nn.Module]:
    """Return what `ge.fit` takes as make_model, by the name that tables and the command line use.

    A run made with it can be loaded without being told the model again.

    Args:
        name: PreResNet20, or another depth; VGG16BN; WideResNet28x10.
        classes: how many logits.
        channels: of the images.

    >>> sum(p.numel() for p in named("PreResNet20", classes=10, channels=3)().parameters())
    272282
    """
    for argument, value in (("classes", classes), ("channels", channels)):
        check_count(argument, value, least=1)
    depth = re.fullmatch(r"PreResNet(\d+)", str(name))
    if depth:
        return partial(PreResNet, int(depth[1]), classes=classes, channels=channels)
    check_choice("name of a model", name, _PAPER)
    kind = {"VGG16BN": VGG16BN, "WideResNet28x10": WideResNet28x10}[name]
    return partial(kind, classes=classes, channels=channels)
