"""Members that are not ``make_model``'s network as it is: some of its layers are others, and files have to say so."""

from collections.abc import Callable

from torch import nn

#: Where a network has the name of the method that swapped its layers.
BUILT_BY = "built_by"


def swap(model: nn.Module, replace: Callable[[nn.Module], nn.Module | None], method: str) -> nn.Module:
    """Return a network with other layers in the place of some, and note which method did it.

    Args:
        model: the network; it is changed.
        replace: returns the layer that takes the place of one, or None. It sees every layer once.
        method: a name of the registry.
    """
    found = {layer: replace(layer) for layer in list(model.modules())}
    swapped = {layer: other for layer, other in found.items() if other is not None}
    for parent in found:
        for name, part in parent._modules.items():  # not named_children, which leaves out a layer's second name
            if part in swapped:
                parent._modules[name] = swapped[part]
    for layer in model.modules():  # PyTorch's fast paths in eval mode take weights out of layers, and do not call them
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
    model = swapped.get(model, model)
    setattr(model, BUILT_BY, method)
    return model
