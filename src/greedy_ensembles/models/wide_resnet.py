"""Wide residual networks (Zagoruyko & Komodakis 2016): few blocks of many channels, here 28 layers ten times as wide.

As their paper has it: the stride in a block's first convolution, no biases, no dropout. A shortcut that changes shape
starts from the activated input, as in their code.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

from greedy_ensembles.models.residual import ResidualNetwork, conv1x1, conv3x3

_BLOCKS_PER_STAGE = 4  # (28 - 4) / 6
_WIDTHS = (160, 320, 640)


class WideBlock(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.shortcut = None if inputs == width else conv1x1(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's input plus its change."""
        active = relu(self.norm1(x))
        change = self.conv2(relu(self.norm2(self.conv1(active))))
        return change + (x if self.shortcut is None else self.shortcut(active))  # type: ignore[no-any-return]


class WideResNet28x10(ResidualNetwork):
    """36.5 million parameters, from (n, channels, 28 or 32, same) to logits."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__(WideBlock, _WIDTHS, _BLOCKS_PER_STAGE, 1, classes, channels)
