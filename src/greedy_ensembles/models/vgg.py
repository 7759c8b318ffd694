"""VGG16 with BatchNorm for small images (Simonyan & Zisserman 2015), its head cut down to two hidden layers of 512."""

from collections import OrderedDict

from torch import Tensor, nn

from greedy_ensembles.checks import check_count
from greedy_ensembles.models.preresnet import initialise

#: Widths of the 3x3 convolutions; each group ends in a pooling that halves the resolution.
_GROUPS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16BN(nn.Module):
    """Thirteen convolutions with BatchNorm and three linear layers, from (n, channels, 28 or 32, same) to logits."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        for name, value in (("classes", classes), ("channels", channels)):
            check_count(name, value, least=1)
        layers: list[nn.Module] = []
        inputs = channels
        for group in _GROUPS:
            for width in group:
                layers.append(_block(inputs, width))
                inputs = width
            layers.append(nn.MaxPool2d(2, ceil_mode=True))  # so that 28 pixels come down to 1 as 32 do
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(512, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, classes),
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (n, classes)."""
        return self.head(self.features(x).flatten(1))  # type: ignore[no-any-return]


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(inputs, outputs, 3, padding=1),
        "norm": nn.BatchNorm2d(outputs),
        "relu": nn.ReLU(inplace=True),
    }
    return nn.Sequential(OrderedDict(layers))
