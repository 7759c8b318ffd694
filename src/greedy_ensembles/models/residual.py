"""What residual networks for small images share: a convolution, three stages of blocks, and a linear layer.

The second and third stage begin at half the resolution of the one before. Features are averaged over the image, so that
28 pixels do as well as 32.
"""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn.functional import relu

from greedy_ensembles.checks import check_count

#: From the channels that go in, the width of the stage and the stride to a block.
MakeBlock = Callable[[int, int, int], nn.Module]


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
