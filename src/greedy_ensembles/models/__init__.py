"""Networks that the paper's experiments use; any nn.Module classifier will do in their place."""

from greedy_ensembles.models.mlp import MLP
from greedy_ensembles.models.named import named
from greedy_ensembles.models.preresnet import PreResNet
from greedy_ensembles.models.vgg import VGG16BN
from greedy_ensembles.models.wide_resnet import WideResNet28x10

__all__ = ["MLP", "VGG16BN", "PreResNet", "WideResNet28x10", "named"]
