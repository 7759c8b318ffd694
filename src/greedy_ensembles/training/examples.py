"""Training data of either kind, a pair of arrays or a Dataset, behind one small face, checked once; and its split.

A Dataset is asked for its items anew in every epoch, so that random transforms in it stay random.
"""

import contextlib
import functools
import hashlib
import itertools
import math
import random
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from greedy_ensembles.data import LabelledSet
from greedy_ensembles.inputs import Normalize, as_tensor, to_model
from greedy_ensembles.storage import digest_of_tensor

_CHUNK = 1024
_LONG, _MOST = 100, 10_000  # items of a list, and objects, among which generators of a Dataset are looked for
_PLAIN = (Tensor, np.ndarray, str, bytes, int, float, type, types.ModuleType)
_LARGEST = torch.finfo(torch.float32).max


class Examples(ABC):
    """n inputs and their labels (int64); `shape` and `dtype` are those of one input. Indices lie where labels do."""

    labels: Tensor
    shape: torch.Size
    dtype: torch.dtype
    range: tuple[float, float] | None  #: smallest and largest value of floating-point inputs
    weights: Tensor | None = None  #: what each example's loss is multiplied by, float32; None: 1

    @abstractmethod
    def inputs(self, indices: Tensor) -> Tensor:
        """Return the inputs at these indices, in the space of the data."""

    @abstractmethod
    def to(self, device: torch.device) -> "Examples":
        """Return the examples on a device, if they can be moved at all."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of all inputs and labels."""

    def chunks(self) -> Iterator[Tensor]:
        """Return all inputs in order, some at a time."""
        for indices in torch.arange(len(self.labels), device=self.labels.device).split(_CHUNK):
            yield self.inputs(indices)


@dataclass
class ArrayExamples(Examples):
    """A pair of tensors."""

    x: Tensor
    labels: Tensor
    shape: torch.Size
    dtype: torch.dtype
    range: tuple[float, float] | None = None
    weights: Tensor | None = None

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the inputs at these indices."""
        return self.x[indices]

    def to(self, device: torch.device) -> "ArrayExamples":
        """Return the examples on a device, or refuse those that it cannot hold."""
        try:
            weights = None if self.weights is None else self.weights.to(device)
            return replace(self, x=self.x.to(device), labels=self.labels.to(device), weights=weights)
        except torch.OutOfMemoryError:
            floats = " or uint8 images, a quarter of the size" if self.dtype == torch.float32 else ""
            raise ValueError(
                f"{len(self.labels)} examples of {self.x.nbytes / 2**30:.1f} GiB do not fit on {device}; give "
                f"fewer{floats}, or a Dataset, which is read item by item"
            ) from None

    def digest(self) -> str:
        """Return a hash of all inputs, labels and weights."""
        parts = (self.x, self.labels) if self.weights is None else (self.x, self.labels, self.weights)
        return hashlib.sha256("".join(map(digest_of_tensor, parts)).encode()).hexdigest()


class DatasetExamples(Examples):
    """A map-style Dataset of (input, label), which stays on the CPU; one pass at the start
    reads the labels and checks the inputs."""

    def __init__(self, dataset: "Dataset[Any]", seed: int = 0) -> None:
        self.dataset = dataset
        _seed_own_generators(dataset, seed)  # as the global ones are, so that it is the same data at every start
        labels, digest = [], hashlib.sha256()
        low, high = math.inf, -math.inf
        for position in range(len(dataset)):  # type: ignore[arg-type]
            x, label = self._item(position)
            if position == 0:
                self.shape, self.dtype = x.shape, x.dtype
            elif x.shape != self.shape:
                raise ValueError(f"item {position} of data has shape {tuple(x.shape)}, the first {tuple(self.shape)}")
            if x.is_floating_point() and x.numel():
                least, most = (value.item() for value in torch.aminmax(x))
                if not (least >= -_LARGEST and most <= _LARGEST):
                    raise _beyond(position, x)
                low, high = min(low, least), max(high, most)
            labels.append(label)
            digest.update(digest_of_tensor(x).encode())
        self.labels, self.range = as_labels(labels), (low, high) if low <= high else None
        self._digest = hashlib.sha256((digest.hexdigest() + digest_of_tensor(self.labels)).encode()).hexdigest()

    def _item(self, position: int) -> tuple[Tensor, Any]:
        item = self.dataset[position]
        if not isinstance(item, list | tuple) or len(item) != 2:
            parts = f"a {type(item).__name__} of {len(item)}" if isinstance(item, list | tuple) else type(item).__name__
            raise TypeError(
                f"items of data must be (input, label), item {position} is {parts}; wrap data in a Dataset that "
                "returns these two of each item"
            )
        try:
            return as_tensor(item[0]), item[1]
        except (TypeError, ValueError):
            kind = type(item[0]).__name__
            raise TypeError(f"inputs of data must be tensors or arrays, that of item {position} is {kind}") from None

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the inputs at these indices, read anew."""
        return torch.stack([self._item(i)[0] for i in indices.tolist()])

    def to(self, device: torch.device) -> "DatasetExamples":
        """Return the examples as they are: batches move, the Dataset cannot."""
        return self

    def digest(self) -> str:
        """Return a hash of all inputs and labels, as they were in the pass at the start."""
        return self._digest


