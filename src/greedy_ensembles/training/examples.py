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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from greedy_ensembles.checks import check_unmasked
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.forms import Form, InputForm, are_alike, describe_inputs
from greedy_ensembles.inputs import (
    LABELS,
    Inputs,
    Normalize,
    are_several,
    as_entries,
    as_tensor,
    each,
    entries,
    length,
    move,
    take,
    to_model,
)
from greedy_ensembles.storage import digest_of_tensor

_CHUNK = 1024
_LONG, _MOST = 100, 10_000  # items of a list, and objects, among which generators of a Dataset are looked for
_PLAIN = (Tensor, np.ndarray, str, bytes, int, float, type, types.ModuleType)
_LARGEST = torch.finfo(torch.float32).max


class Examples(ABC):
    """n inputs and their labels (int64). Indices lie where labels do."""

    labels: Tensor
    form: Form  #: of the inputs
    off_device: str | None = None  #: why batches cannot be looked up on a device, as one tensor
    weights: Tensor | None = None  #: what each example's loss is multiplied by, float32; None: 1

    @abstractmethod
    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, in the space of the data."""

    @abstractmethod
    def to(self, device: torch.device) -> "Examples":
        """Return the examples on a device, if they can be moved at all."""

    @abstractmethod
    def digest(self) -> str:
        """Return a hash of all inputs and labels."""

    def few(self) -> tuple[Inputs, Tensor]:
        """Return the first three examples, to try a model on."""
        indices = torch.arange(min(3, len(self.labels)), device=self.labels.device)
        return self.inputs(indices), self.labels[indices]

    def chunks(self) -> Iterator[Inputs]:
        """Return all inputs in order, some at a time."""
        for indices in torch.arange(len(self.labels), device=self.labels.device).split(_CHUNK):
            yield self.inputs(indices)


@dataclass
class ArrayExamples(Examples):
    """A pair of tensors, or of a dict or tuple of them and labels."""

    x: Inputs
    labels: Tensor
    form: Form
    off_device: str | None = None
    weights: Tensor | None = None

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices."""
        return take(self.x, indices)  # type: ignore[no-any-return]

    def to(self, device: torch.device) -> "ArrayExamples":
        """Return the examples on a device, or refuse those that it cannot hold."""
        try:
            weights = None if self.weights is None else self.weights.to(device)
            return replace(self, x=move(self.x, device), labels=self.labels.to(device), weights=weights)
        except torch.OutOfMemoryError:
            size = sum(one.nbytes for _, one in entries(self.x))
            floats = (
                " or uint8 images, a quarter of the size" if getattr(self.form, "dtype", None) == torch.float32 else ""
            )
            raise ValueError(
                f"{len(self.labels)} examples of {size / 2**30:.1f} GiB do not fit on {device}; give "
                f"fewer{floats}, or a Dataset, which is read item by item"
            ) from None

    def digest(self) -> str:
        """Return a hash of all inputs, labels and weights."""
        parts = (self.labels,) if self.weights is None else (self.labels, self.weights)
        return hashlib.sha256((digest_of_inputs(self.x) + "".join(map(digest_of_tensor, parts))).encode()).hexdigest()


def digest_of_inputs(x: Inputs) -> str:
    """Return a hash of inputs: that of a tensor, or names and hashes of entries."""
    if isinstance(x, Tensor):
        return digest_of_tensor(x)
    return "".join(f"{name} {digest_of_tensor(one)} " for name, one in sorted(entries(x)))


