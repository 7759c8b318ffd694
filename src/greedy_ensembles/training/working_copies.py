"""Half-precision copies of a network's large weights, cast together.

Autocast casts every weight by itself in the forward pass, and every gradient back in the backward pass: hundreds of
tiny kernels in a deep network. The same casts, of all weights at once, are two.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from greedy_ensembles.models.convolution import Convolution

#: Layers whose weights autocast casts. Exactly these: a kind derived from them may do anything with its weight.
_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, Convolution)


class WorkingCopies:
    """Copies of the weights of convolutions and linear layers, which a forward pass uses in their place."""

    def __init__(self, model: nn.Module, dtype: torch.dtype = torch.bfloat16) -> None:
        self._model = model
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, layer in model.named_modules():
            if type(layer) in _KINDS and layer.weight.requires_grad:
                found.setdefault(id(layer.weight), (f"{name}.weight" if name else "weight", layer.weight))
        self._weights: list[Tensor] = [weight for _, weight in found.values()]
        copies = [weight.detach().to(dtype).requires_grad_() for weight in self._weights]
        self._copies = dict(zip((name for name, _ in found.values()), copies, strict=True))
        self._gradients = [torch.empty_like(weight) for weight in self._weights]

    @property
    def call(self) -> Callable[[Tensor], Tensor]:
        """The model on its copies."""
        return lambda x: functional_call(self._model, self._copies, (x,))

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the weights."""
        copies = list(self._copies.values())
        if copies:
            torch._foreach_copy_(copies, self._weights)
        for copy in copies:
            copy.grad = None

    @torch.no_grad()
    def hand_back(self) -> None:
        """Cast the gradients, and give them to the weights."""
        pairs = [
            (weight, gradient, copy.grad)
            for weight, gradient, copy in zip(self._weights, self._gradients, self._copies.values(), strict=True)
            if copy.grad is not None
        ]
        if pairs:
            torch._foreach_copy_([gradient for _, gradient, _ in pairs], [found for _, _, found in pairs])
        for weight, gradient, _ in pairs:
            weight.grad = gradient