def _seed_own_generators(dataset: "Dataset[Any]", seed: int) -> None:
    """Seed the generators of random numbers that a Dataset keeps, itself or in what it keeps, transforms included."""
    waiting: list[Any] = [dataset]
    known: set[int] = set()
    while waiting and len(known) < _MOST:
        value = waiting.pop()
        if id(value) in known or isinstance(value, _PLAIN):
            continue
        known.add(id(value))
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(seed).state
        elif isinstance(value, np.random.RandomState | random.Random):
            value.seed(seed)
        elif isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            waiting += itertools.islice(items, _LONG)  # longer ones are of paths or items, and all alike
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with contextlib.suppress(ValueError):  # of a cell that is empty
                    waiting.append(cell.cell_contents)
        elif isinstance(value, types.MethodType | types.BuiltinMethodType):
            waiting.append(value.__self__)
        elif isinstance(value, functools.partial):
            waiting += [value.func, value.args, value.keywords]
        else:
            waiting += getattr(value, "__dict__", {}).values()


def as_examples(data: Any, name: str = "data", seed: int = 0) -> Examples:
    """Return labelled data behind its common face, or refuse it, naming what is wrong.

    Args:
        data: as `ge.fit` takes it.
        name: what messages call it.
        seed: for the generators that a Dataset has of its own.
    """
    if isinstance(data, LabelledSet):
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels; training needs one for every input")
        data = (data.inputs, data.labels)
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform its items
        data = data.tensors
    if isinstance(data, list | tuple) and len(data) in (2, 3):
        examples: Examples = _from_arrays(*data)
    elif isinstance(data, Dataset) and hasattr(data, "__len__"):
        if len(data) == 0:
            raise ValueError(f"{name} is an empty Dataset; training needs examples")
        examples = DatasetExamples(data, seed)
    else:
        raise TypeError(
            f"{name} must be a pair (x, y) or a triple (x, y, weights) of tensors or arrays, an ImageSet or a "
            f"TableSet, or a Dataset with a length; got {type(data).__name__}"
        )
    return examples


def _from_arrays(x: Any, y: Any, weights: Any = None) -> ArrayExamples:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (n, ...) with at least one input dimension, got shape {tuple(x.shape)}")
    labels = as_labels(y)
    if len(x) != len(labels):
        raise ValueError(f"x and y must have the same length; x has {len(x)} examples, y has {len(labels)} labels")
    if len(x) == 0:
        raise ValueError("x and y are empty; training needs examples")
    low, high = math.inf, -math.inf
    for number, chunk in enumerate(x.detach().split(_CHUNK) if x.is_floating_point() and x.numel() else ()):
        least, most = (value.item() for value in torch.aminmax(chunk))
        if not (least >= -_LARGEST and most <= _LARGEST):  # which no NaN is
            proper = (chunk.abs() <= _LARGEST).flatten(1).all(dim=1)
            row = int(proper.logical_not().nonzero()[0])
            raise _beyond(number * _CHUNK + row, chunk[row])
        low, high = min(low, least), max(high, most)
    limits = (low, high) if low <= high else None
    given = None if weights is None else _as_weights(weights, len(x))
    return ArrayExamples(x.detach(), labels, x.shape[1:], x.dtype, limits, given)


