"""Many models of one structure as one, for the stacked engine: every layer does its work for all of them at once."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from greedy_ensembles.training.stackable import POINTWISE, layers


class StackedModel:
    """From inputs (members, n, ...) to logits (members, n, classes)."""

    def __init__(self, model: nn.Module, leaves: list[Tensor]) -> None:
        left = iter(leaves)  # in the order of the model's parameters, which is that of its layers
        self._layers = [
            (layer, {name: next(left) for name, _ in layer.named_parameters()}) for _, layer in layers(model)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Send every member's inputs through it."""
        after_linear = False
        for layer, parameters in self._layers:
            # In place where that is allowed: no one else needs what a linear layer returned.
            x = x.relu_() if after_linear and isinstance(layer, nn.ReLU) else _apply(layer, parameters, x)
            after_linear = isinstance(layer, nn.Linear)
        return x


def _apply(layer: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    if isinstance(layer, POINTWISE):
        return layer(x)  # type: ignore[no-any-return]
    if isinstance(layer, nn.Linear):
        weight, bias = parameters["weight"], parameters.get("bias")
        if x.ndim == 3:
            return Linear.apply(x, weight, bias)  # type: ignore[no-any-return, no-untyped-call]
        return Linear.apply(x.flatten(1, -2), weight, bias).unflatten(1, x.shape[1:-1])  # type: ignore[no-any-return, no-untyped-call]
    return vmap(lambda own, rows: functional_call(layer, own, (rows,)))(parameters, x)  # type: ignore[no-any-return]


class Linear(torch.autograd.Function):
    """Every member's linear map, rows (members, n, inputs) to (members, n, outputs).

    What autograd would do, but for the product that gives the weights' gradient: one whose result is narrow in its last
    dimension is slow (measured: 6 times, 128 x 2 beside 2 x 128), so its transpose is computed where that is better.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return rows times weight, plus bias."""
        ctx.save_for_backward(rows, weight)
        return torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of those of rows, weight and bias that need one."""
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        tall = weight.shape[1] > weight.shape[2]
        return (
            torch.bmm(gradient, weight) if of_rows else None,
            (torch.bmm(rows.mT, gradient).mT if tall else torch.bmm(gradient.mT, rows)) if of_weight else None,
            gradient.sum(dim=1) if of_bias else None,
        )
