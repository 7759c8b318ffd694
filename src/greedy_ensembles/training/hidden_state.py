"""What a model remembers beside its state_dict: plain attributes of its modules, and buffers that are not kept in it.

A recorded step repeats what kernels did to memory. What Python did, such as counting calls or putting another tensor in
the place of a buffer, it does not, so that a model that remembers in this way cannot be recorded.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class HiddenState:
    """The state of a model at some time."""

    attributes: dict[tuple[str, str], Any]  #: by module and name
    buffers: dict[str, Tensor]  #: copies of those that are not in the state_dict
    places: dict[str, int]  #: where all buffers lie

    def why_not(self, later: "HiddenState") -> str | None:
        """Return why steps between this and a later state cannot be recorded; None where nothing speaks against it."""
        for (module, name), value in later.attributes.items():
            if (module, name) not in self.attributes or self.attributes[module, name] != value:
                where = f"{module}.{name}" if module else name
                return f"the model changes its attribute {where} as it runs, which a recording does not"
        for name, place in later.places.items():
            if self.places.get(name) != place:
                return f"the model puts another tensor in the place of its buffer {name} as it runs"
        return None


def hidden_state(model: nn.Module) -> HiddenState:
    """Return what a model remembers beside its state_dict."""
    attributes = {
        (path, name): value
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN)
    }
    kept = model.state_dict().keys()
    buffers = dict(model.named_buffers())
    return HiddenState(
        attributes,
        {name: buffer.clone() for name, buffer in buffers.items() if name not in kept},
        {name: buffer.data_ptr() for name, buffer in buffers.items()},
    )


@torch.no_grad()
def restore(model: nn.Module, state: HiddenState) -> None:
    """Give it back."""
    modules, buffers = dict(model.named_modules()), dict(model.named_buffers())
    for (path, name), value in state.attributes.items():
        modules[path].__dict__[name] = value
    for name, value in state.buffers.items():
        buffers[name].copy_(value)
