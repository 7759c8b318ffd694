"""Half-precision copies of a network's large weights, cast together.

Autocast casts every weight by itself in the forward pass, and every gradient back in the backward pass: hundreds of
tiny kernels in a deep network. The same casts, of all weights at once, are two. Of weights so large that memory is
what an update waits for, the step of SGD casts on the way (`sgd`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from greedy_ensembles.training.sgd import can_update, update

#: Layers whose weights autocast casts. Exactly these: a kind derived from them may do anything with its weight.
_KINDS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
#: Numbers in a weight from which on its update is a kernel of its own.
LARGE = 2**16


@dataclass
class _Copied:
    name: str
    weight: nn.Parameter
    copy: Tensor
    gradient: Tensor | None  #: where the gradient of a weight goes whose step is the optimizer's; of others, nowhere
    group: dict[str, Any] | None  #: the optimizer's settings for a weight whose step is taken here


class WorkingCopies:
    """Copies of the weights of convolutions and linear layers, which a forward pass uses in their place.

    A training loop calls `refresh`, `call`, backward, and `step` in the place of the optimizer's; `refresh_all` first,
    and whenever something else has changed the weights.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, dtype: torch.dtype = torch.bfloat16) -> None:
        self._model, self._optimizer = model, optimizer
        found: dict[int, tuple[str, nn.Parameter]] = {}
        for name, layer in model.named_modules():
            if type(layer) in _KINDS and layer.weight.requires_grad:
                found.setdefault(id(layer.weight), (f"{name}.weight" if name else "weight", layer.weight))
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        ours = can_update(optimizer)
        self._copied = []
        for name, weight in found.values():
            group = groups.get(id(weight)) if ours and weight.numel() >= LARGE and _is_dense(weight) else None
            gradient = torch.empty_like(weight) if group is None else None
            copy = weight.detach().to(dtype).requires_grad_()
            self._copied.append(_Copied(name, weight, copy, gradient, group))
        self._copies = {one.name: one.copy for one in self._copied}

    @property
    def call(self) -> Callable[[Tensor], Tensor]:
        """The model on its copies."""
        return lambda x: functional_call(self._model, self._copies, (x,))

    def refresh_all(self) -> None:
        """Cast the weights."""
        self._cast(self._copied)

    def refresh(self) -> None:
        """Cast the weights that the step before did not cast."""
        self._cast([one for one in self._copied if one.group is None])
        for one in self._copied:
            one.copy.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Take the optimizer's step on the weights, given the gradients of their copies."""
        self.hand_back()
        for one in self._copied:
            if one.group is not None and one.copy.grad is not None:
                update(one.weight, self._momentum(one.weight), _like(one.weight, one.copy.grad), one.copy, one.group)
        self._optimizer.step()  # of the others: no weight above has a gradient of its own

    @torch.no_grad()
    def hand_back(self) -> None:
        """Cast the gradients of weights whose step is the optimizer's, and give them to the weights."""
        pairs = [
            (one.weight, one.gradient, one.copy.grad)
            for one in self._copied
            if one.gradient is not None and one.copy.grad is not None
        ]
        if pairs:
            torch._foreach_copy_([gradient for _, gradient, _ in pairs], [found for _, _, found in pairs])
        for weight, gradient, _ in pairs:
            weight.grad = gradient

    @torch.no_grad()
    def _cast(self, copied: list[_Copied]) -> None:
        if copied:
            torch._foreach_copy_([one.copy for one in copied], [one.weight for one in copied])

    def _momentum(self, weight: nn.Parameter) -> Tensor:
        """Return the optimizer's own buffer, in which its state is saved."""
        state = self._optimizer.state[weight]
        if state.get("momentum_buffer") is None:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def _is_dense(weight: Tensor) -> bool:
    """Return whether the numbers lie one after the other, in some order."""
    return weight.is_contiguous() or (weight.ndim == 4 and weight.is_contiguous(memory_format=torch.channels_last))


def _like(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient with its numbers in the order of the weight's."""
    if gradient.stride() == weight.stride():
        return gradient
    return torch.empty_like(weight, dtype=gradient.dtype).copy_(gradient)
