"""The examples of a training, from arrays or a Dataset, and how batches of them reach the models.

A Dataset is asked for its items anew in every epoch, so that random transforms in it stay random.
"""

import hashlib
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.forms import Form, InputForm, are_alike, columns_of, describe_inputs, form_of, joined
from greedy_ensembles.generators import SHUFFLE, generator, seed_own_generators
from greedy_ensembles.inputs import (
    Inputs,
    Normalize,
    are_several,
    as_entries,
    as_tensor,
    each,
    entries,
    move,
    take,
    to_model,
)
from greedy_ensembles.labels import as_labels, split_labels
from greedy_ensembles.storage import digest_of_tensor

_CHUNK, _VALUES = 1024, 1 << 23  # inputs, and numbers in them, that are looked at together
_CPU = torch.device("cpu")
_SAMPLES = 1 << 26  # the most numbers in a p* set, by default, of data that is not in memory


class Examples(ABC):
    """Inputs and labels, int64: (n,) classes, or (n, labels) of 0 and 1. Indices are on the device of the labels."""

    labels: Tensor
    form: Form  #: of the inputs
    off_device: str | None = None  #: why batches cannot be looked up on a device, as one tensor
    in_memory: bool = False
    one_shape: bool = True  #: whether all batches have the same
    indexed: bool = True  #: whether examples can be looked up, and so be held out
    weights: Tensor | None = None  #: what each example's loss is multiplied by, float32; None: 1

    @abstractmethod
    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, in the space of the data."""

    def to(self, device: torch.device) -> "Examples":
        """Return the examples on a device, or as they are where batches are moved one by one."""
        return self

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of all inputs and labels."""

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.labels)

    def chunks(self, rows: int | None = None) -> Iterator[Inputs]:
        """Return all inputs in order, so many at a time; None: as many as memory has room for anywhere."""
        rows = rows or min(_CHUNK, max(1, _VALUES // self._values()))
        for indices in torch.arange(len(self.labels), device=self.labels.device).split(rows):
            yield self.inputs(indices)

    def _values(self) -> int:
        return sum(math.prod(side or 1 for side in form.shape) for _, form in entries(self.form)) or 1

    def default_samples(self, count: int) -> int:
        """Return the size of the p* set for so many training examples: as many, unless data is not in memory."""
        return count if self.in_memory else min(count, max(1, _SAMPLES // self._values()))

    def epoch(self, train: Tensor, seeds: Sequence[int], number: int, size: int) -> list[Any]:
        """Return the batches of an epoch for all members, as `Data.look_up` takes them: here indices (members, batch).

        Every member shuffles by its own seed. A last batch of one example is left out, since BatchNorm cannot train on
        it; it is another example in every epoch.
        """
        orders = [torch.randperm(len(train), generator=generator(SHUFFLE, seed, number)) for seed in seeds]
        batches = list(train[torch.stack(orders).to(train.device)].split(size, dim=1))
        if len(batches) > 1 and batches[-1].shape[1] == 1 < size:
            batches.pop()
        return batches

    def ordered(self, indices: Tensor, rows: int) -> list[Any]:
        """Return the batches of these examples in order, so many at a time, as `Data.look_up` takes them."""
        return list(indices.split(rows))


@dataclass
class ArrayExamples(Examples):
    """A pair of tensors, or of a dict or tuple of them and labels."""

    x: Inputs
    labels: Tensor
    form: Form
    off_device: str | None = None
    weights: Tensor | None = None
    in_memory: bool = True

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices."""
        return take(self.x, indices)  # type: ignore[no-any-return]

    def to(self, device: torch.device) -> "ArrayExamples":
        """Return the examples on a device, or raise ValueError where its memory does not hold them."""
        try:
            weights = None if self.weights is None else self.weights.to(device)
            return replace(self, x=move(self.x, device), labels=self.labels.to(device), weights=weights)
        except torch.OutOfMemoryError:
            size = sum(one.nbytes for _, one in entries(self.x)) / 2**30
            is_float = getattr(self.form, "dtype", None) == torch.float32
            smaller = " or uint8 images, a quarter of the size" if is_float else ""
            raise ValueError(
                f"{len(self.labels)} examples of {size:.1f} GiB do not fit on {device}; give fewer{smaller}, or a "
                "Dataset, which is read item by item"
            ) from None

    def digest(self) -> str:
        """Return a hash of all inputs, labels and weights."""
        parts = (self.labels,) if self.weights is None else (self.labels, self.weights)
        return hashlib.sha256((digest_of_inputs(self.x) + "".join(map(digest_of_tensor, parts))).encode()).hexdigest()


def stacked(inputs: Iterable[Inputs]) -> Inputs:
    """Return single inputs as a batch."""
    return each(lambda *values: torch.stack(values), *inputs)  # type: ignore[no-any-return]


def digest_of_inputs(x: Inputs) -> str:
    """Return a hash of inputs: that of a tensor, or names and hashes of entries."""
    if isinstance(x, Tensor):
        return digest_of_tensor(x)
    return "".join(f"{name} {digest_of_tensor(one)} " for name, one in sorted(entries(x)))


class DatasetExamples(Examples):
    """A map-style Dataset of (input, label), on the CPU; one pass at the start reads labels and checks inputs."""

    off_device = "a Dataset is read item by item; give data as a pair of arrays"

    def __init__(self, dataset: Any, name: str, targets: str) -> None:
        if len(dataset) == 0:
            raise ValueError(f"{name} is an empty Dataset; training needs examples")
        self.dataset, self._name, self._targets = dataset, name, targets
        labels, digest = [], hashlib.sha256()
        for position, item in enumerate(self._items()):
            x, label = self._split_item(item, position)
            form: Form = each(lambda one, at=position: form_of(one[None], at), x)
            if position == 0:
                self.form = form
            elif not are_alike(form, self.form):
                raise ValueError(
                    f"item {position} of data is {describe_inputs(form)}, the first {describe_inputs(self.form)}; give "
                    "all one type, and one shape, or a DataLoader whose collate_fn pads its batches"
                )
            self.form = each(joined, self.form, form)
            labels.append(label)
            digest.update(digest_of_inputs(x).encode())
        self.labels = as_labels(labels, name, targets)
        self._digest = hashlib.sha256((digest.hexdigest() + digest_of_tensor(self.labels)).encode()).hexdigest()

    def _items(self) -> Iterator[Any]:
        seed_own_generators(self.dataset, 0)  # as the global ones are, so that it is the same data at every start
        return (self.dataset[position] for position in range(len(self.dataset)))

    def _split_item(self, item: Any, position: int) -> tuple[Inputs, Any]:
        x, label = split_labels(item, f"items of data must be (input, label), item {position}")
        try:
            return as_entries(x) if are_several(x, least=1) else as_tensor(x), label
        except (TypeError, ValueError):
            kind = type(x).__name__
            raise TypeError(f"inputs of data must be tensors or arrays, that of item {position} is {kind}") from None

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, read anew."""
        return self._stacked((self.dataset[position] for position in indices.tolist()), indices)

    def _stacked(self, items: Iterable[Any], indices: Tensor) -> Inputs:
        """Return the inputs of items as a batch, or refuse items whose labels are others than at the start."""
        pairs = [self._split_item(item, at) for item, at in zip(items, indices.tolist(), strict=True)]
        labels = as_labels([label for _, label in pairs], self._name, self._targets)
        if not torch.equal(labels, self.labels[indices]):
            odd = next(k for k, at in enumerate(indices.tolist()) if not torch.equal(labels[k], self.labels[at]))
            raise ValueError(
                f"item {int(indices[odd])} of {self._name} has another label than when it was first read, "
                f"{labels[odd].tolist()} and not {self.labels[indices[odd]].tolist()}; a Dataset must keep an item's "
                "label. Give examples that are drawn anew in a DataLoader"
            )
        return stacked(x for x, _ in pairs)

    def digest(self) -> str:
        """Return a hash of all inputs and labels, as they were in the pass at the start."""
        return self._digest


class Reread(torch.utils.data.Dataset[tuple[Inputs, Tensor]]):
    """The items of a Dataset, read anew, and refused where their labels are not those of the first reading."""

    def __init__(self, examples: DatasetExamples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples.labels)

    def __getitem__(self, position: int) -> tuple[Inputs, Tensor]:
        return take(self.examples.inputs(torch.tensor([position])), 0), self.examples.labels[position]


def from_arrays(
    x: Any,
    y: Any,
    weights: Any = None,
    *,
    name: str = "data",
    targets: str = "classes",
    columns: tuple[str, ...] | None = None,
) -> ArrayExamples:
    """Return arrays of inputs and labels, and perhaps of weights, as examples, or refuse them."""
    columns = columns_of(x) if columns is None and not isinstance(x, Tensor) else columns
    on_disk = any(isinstance(one, np.memmap) for _, one in entries(x))
    x = as_entries(x) if are_several(x) else as_tensor(x)
    labels = as_labels(y, name, targets)
    for place, one in entries(x):
        if one.ndim < (2 if one is x else 1):
            raise ValueError(
                f"{place} must have shape (n, ...) with at least one input dimension, got shape {tuple(one.shape)}"
            )
        if len(one) != len(labels):
            raise ValueError(
                f"{place} and y must have the same length; {place} has {len(one)} examples, y has {len(labels)} labels"
            )
    if len(labels) == 0:
        raise ValueError("x and y are empty; training needs examples")
    x = each(lambda one: one.detach(), x)
    bits = [place for place, one in entries(x) if one.dtype == torch.uint8 and one.numel() and one.max() == 1]
    if bits:
        warnings.warn(
            f"{bits[0]} of {name} holds bytes of 0 and 1 alone, and bytes reach the model divided by 255, as 0 and "
            "0.004; give floats for bits, or pixels of 0 to 255",
            stacklevel=6,
        )
    off_device = None if isinstance(x, Tensor) else "inputs are a dict or tuple; give them as one tensor"
    if weights is not None:
        weights = as_tensor(weights).detach().cpu().float()
        if weights.shape != (len(labels),):
            shape = tuple(weights.shape)
            raise ValueError(f"weights must have shape ({len(labels)},), one number an example; got shape {shape}")
        if not bool(((weights >= 0) & weights.isfinite()).all()) or not bool(weights.any()):
            raise ValueError("weights must be finite, at least 0, and above 0 for some examples")
    form: Form = each(form_of, x)
    form = form._replace(columns=columns) if isinstance(form, InputForm) else form
    return ArrayExamples(x, labels, form, off_device, weights, not on_disk)


@dataclass(frozen=True)
class Data:
    """The data of a training, on its device where it can be moved there."""

    examples: Examples
    train: Tensor  #: indices of the examples to train on, on their device
    held_out: Examples  #: what the held-out examples are part of: the same examples, or others
    validation: Tensor  #: indices of the held-out ones; empty where there are none
    share: float | None  #: of the examples that is held out; None where those are data of their own
    given: Any  #: the examples as `ge.fit` was given them
    normalize: Normalize | None
    device: torch.device = _CPU
    classes: int = 0  #: how many logits there are, once a model was tried
    dtype: torch.dtype = torch.float32  #: of the models' parameters, once one was tried

    @property
    def targets(self) -> str:
        """What examples have: one of several "classes", or any of several "labels"."""
        return "labels" if self.examples.labels.ndim == 2 else "classes"

    def look_up(self, batch: Any, held_out: bool = False) -> tuple[Inputs, Tensor]:
        """Return the inputs of a batch, as models take them, and the targets of the loss.

        Targets are labels (n,), or, of examples with weights, (n, classes): the weight at the label and 0 elsewhere.
        Independent labels, (n, labels), are floating-point numbers there, with weights (n, labels, 2) of them.
        A batch is indices, or an iterator whose next one is meant. Of held-out examples labels are as they are.
        """
        examples = self.held_out if held_out else self.examples
        precision = torch.promote_types(self.dtype, torch.float32)
        if not isinstance(batch, Tensor):
            inputs, labels = self._next(batch)
            return inputs, labels if held_out or labels.ndim == 1 else labels.to(precision)
        inputs = to_model(move(examples.inputs(batch), self.device), self.normalize, self.dtype)
        labels = examples.labels[batch].to(self.device)
        if held_out or (examples.weights is None and labels.ndim == 1):
            return inputs, labels
        targets = labels.to(precision)
        if examples.weights is None:
            return inputs, targets
        # Cross-entropy is linear in its targets: a row w at the label makes it w times that of the label.
        weights = examples.weights[batch].to(self.device, precision)[:, None]
        if labels.ndim == 2:
            return inputs, torch.stack([1 - targets, targets], dim=-1) * weights[:, None]
        targets = torch.zeros(len(labels), self.classes, dtype=precision, device=self.device)
        return inputs, targets.scatter_(1, labels[:, None], weights)

    def _next(self, batches: Iterator[tuple[Inputs, Tensor]]) -> tuple[Inputs, Tensor]:
        """Return the next batch, or refuse labels that these models have no outputs for."""
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
