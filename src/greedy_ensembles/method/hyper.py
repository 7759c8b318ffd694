"""Hyper ensembles (Wenzel et al. 2020): every member has hyperparameters of its own, drawn from ranges.

Member k trains with the recipe's learning rate and weight decay times factors that are log-uniform, with a label
smoothing that is uniform, and with one uniform rate for all dropout layers that its network has. Its other random
numbers are those of Deep Ensembles. They search in these ranges and keep the best; here all that is drawn is kept, so
that the cost is that of Deep Ensembles.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from greedy_ensembles.method.coupling import Schedule
from greedy_ensembles.method.deep import Deep
from greedy_ensembles.method.dropout import DROPOUTS

Range = tuple[float, float]


class Hyper(Deep):
    """Members that differ in their hyperparameters, too.

    Args:
        lr: the range of the factor of the learning rate.
        weight_decay: the range of the factor of the weight decay.
        label_smoothing: the range of the share that goes to all classes alike.
        dropout: the range of the rate of every dropout layer; a network without one has none.
    """

    label = "hyper ensemble"

    def __init__(
        self,
        lr: Range = (0.3, 1.0),
        weight_decay: Range = (0.1, 10.0),
        label_smoothing: Range = (0.0, 0.1),
        dropout: Range = (0.0, 0.3),
    ) -> None:
        self.lr, self.weight_decay = _checked("lr", lr), _checked("weight_decay", weight_decay)
        self.label_smoothing = _checked("label_smoothing", label_smoothing, share=True)
        self.dropout = _checked("dropout", dropout, share=True)

    def check(self, recipe: Any, schedule: Schedule) -> None:
        """Refuse members that train together, and recipes in which nothing can be drawn."""
        super().check(recipe, schedule)
        if callable(recipe.optimizer):
            raise ValueError(
                f"a {self.label} draws lr and weight_decay, which an optimizer of your own has itself; use "
                "optimizer='sgd' or 'adamw'"
            )
        if recipe.loss is not None and self.label_smoothing[1] > 0:
            raise ValueError(
                f"a {self.label} draws a label smoothing, which this loss does not take; use "
                "method=Hyper(label_smoothing=(0, 0))"
            )

    def recipe(self, recipe: Any, number: int, seed: int) -> Any:
        """Return the recipe with the learning rate, weight decay and loss of a member."""
        rate, decay, smoothing, _ = self._drawn(number, seed)
        loss = partial(_smoothed, label_smoothing=smoothing) if smoothing else recipe.loss
        return replace(recipe, lr=recipe.lr * rate, weight_decay=recipe.weight_decay * decay, loss=loss)

    def build(self, model: nn.Module, number: int, seed: int) -> nn.Module:
        """Set the rate of the dropout layers."""
        *_, rate = self._drawn(number, seed)
        for layer in model.modules():
            if isinstance(layer, DROPOUTS):
                layer.p = rate
        return model

    def _drawn(self, number: int, seed: int) -> tuple[float, float, float, float]:
        """Return what a member draws; the same at every call."""
        lr, decay, smoothing, dropout = np.random.default_rng([seed, number]).uniform(size=4).tolist()
        return (
            self.lr[0] * (self.lr[1] / self.lr[0]) ** lr,
            self.weight_decay[0] * (self.weight_decay[1] / self.weight_decay[0]) ** decay,
            self.label_smoothing[0] + (self.label_smoothing[1] - self.label_smoothing[0]) * smoothing,
            self.dropout[0] + (self.dropout[1] - self.dropout[0]) * dropout,
        )


def _smoothed(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """Return the cross-entropy; of targets with weights of examples, a row keeps its weight."""
    if targets.ndim == 1:
        return cross_entropy(logits, targets, label_smoothing=label_smoothing)
    weights = targets.sum(dim=1, keepdim=True)  # PyTorch's own smoothing takes them for 1
    return cross_entropy(logits, torch.lerp(targets, weights / targets.shape[1], label_smoothing))


def _checked(name: str, given: Range, share: bool = False) -> Range:
    """Return a range of factors, or of shares of 1, or refuse it."""
    try:
        low, high = (math.nan if isinstance(end, str) else float(end) for end in given)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (0 <= low <= high < 1 if share else 0 < low <= high < math.inf):
        bounds = "at least 0 and below 1" if share else "above 0 and finite"
        raise ValueError(f"{name} must be a range (low, high), {bounds}; got {given}")
    return low, high
