"""The initialisation that all convolutional networks here share (He et al. 2015, by the outputs of a layer)."""

from torch import nn


def initialise(model: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / (kernel area * output channels)), without biases; BatchNorm starts as identity.

    Linear layers keep PyTorch's own initialisation.
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
