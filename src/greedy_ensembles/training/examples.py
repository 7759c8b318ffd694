"""Training data of either kind, a pair of arrays or a Dataset, behind one small face, checked once.

A Dataset is asked for its items anew in every epoch, so that random transforms in it stay random.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from greedy_ensembles.data import ImageSet
from greedy_ensembles.inputs import as_tensor
from greedy_ensembles.storage import digest_of_tensor

_CHUNK = 1024


class Examples(ABC):
    """n inputs and their labels (int64); `shape` and `dtype` are those of one input, indices must lie on `device`."""

    labels: Tensor
    shape: torch.Size
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        """Where the examples lie."""
        return self.labels.device

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
        for indices in torch.arange(len(self), device=self.device).split(_CHUNK):
            yield self.inputs(indices)


class ArrayExamples(Examples):
    """A pair of tensors."""

    def __init__(self, x: Tensor, labels: Tensor) -> None:
        self.x, self.labels = x, labels
        self.shape, self.dtype = x.shape[1:], x.dtype

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the inputs at these indices."""
        return self.x[indices]

    def to(self, device: torch.device) -> "ArrayExamples":
        """Return the examples on a device."""
        return ArrayExamples(self.x.to(device), self.labels.to(device))

    def digest(self) -> str:
        """Return a hash of all inputs and labels."""
        return hashlib.sha256((digest_of_tensor(self.x) + digest_of_tensor(self.labels)).encode()).hexdigest()


class DatasetExamples(Examples):
    """A map-style Dataset of (input, label), which stays on the CPU; one pass at the start
    reads the labels and checks the inputs."""

    def __init__(self, dataset: "Dataset[Any]") -> None:
        self.dataset = dataset
        labels, digest = [], hashlib.sha256()
        for position in range(len(dataset)):  # type: ignore[arg-type]
            x, label = self._item(position)
            if position == 0:
                self.shape, self.dtype = x.shape, x.dtype
            elif x.shape != self.shape:
                raise ValueError(f"item {position} of data has shape {tuple(x.shape)}, the first {tuple(self.shape)}")
            if not torch.isfinite(x).all():
                raise _not_finite(position)
            labels.append(label)
            digest.update(digest_of_tensor(x).encode())
        self.labels = as_labels(labels)
        self._digest = hashlib.sha256((digest.hexdigest() + digest_of_tensor(self.labels)).encode()).hexdigest()

    def _item(self, position: int) -> tuple[Tensor, Any]:
        item = self.dataset[position]
        if not isinstance(item, list | tuple) or len(item) != 2:
            raise TypeError(f"items of data must be (input, label), item {position} is {type(item).__name__}")
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


def as_examples(data: Any) -> Examples:
    """Return training data behind its common face, or refuse it, naming what is wrong."""
    if isinstance(data, ImageSet):
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels; training needs one for every image")
        data = (data.images, data.labels)
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform its items
        data = data.tensors
    if isinstance(data, list | tuple) and len(data) == 2:
        examples: Examples = _from_arrays(*data)
    elif isinstance(data, Dataset) and hasattr(data, "__len__"):
        if len(data) == 0:
            raise ValueError("data is an empty Dataset; training needs examples")
        examples = DatasetExamples(data)
    else:
        raise TypeError(
            "data must be a pair (x, y) of tensors or arrays, an ImageSet, or a Dataset with a length; "
            f"got {type(data).__name__}"
        )
    return examples


def _from_arrays(x: Any, y: Any) -> ArrayExamples:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (n, ...) with at least one input dimension, got shape {tuple(x.shape)}")
    labels = as_labels(y)
    if len(x) != len(labels):
        raise ValueError(f"x and y must have the same length; x has {len(x)} examples, y has {len(labels)} labels")
    if len(x) == 0:
        raise ValueError("x and y are empty; training needs examples")
    for number, chunk in enumerate(x.split(_CHUNK)):
        finite = torch.isfinite(chunk).flatten(1).all(dim=1)
        if not finite.all():
            raise _not_finite(number * _CHUNK + int(finite.logical_not().nonzero()[0]))
    return ArrayExamples(x.detach(), labels)


def _not_finite(example: int) -> ValueError:
    return ValueError(f"x holds NaN or infinity, first in example {example}; training needs finite inputs")


def as_labels(y: Any) -> Tensor:
    """Return labels as int64 on the CPU, or refuse them."""
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.dtype.kind not in "iu":
        raise TypeError(f"labels must be whole numbers 0, 1, 2, ...; got {array.dtype}. Convert them, as y.long() does")
    if array.ndim != 1:
        raise ValueError(f"labels must have shape (n,), one class index an example; got {array.shape}")
    if array.size and array.min() < 0:
        raise ValueError(f"labels must not be negative, got {array.min()}")
    return torch.from_numpy(array.astype(np.int64))
