"""Our networks as they would be written with PyTorch's layers, on the same weights: what ours are measured against."""

import copy
from typing import Any

from torch import Tensor, nn

from greedy_ensembles.models import VGG16BN, WideResNet28x10
from greedy_ensembles.models.convolution import ConvNormReLU
from greedy_ensembles.models.pool import MaxPool2


class Block(nn.Module):
    """A block on the weights of one of ours; a wide one's shortcut starts from the activated input."""

    def __init__(self, block: nn.Module, from_activated: bool) -> None:
        super().__init__()
        self.from_activated = from_activated
        for name, own in block.named_children():
            setattr(self, name, layer(own))

    def forward(self, x: Tensor) -> Any:
        """Return the block's input plus its change."""
        own: Any = self
        active = own.norm1(x).relu()
        change = own.conv2(own.norm2(own.conv1(active)).relu())
        if hasattr(own, "conv3"):
            change = own.conv3(own.norm3(change).relu())
        shortcut = getattr(own, "shortcut", None)
        source = active if self.from_activated and shortcut is not None else x
        return change + (source if shortcut is None else shortcut(source))


class _NormThenReLU(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x).relu()

    def normalise(self, x: Tensor) -> Tensor:  # what `split_batchnorm` takes over
        return super().forward(x)


def layer(own: nn.Module, norm: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> nn.Module:
    """Return PyTorch's own layer with the same settings and weights."""
    twin: nn.Module
    if isinstance(own, nn.Conv2d):
        size: Any = own.kernel_size
        stride: Any = own.stride
        padding: Any = own.padding
        twin = nn.Conv2d(own.in_channels, own.out_channels, size, stride, padding, bias=own.bias is not None)
    elif isinstance(own, nn.BatchNorm2d):
        twin = norm(own.num_features)
    else:
        return copy.deepcopy(own)
    twin.load_state_dict(own.state_dict())
    return twin


def network(net: nn.Module) -> nn.Module:
    """Return the same network in PyTorch's layers; its weights have the same names, but for those of VGG16BN."""
    twin: Any = copy.deepcopy(net)
    own: Any = net
    if isinstance(net, VGG16BN):
        for at, block in enumerate(net.features):
            if isinstance(block, ConvNormReLU):
                twin.features[at] = nn.Sequential(layer(block.conv), layer(block.norm), nn.ReLU(inplace=True))
            elif isinstance(block, MaxPool2):
                twin.features[at] = nn.MaxPool2d(2, ceil_mode=True)
    else:
        twin.first, twin.norm = layer(own.first), layer(own.norm, _NormThenReLU)
        wide = isinstance(net, WideResNet28x10)
        twin.blocks = nn.Sequential(*(Block(block, from_activated=wide) for block in own.blocks))
    return twin.train(net.training)  # type: ignore[no-any-return]