class DatasetExamples(Examples):
    """A map-style Dataset of (input, label), which stays on the CPU; one pass at the start
    reads the labels and checks the inputs."""

    off_device = "a Dataset is read item by item; give data as a pair of arrays"

    def __init__(self, dataset: "Dataset[Any]", seed: int = 0) -> None:
        self.dataset = dataset
        _seed_own_generators(dataset, seed)  # as the global ones are, so that it is the same data at every start
        labels, digest = [], hashlib.sha256()
        for position in range(len(dataset)):  # type: ignore[arg-type]
            x, label = self._item(position)
            form: Form = each(lambda one, at=position: _form(one[None], at), x)
            if position == 0:
                self.form = form
            elif not are_alike(form, self.form):
                raise ValueError(
                    f"item {position} of data has shape {_shapes(form)}, the first {_shapes(self.form)}; a DataLoader "
                    "whose collate_fn pads its batches can be trained on"
                )
            self.form = each(_joined, self.form, form)
            labels.append(label)
            digest.update(digest_of_inputs(x).encode())
        self.labels = as_labels(labels)
        self._digest = hashlib.sha256((digest.hexdigest() + digest_of_tensor(self.labels)).encode()).hexdigest()

    def _item(self, position: int) -> tuple[Inputs, Any]:
        x, label = split_labels(self.dataset[position], f"items of data must be (input, label), item {position}")
        try:
            return as_entries(x) if are_several(x, least=1) else as_tensor(x), label
        except (TypeError, ValueError):
            kind = type(x).__name__
            raise TypeError(f"inputs of data must be tensors or arrays, that of item {position} is {kind}") from None

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, read anew."""
        return each(lambda *values: torch.stack(values), *(self._item(i)[0] for i in indices.tolist()))  # type: ignore[no-any-return]

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
            f"{name} must be a pair (inputs, labels) or a triple (inputs, labels, weights) of tensors or arrays, an "
            f"ImageSet or a TableSet, or a Dataset with a length; got {type(data).__name__}"
        )
    return examples


def split_labels(item: Any, told: str) -> tuple[Any, Any]:
    """Return inputs and labels of an item or a batch: a pair, or a dict with labels in it; `told` begins a refusal."""
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item), None)
        if name is not None and len(item) > 1:
            return {key: value for key, value in item.items() if key != name}, item[name]
    elif isinstance(item, list | tuple) and len(item) == 2:
        return item[0], item[1]
    kind = f"a {type(item).__name__}"
    parts = f"{kind} of {len(item)}" if isinstance(item, list | tuple) else kind
    raise TypeError(
        f"{told} is {parts}; wrap data in a Dataset that returns these two of each item, or a dict with 'labels' in it"
    )


def _from_arrays(x: Any, y: Any, weights: Any = None) -> ArrayExamples:
    x = as_entries(x) if are_several(x) else as_tensor(x)
    labels = as_labels(y)
    if not entries(x):
        raise ValueError("x is a dict without inputs; give at least one entry")
    for name, one in entries(x):
        if one.ndim < (2 if one is x else 1):
            raise ValueError(
                f"{name} must have shape (n, ...) with at least one input dimension, got shape {tuple(one.shape)}"
            )
        if len(one) != len(labels):
            raise ValueError(
                f"{name} and y must have the same length; {name} has {len(one)} examples, y has {len(labels)} labels"
            )
    if length(x) == 0:
        raise ValueError("x and y are empty; training needs examples")
    x = each(lambda one: one.detach(), x)
    off_device = None if isinstance(x, Tensor) else "inputs are a dict or tuple; give them as one tensor"
    given = None if weights is None else _as_weights(weights, length(x))
    return ArrayExamples(x, labels, each(_form, x), off_device, given)


def _form(x: Tensor, first: int = 0) -> InputForm:
    """Return the form of inputs, or refuse numbers that cannot be trained on; `first` is the index of the first."""
    low, high = math.inf, -math.inf
    for number, chunk in enumerate(x.split(_CHUNK) if x.is_floating_point() and x.numel() else ()):
        least, most = (value.item() for value in torch.aminmax(chunk))
        if not (least >= -_LARGEST and most <= _LARGEST):  # which no NaN is
            proper = (chunk.abs() <= _LARGEST).view(len(chunk), -1).all(dim=1)
            row = int(proper.logical_not().nonzero()[0])
            raise _beyond(first + number * _CHUNK + row, chunk[row])
        low, high = min(low, least), max(high, most)
    return InputForm(tuple(x.shape[1:]), x.dtype, (low, high) if low <= high else None)


def _joined(one: InputForm, other: InputForm) -> InputForm:
    """Return the form of inputs of both: their ranges joined."""
    ranges = [form.range for form in (one, other) if form.range is not None]
    return one._replace(range=(min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None)


def _shapes(form: Form) -> Any:
    return each(lambda one: one.shape, form)


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
    check_unmasked("labels", y)
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iufb":
        remedy = "if they are one-hot, give y.argmax(1); independent labels need an ensemble each, of y[:, k]"
        raise ValueError(f"labels must have shape (n,), one class index an example; got {array.shape}: {remedy}")
    if array.ndim != 1:
        remedy = ", as y.reshape(-1) has them" if array.ndim == 2 else ""
        raise ValueError(f"labels must have shape (n,), one class index an example{remedy}; got {array.shape}")
    if array.dtype.kind not in "iu":
        raise TypeError(f"labels must be whole numbers 0, 1, 2, ...; got {array.dtype}. {_remedy(array)}")
    if array.size and array.min() < 0:
        raise ValueError(f"labels must not be negative, got {array.min()}")
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"labels must be class indices 0, 1, 2, ...; got {array.max()}")
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
    if not are_alike(own.form, examples.form):
        raise ValueError(f"validation holds {describe_inputs(own.form)}, and data {describe_inputs(examples.form)}")
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

    def look_up(self, indices: Tensor, held_out: bool = False) -> tuple[Inputs, Tensor]:
        """Return the inputs at these indices as the models take them, and what the loss is of.

        That is their labels (n,), or, of examples with weights, (n, classes): the weight at the label and 0 elsewhere.
        """
        among = self.held_out if held_out else self.examples
        inputs = to_model(move(among.inputs(indices), self.device), self.normalize, self.dtype)
        labels = among.labels[indices].to(self.device)
        if among.weights is None or held_out:
            return inputs, labels
        # Cross-entropy is linear in its targets: a row w at the label makes it w times that of the label.
        dtype = torch.promote_types(self.dtype, torch.float32)
        targets = torch.zeros(len(labels), self.classes, dtype=dtype, device=self.device)
        return inputs, targets.scatter_(1, labels[:, None], among.weights[indices].to(self.device, dtype)[:, None])
