"""Training data of either kind, a pair of arrays or a Dataset, behind one small face, checked once; and its split.

A Dataset is asked for its items anew in every epoch, so that random transforms in it stay random.
"""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from greedy_ensembles.checks import check_unmasked
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.forms import Form, InputForm, are_alike, describe_inputs, form_of, joined
from greedy_ensembles.generators import SHUFFLE, generator, seed_own_generators
from greedy_ensembles.inputs import (
    Inputs,
    are_several,
    as_entries,
    as_tensor,
    each,
    entries,
    move,
    split_labels,
    take,
)
from greedy_ensembles.method.weighting import moments
from greedy_ensembles.storage import digest_of_tensor

#: A column's size, and how many times another's it is, from which on networks do not learn well from a table.
_LARGE, _SPREAD = 10.0, 100.0
_CHUNK, _VALUES = 1024, 1 << 23  # inputs, and numbers in them, that are looked at together
_SAMPLES = 1 << 26  # numbers in a p* set of data that memory does not hold, unless it is told


class Examples(ABC):
    """n inputs and their labels, int64: (n,) classes, or (n, labels) of 0 and 1. Indices lie where labels do."""

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
        """Return the examples on a device, or as they are where only batches can be moved."""
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
        """Return how many numbers an input has."""
        return sum(math.prod(side or 1 for side in form.shape) for _, form in entries(self.form)) or 1

    def default_samples(self, count: int) -> int:
        """Return how many samples of p* there are for so many examples to learn from: as many, if memory is theirs."""
        return count if self.in_memory else min(count, max(1, _SAMPLES // self._values()))

    def epoch(self, train: Tensor, seeds: Sequence[int], number: int, size: int) -> list[Any]:
        """Return an epoch step by step: what `Data.look_up` takes for every member, indices (members, batch) here.

        Every member shuffles by its own seed. A last batch of one example is left out, since BatchNorm cannot train on
        it; it is another one in every epoch.
        """
        orders = [torch.randperm(len(train), generator=generator(SHUFFLE, seed, number)) for seed in seeds]
        batches = list(train[torch.stack(orders).to(train.device)].split(size, dim=1))
        if len(batches) > 1 and batches[-1].shape[1] == 1 < size:
            batches.pop()
        return batches

    def ordered(self, indices: Tensor, rows: int) -> list[Any]:
        """Return what `Data.look_up` takes to give these examples in order, so many at a time."""
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


def stacked(inputs: Iterable[Inputs]) -> Inputs:
    """Return single inputs as a batch."""
    return each(lambda *values: torch.stack(values), *inputs)  # type: ignore[no-any-return]


def digest_of_inputs(x: Inputs) -> str:
    """Return a hash of inputs: that of a tensor, or names and hashes of entries."""
    if isinstance(x, Tensor):
        return digest_of_tensor(x)
    return "".join(f"{name} {digest_of_tensor(one)} " for name, one in sorted(entries(x)))


class DatasetExamples(Examples):
    """A map-style Dataset of (input, label), which stays on the CPU; one pass at the start
    reads the labels and checks the inputs."""

    off_device = "a Dataset is read item by item; give data as a pair of arrays"

    def __init__(self, dataset: "Dataset[Any]", seed: int = 0, name: str = "data", targets: str = "classes") -> None:
        self.dataset = dataset
        labels, digest = [], hashlib.sha256()
        for position, item in enumerate(self._items(seed)):
            x, label = self._parts(item, position)
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

    def _items(self, seed: int) -> Iterator[Any]:
        seed_own_generators(self.dataset, seed)  # as the global ones are, so that it is the same data at every start
        return (self.dataset[position] for position in range(self._length()))

    def _length(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def _parts(self, item: Any, position: int) -> tuple[Inputs, Any]:
        """Return input and label of an item, or refuse it."""
        x, label = split_labels(item, f"items of data must be (input, label), item {position}")
        try:
            return as_entries(x) if are_several(x, least=1) else as_tensor(x), label
        except (TypeError, ValueError):
            kind = type(x).__name__
            raise TypeError(f"inputs of data must be tensors or arrays, that of item {position} is {kind}") from None

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, read anew."""
        return stacked(self._parts(self.dataset[position], position)[0] for position in indices.tolist())

    def digest(self) -> str:
        """Return a hash of all inputs and labels, as they were in the pass at the start."""
        return self._digest


def as_examples(data: Any, name: str = "data", seed: int = 0, targets: str = "classes", recipe: Any = None) -> Examples:
    """Return labelled data behind its common face, or refuse it, naming what is wrong.

    Args:
        data: as `ge.fit` takes it.
        name: what messages call it.
        seed: for the generators that a Dataset has of its own.
        targets: what inputs have, "classes" or "labels".
        recipe: a `ge.Recipe`, which says how loaders and Datasets are read in training; None: a DataLoader is read
            once, and held in memory.
    """
    streams = isinstance(data, DataLoader | IterableDataset)
    if streams or (recipe is not None and (recipe.num_workers or recipe.steps_per_epoch is not None)):
        # Which has kinds of examples, as this file defines them.
        from greedy_ensembles.training.loaders import LoaderExamples, being_read

        if recipe is None and isinstance(data, DataLoader):
            return LoaderExamples(data, name, seed, targets=targets).whole()
        if recipe is not None and (read := being_read(data, name, seed, recipe, targets)) is not None:
            return read
    if isinstance(data, LabelledSet):
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels; training needs one for every input")
        data = (data.inputs, data.labels)
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform its items
        data = data.tensors
    if isinstance(data, list | tuple) and len(data) in (2, 3):
        try:
            examples: Examples = _from_arrays(*data, name=name, targets=targets)
        except ValueError as error:
            if name == "data" or name in str(error):
                raise
            raise ValueError(f"{name}: {error}") from None
    elif isinstance(data, Dataset) and hasattr(data, "__len__"):
        if len(data) == 0:
            raise ValueError(f"{name} is an empty Dataset; training needs examples")
        examples = DatasetExamples(data, seed, name, targets)
    else:
        raise TypeError(
            f"{name} must be a pair (inputs, labels) or a triple (inputs, labels, weights) of tensors or arrays, an "
            f"ImageSet or a TableSet, a Dataset with a length, or a DataLoader; got {type(data).__name__}"
        )
    return examples


def _from_arrays(x: Any, y: Any, weights: Any = None, *, name: str = "data", targets: str = "classes") -> ArrayExamples:
    on_disk = any(isinstance(one, np.memmap) for _, one in entries(x))
    x = as_entries(x) if are_several(x) else as_tensor(x)
    labels = as_labels(y, name, targets)
    if not entries(x):
        raise ValueError("x is a dict without inputs; give at least one entry")
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
    off_device = None if isinstance(x, Tensor) else "inputs are a dict or tuple; give them as one tensor"
    given = None if weights is None else _as_weights(weights, len(labels))
    return ArrayExamples(x, labels, each(form_of, x), off_device, given, not on_disk)


def _as_weights(weights: Any, count: int) -> Tensor:
    """Return weights of examples as float32 on the CPU, or refuse them."""
    found = as_tensor(weights).detach().cpu().float()
    if found.shape != (count,):
        raise ValueError(f"weights must have shape ({count},), one number an example; got shape {tuple(found.shape)}")
    if not bool(((found >= 0) & found.isfinite()).all()) or not bool(found.any()):
        raise ValueError("weights must be finite, at least 0, and above 0 for some examples")
    return found


def as_labels(y: Any, data: str = "data", targets: str = "classes") -> Tensor:
    """Return labels as int64 on the CPU, or refuse them; messages say of which `data` they are, if not of all."""
    name = "labels" if data == "data" else f"labels of {data}"
    check_unmasked(name, y)
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if targets == "labels":
        return _as_independent(array, name)
    whole = array.dtype.kind != "f" or np.array_equal(array, np.round(array))
    if array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "iufb":
        remedy = "if they are one-hot, give y.argmax(1); independent labels are for ge.fit(..., targets='labels')"
        raise ValueError(f"{name} must have shape (n,), one class index an example; got {array.shape}: {remedy}")
    if array.ndim != 1 and whole:
        remedy = ", as y.reshape(-1) has them" if array.ndim == 2 else ""
        raise ValueError(f"{name} must have shape (n,), one class index an example{remedy}; got {array.shape}")
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"{name} must be whole numbers 0, 1, 2, ...; got {array.dtype}. {_remedy(array)}")
    if array.size and array.min() < 0:
        raise ValueError(f"{name} must not be negative, got {array.min()}")
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must be class indices 0, 1, 2, ...; got {array.max()}")
    return torch.from_numpy(array.astype(np.int64))


def _as_independent(array: np.ndarray, name: str) -> Tensor:
    """Return labels of which any may apply, (n, labels), or refuse them."""
    if array.ndim != 2 or array.shape[1] < 2:
        raise ValueError(
            f"{name} must have shape (n, labels), two labels or more, for targets='labels'; got {array.shape}. One "
            "label is two classes: give them as (n,), without targets"
        )
    if array.dtype.kind not in "iufb" or not bool(((array == 0) | (array == 1)).all()):
        raise ValueError(f"{name} must be 0 and 1 for targets='labels', whether each label applies")
    return torch.from_numpy(array.astype(np.int64))


def _remedy(labels: np.ndarray) -> str:
    """Return what would make class indices of something else."""
    if labels.dtype.kind == "f" and not np.array_equal(labels, np.round(labels)):
        return (
            "Numbers such as these are no classes, and regression is not done here; np.digitize sorts them into ranges"
        )
    if labels.dtype.kind in "fb":
        return "Convert them, as y.long() does of tensors and y.astype(int) of arrays"
    return "np.unique(y, return_inverse=True)[1] numbers classes; ge.GreedyEnsembleClassifier takes labels of any kind"


def advice_on_scale(examples: Examples, normalize: object) -> str:
    """Return what to do about a table whose columns are of very different size, or all very large; or nothing."""
    form = examples.form
    table = isinstance(form, InputForm) and len(form.shape) == 1 and form.dtype.is_floating_point
    if not table or normalize is not None:
        return ""
    mean, std = moments(examples.chunks())  # type: ignore[arg-type]
    sizes = torch.maximum(mean.abs(), std)
    sizes = sizes[sizes > 0]
    if not len(sizes) or sizes.max() < _LARGE or sizes.max() < _SPREAD * min(1.0, float(sizes.min())):
        return ""
    scale = "x.std(0)" if bool((std > 0).all()) else "x.std(0) + (x.std(0) == 0)"
    return (
        f"to standardise the columns of x, which are of the size of {sizes.min():.2g} to {sizes.max():.2g}: "
        f"Recipe(normalize=(x.mean(0), {scale})), or ge.GreedyEnsembleClassifier, which does it"
    )
