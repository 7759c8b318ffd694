"""Residual networks with pre-activation for small images (He et al. 2016, "Identity Mappings in Deep Residual Nets").

Three stages of 16, 32 and 64 channels (four times as many out of a bottleneck), the second and third at half the
resolution of the one before. Where shapes change, a 1x1 convolution of the block's input is the shortcut. Features are
averaged over the image, so that 28 pixels do as well as 32. Wide residual networks are built of the same parts.
"""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.functional import relu

from greedy_ensembles.checks import check_choice, check_count

#: From the channels that go in, the width of the stage and the stride to a block.
MakeBlock = Callable[[int, int, int], nn.Module]
Block = Literal["basic", "bottleneck"]
#: From this depth on, blocks are bottlenecks.
_DEEP = 44
_LAYERS = {"basic": 6, "bottleneck": 9}  # in a block of each of the three stages


def conv3x3(inputs: int, outputs: int, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    """Return a 3x3 convolution, padded."""
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=bias)


def conv1x1(inputs: int, outputs: int, stride: int = 1, bias: bool = False) -> nn.Conv2d:
    """Return a 1x1 convolution."""
    return nn.Conv2d(inputs, outputs, 1, stride, bias=bias)


def initialise(model: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / (kernel area * output channels)), without biases (He et al. 2015, by outputs)."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ResidualNetwork(nn.Module):
    """Blocks of growing `widths`, whose outputs have `expansion` times as many channels, between two plain layers."""

    def __init__(
        self,
        block: MakeBlock,
        widths: Sequence[int],
        blocks_per_stage: int,
        expansion: int,
        classes: int,
        channels: int,
        plain: bool = False,  # the first convolution with a bias, all layers initialised as PyTorch does
    ) -> None:
        super().__init__()
        for name, value in (("classes", classes), ("channels", channels), ("blocks_per_stage", blocks_per_stage)):
            check_count(name, value, least=1)
        blocks: list[nn.Module] = []
        inputs = 16
        for stage, width in enumerate(widths):
            for number in range(blocks_per_stage):
                blocks.append(block(inputs, width, 2 if stage > 0 and number == 0 else 1))
                inputs = expansion * width
        self.first = conv3x3(channels, 16, bias=plain)
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.linear = nn.Linear(inputs, classes)
        if not plain:
            initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        features = relu(self.norm(self.blocks(self.first(x))))
        return self.linear(features.mean(dim=(2, 3)))  # type: ignore[no-any-return]


class BasicBlock(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's input plus its change."""
        change = self.conv1(relu(self.norm1(x)))
        change = self.conv2(relu(self.norm2(change)))
        return change + self.shortcut(x)  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """BatchNorm, ReLU and convolution, three times: 1x1 down, 3x3, 1x1 up."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv1x1(inputs, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride)
        self.norm3 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's input plus its change."""
        change = self.conv1(relu(self.norm1(x)))
        change = self.conv2(relu(self.norm2(change)))
        change = self.conv3(relu(self.norm3(change)))
        return change + self.shortcut(x)  # type: ignore[no-any-return]


class PreResNet(ResidualNetwork):
    """PreResNet of 6n+2 layers in basic blocks or 9n+2 in bottlenecks, from (n, channels, 28 or 32, same) to logits.

    Args:
        depth: 8, 14, 20, ... (6n+2) below 44; 47, 56, ..., 164 (9n+2) from there on.
        classes: how many logits.
        channels: of the images.
        block: "basic" or "bottleneck", whatever the depth.
        blocks_per_stage: n, whatever the depth. The paper's published code builds its PreResNet164 with 27.
    """

    def __init__(
        self,
        depth: int,
        classes: int = 10,
        channels: int = 3,
        block: Block | None = None,
        blocks_per_stage: int | None = None,
    ) -> None:
        check_count("depth", depth, least=8)
        chosen = block or _default_block(depth)
        check_choice("block", chosen, get_args(Block))
        kind = BasicBlock if chosen == "basic" else Bottleneck
        if blocks_per_stage is None:
            blocks_per_stage = _blocks_per_stage(depth, block)
        super().__init__(kind, (16, 32, 64), blocks_per_stage, kind.expansion, classes, channels)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return conv1x1(inputs, outputs, stride)


def _default_block(depth: int) -> Block:
    return "bottleneck" if depth >= _DEEP else "basic"


def _blocks_per_stage(depth: int, block: Block | None) -> int:
    def fits(depth: int) -> bool:
        return (depth - 2) % _LAYERS[block or _default_block(depth)] == 0

    kind = block or _default_block(depth)
    if not fits(depth):
        near = min(filter(fits, range(max(8, depth - 10), depth + 10)), key=lambda other: abs(other - depth))
        raise ValueError(
            f"depth of a PreResNet in {kind} blocks must be {_LAYERS[kind]}n+2, got {depth}; the nearest is {near} "
            "(PreResNet's blocks_per_stage takes any number)"
        )
    return (depth - 2) // _LAYERS[kind]
