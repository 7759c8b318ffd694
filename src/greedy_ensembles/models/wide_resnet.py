"""Wide residual networks (Zagoruyko & Komodakis 2016): few blocks of many channels, here 28 layers ten times as wide.

As their paper has it: the stride in a block's first convolution, no biases, no dropout, and a shortcut that changes
shape starts from the activated input. The code of the greedy paper has another one of that name, which is here, too.
"""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from greedy_ensembles.checks import check_flag
from greedy_ensembles.models.preresnet import ResidualNetwork, conv1x1, conv3x3


class WideBlock(nn.Module):
    """BatchNorm, ReLU and 3x3 convolution, twice."""

    def __init__(self, inputs: int, width: int, stride: int, published: bool = False) -> None:
        super().__init__()
        first, second = (1, stride) if published else (stride, 1)
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, width, first, bias=published)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, second, bias=published)
        self.shortcut = None if inputs == width else conv1x1(inputs, width, stride, bias=published)
        self.published = published

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's input plus its change."""
        active = relu(self.norm1(x))
        change = self.conv2(relu(self.norm2(self.conv1(active))))
        if self.shortcut is None:
            return change + x  # type: ignore[no-any-return]
        return change + self.shortcut(x if self.published else active)  # type: ignore[no-any-return]


class WideResNet28x10(ResidualNetwork):
    """36.5 million parameters, from (n, channels, 28 or 32, same) to logits.

    Args:
        classes: how many logits.
        channels: of the images.
        published: whether to build the network of the greedy paper's code: the stride in a block's second convolution,
            biases, shortcuts from the raw input, PyTorch's own initialisation, momentum .9 in the last BatchNorm.
    """

    def __init__(self, classes: int = 10, channels: int = 3, published: bool = False) -> None:
        check_flag("published", published)
        block = partial(WideBlock, published=published)
        super().__init__(block, (160, 320, 640), (28 - 4) // 6, 1, classes, channels, plain=published)
        if published:
            self.norm.momentum = 0.9