def _as_weights(weights: Any, count: int) -> Tensor:
    """Return weights of examples as float32 on the CPU, or refuse them."""
    found = as_tensor(weights).detach().cpu().float()
    if found.shape != (count,):
        raise ValueError(f"weights must have shape ({count},), one number an example; got shape {tuple(found.shape)}")
    if not bool(((found >= 0) & found.isfinite()).all()) or not bool(found.any()):
        raise ValueError("weights must be finite, at least 0, and above 0 for some examples")
    return found


def _beyond(example: int, x: Tensor) -> ValueError:
    """Return why an example cannot be trained on."""
    if not torch.isfinite(x).all():
        return ValueError(f"x holds NaN or infinity, first in example {example}; training needs finite inputs")
    return ValueError(
        f"x is beyond the range of float32, in which models train, first in example {example}, which reaches "
        f"{x.abs().max():g}; scale it, or take logarithms"
    )


def as_labels(y: Any) -> Tensor:
    """Return labels as int64 on the CPU, or refuse them."""
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iufb":
        remedy = "if they are one-hot, give y.argmax(1)"
        raise ValueError(f"labels must have shape (n,), one class index an example; got {array.shape}: {remedy}")
    if array.ndim != 1:
        remedy = ", as y.reshape(-1) has them" if array.ndim == 2 else ""
        raise ValueError(f"labels must have shape (n,), one class index an example{remedy}; got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"labels must be whole numbers 0, 1, 2, ...; got {array.dtype}. {_remedy(array)}")
    if array.size and array.min() < 0:
        raise ValueError(f"labels must not be negative, got {array.min()}")
    return torch.from_numpy(array.astype(np.int64))


def _remedy(labels: np.ndarray) -> str:
    """Return what would make class indices of something else."""
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        return (
            "Numbers such as these are no classes: regression is not done here; sort them into ranges, as np.digitize"
        )
    if labels.dtype.kind in "fb":
        return "Convert them, as y.long() does of tensors and y.astype(int) of arrays"
    return "np.unique(y, return_inverse=True)[1] numbers classes; ge.GreedyEnsembleClassifier takes labels of any kind"


class SplitError(ValueError):
    """The examples are too few for a stratified validation split; they can be trained on without one."""


def split_off(examples: Examples, validation: Any, seed: int) -> tuple[Tensor, Examples, Tensor]:
    """Return the indices to learn from, and what is held out: the examples among which, and their indices."""
    if isinstance(validation, Real | str | None.__class__):
        train, held_out = split(examples.labels, validation, seed)  # type: ignore[arg-type]
        return train, examples, held_out
    own = as_examples(validation, "validation", seed)
    if own.shape != examples.shape or own.dtype != examples.dtype:
        found = f"{own.dtype} of shape {tuple(own.shape)}"
        raise ValueError(f"validation holds {found}, and data {examples.dtype} of shape {tuple(examples.shape)}")
    return torch.arange(len(examples.labels)), own, torch.arange(len(own.labels))


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to learn from and those held out, a share of every class, drawn from the seed alone."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
        raise ValueError(
            f"validation must be a share of the data, at least 0 and below 1, or data of its own; got {share!r}"
        )
    share, everything = float(share), np.arange(len(labels))
    if share == 0:
        return torch.from_numpy(everything), torch.empty(0, dtype=torch.long)
    kinds, counts = np.unique(labels.numpy(), return_counts=True)
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

    train, held = train_test_split(everything, test_size=share, stratify=labels.numpy(), random_state=seed)
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
    classes: int
    dtype: torch.dtype  #: of the models' parameters

    def look_up(self, indices: Tensor, held_out: bool = False) -> tuple[Tensor, Tensor]:
        """Return the inputs at these indices as the models take them, and what the loss is of.

        That is their labels (n,), or, of examples with weights, (n, classes): the weight at the label and 0 elsewhere.
        """
        among = self.held_out if held_out else self.examples
        inputs = to_model(among.inputs(indices).to(self.device), self.normalize, self.dtype)
        labels = among.labels[indices].to(self.device)
        if among.weights is None or held_out:
            return inputs, labels
        # Cross-entropy is linear in its targets: a row w at the label makes it w times that of the label.
        dtype = torch.promote_types(self.dtype, torch.float32)
        targets = torch.zeros(len(labels), self.classes, dtype=dtype, device=self.device)
        return inputs, targets.scatter_(1, labels[:, None], among.weights[indices].to(self.device, dtype)[:, None])
