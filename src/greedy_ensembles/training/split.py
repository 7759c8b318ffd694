"""Which examples to learn from and which are held out, and the way of a batch from both to the models."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.forms import are_alike, describe_inputs
from greedy_ensembles.inputs import Inputs, Normalize, entries, move, to_model
from greedy_ensembles.training.examples import Examples


class SplitError(ValueError):
    """The examples are too few for a stratified validation split; they can be trained on without one."""


def split_off(examples: Examples, validation: Any, seed: int) -> tuple[Tensor, Examples, Tensor]:
    """Return the indices to learn from, and what is held out: the examples among which, and their indices.

    `validation` is a share, or examples of its own.
    """
    if not isinstance(validation, Examples):
        if examples.indexed:
            train, held_out = split(examples.labels, validation, seed)
            return train, examples, held_out
        if validation == 0:
            return torch.arange(examples.count), examples, torch.arange(0)
        raise ValueError(
            f"validation={validation!r} is a share, and a DataLoader cannot be split; give validation data of its own, "
            "or 0 to keep each member's last epoch"
        )
    if not are_alike(validation.form, examples.form):
        raise ValueError(
            f"validation holds {describe_inputs(validation.form)}, and data {describe_inputs(examples.form)}: give "
            "both the same type and shape"
        )
    for name, own in entries(examples.form):
        one = dict(entries(validation.form))[name]
        if one.range is not None and (remedy := own.other_scale(*one.range)):
            raise ValueError(
                f"{name} of validation is within {one.range}, and that of data within {own.range}: {remedy}"
            )
    if validation.labels.shape[1:] != examples.labels.shape[1:]:
        widths = validation.labels.shape[1], examples.labels.shape[1]
        raise ValueError(f"validation has {widths[0]} labels an example, and data {widths[1]}; give it the same ones")
    return torch.arange(examples.count), validation, torch.arange(validation.count)


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to learn from and those held out, a share of every class, drawn from the seed alone.

    Of independent labels, (n, labels), it is a share of all examples.
    """
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
        raise ValueError(
            f"validation must be a share of the data, at least 0 and below 1, or data of its own; got {share!r}"
        )
    share, everything = float(share), np.arange(len(labels))
    if share == 0:
        return torch.from_numpy(everything), torch.empty(0, dtype=torch.long)
    strata = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    kinds, counts = np.unique(strata, return_counts=True)
    remedy = "use validation=0 to train on everything and keep each member's last epoch"
    if counts.min() < 2:
        raise SplitError(
            f"class {kinds[counts.argmin()]} has one example, and a stratified validation split needs two of each; "
            f"add examples, or {remedy}"
        )
    held_out = math.ceil(share * len(labels))
    if min(held_out, len(labels) - held_out) < len(kinds):
        raise SplitError(
            f"validation={share} holds out {held_out} of {len(labels)} examples, and both parts need at least one of "
            f"each of {len(kinds)} classes; change validation, or {remedy}"
        )
    from sklearn.model_selection import train_test_split  # as slow to import as torch, and not always needed

    train, held = train_test_split(everything, test_size=share, stratify=strata, random_state=seed)
    return torch.from_numpy(train), torch.from_numpy(held)


@dataclass(frozen=True)
class Data:
    """The examples of a training, on its device where they can be moved there: which to learn from, which held out."""

    examples: Examples
    train: Tensor  #: indices of the examples to learn from, on the examples' device
    held_out: Examples  #: where the held-out ones are: among the examples, or data of their own
    validation: Tensor  #: indices of those; empty where none are
    normalize: Normalize | None
    device: torch.device
    classes: int  #: how many logits there are
    dtype: torch.dtype  #: of the models' parameters

    @property
    def targets(self) -> str:
        """What examples have: one of several "classes", or any of several "labels"."""
        return "labels" if self.examples.labels.ndim == 2 else "classes"

    def look_up(self, indices: Any, held_out: bool = False) -> tuple[Inputs, Tensor]:
        """Return the inputs at these indices, or the next of an iterator, as models take them, and what the loss is of.

        That is their labels (n,), or, of examples with weights, (n, classes): the weight at the label and 0 elsewhere.
        Independent labels, (n, labels), are floating-point numbers there, with weights (n, labels, 2) of them.
        """
        among = self.held_out if held_out else self.examples
        if not isinstance(indices, Tensor):
            inputs, labels = self._next(indices)
            return inputs, labels if held_out or labels.ndim == 1 else labels.to(self._precision)
        inputs = to_model(move(among.inputs(indices), self.device), self.normalize, self.dtype)
        labels = among.labels[indices].to(self.device)
        if held_out or (among.weights is None and labels.ndim == 1):
            return inputs, labels
        targets = labels.to(self._precision)
        if among.weights is None:
            return inputs, targets
        # Cross-entropy is linear in its targets: a row w at the label makes it w times that of the label.
        weights = among.weights[indices].to(self.device, self._precision)[:, None]
        if labels.ndim == 2:
            return inputs, torch.stack([1 - targets, targets], dim=-1) * weights[:, None]
        targets = torch.zeros(len(labels), self.classes, dtype=self._precision, device=self.device)
        return inputs, targets.scatter_(1, labels[:, None], weights)

    @property
    def _precision(self) -> torch.dtype:
        return torch.promote_types(self.dtype, torch.float32)

    def _next(self, batches: Iterator[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
        """Return the next batch, or say that there is none, or none that these models know the classes of."""
        batch = next(batches, None)
        if batch is None:
            raise ValueError(
                "data ended before all steps of an epoch were taken; Recipe(steps_per_epoch=...) sets them"
            )
        inputs, labels = batch
        if labels.ndim == 2 and labels.shape[1] != self.classes:
            raise ValueError(f"labels of a batch have {labels.shape[1]} columns, the model {self.classes} logits")
        if len(labels) and int(labels.max()) >= self.classes:
            raise ValueError(f"labels go up to {int(labels.max())}, but the model has {self.classes} outputs")
        moved = move(inputs, self.device, non_blocking=True)
        return to_model(moved, self.normalize, self.dtype), labels.to(self.device)
