"""Wide residual networks (Zagoruyko & Komodakis 2016): few blocks of many channels, here 28 layers ten times as wide.

As their paper has it: the stride in a block's first convolution, no biases, no dropout. A shortcut that changes shape
starts from the activated input, as in their code.
"""

from torch import Tensor, nn

from greedy_ensembles.models.convolution import Convolution
from greedy_ensembles.models.norm import NormReLU, fork
from greedy_ensembles.models.residual import ResidualNetwork

_BLOCKS_PER_STAGE = 4  # (28 - 4) / 6
_WIDTHS = (160, 320, 640)


class WideBlock(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = NormReLU(inputs)
        self.conv1 = Convolution(inputs, width, 3, stride)
        self.norm2 = NormReLU(width)
        self.conv2 = Convolution(width, width, 3)
        self.shortcut = None if inputs == width else Convolution(inputs, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's input plus its change."""
        active, x = fork(self.norm1, x)
        residual = x if self.shortcut is None else self.shortcut(active)
        return self.conv2(self.conv1(active, norm=self.norm2), residual)  # type: ignore[no-any-return]


class WideResNet28x10(ResidualNetwork):
    """36.5 million parameters, from (n, channels, 28 or 32, same) to logits."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__(WideBlock, _WIDTHS, _BLOCKS_PER_STAGE, 1, classes, channels)
