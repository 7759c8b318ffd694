"""Whether a layer may be stood in for by kernels that do what its class does."""

from torch import nn
from torch.nn.modules.module import _has_any_global_hook


def is_plain(layer: object, kind: type[nn.Module]) -> bool:
    """Return whether calling a layer does what the `forward` of a class does and nothing else.

    Not so for classes with another one, for one that somebody put in its place, and where hooks, the layer's or
    everybody's, want to see what goes in and comes out, or prepare its weights.
    """
    if not isinstance(layer, kind) or type(layer).forward is not kind.forward or "forward" in layer.__dict__:
        return False
    return not has_hooks(layer) and not _has_any_global_hook()


def has_hooks(layer: nn.Module) -> bool:
    """Return whether a layer has hooks of its own."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)
