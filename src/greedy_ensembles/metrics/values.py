"""The way in and the way out of every metric: arrays or tensors in, the same kind out, on the device of the input.

Inside, a metric knows tensors alone. The first argument decides the kind and the device of the result; a second one
(OOD scores, labels) may be of either kind and is brought to that device.
"""

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.checks import check_unmasked

#: How far from 1 a row of probabilities may sum: enough for bfloat16, and far too little for logits or scores.
SUM_TOLERANCE = 0.01

Values = Tensor | np.ndarray
Scalar = Tensor | np.float64
Array = TypeVar("Array", Tensor, np.ndarray)


def to_tensor(name: str, values: object) -> Tensor:
    """Return the values as a tensor, sharing memory where torch can."""
    if isinstance(values, Tensor):
        return values
    check_unmasked(name, values)
    if not isinstance(values, np.ndarray):
        # A list of Python floats would become float32, which makes ties of scores that differ.
        raise TypeError(f"{name} must be a tensor or an array, got {type(values).__name__}")
    try:
        # A copy where torch would refuse or warn: reversed, byte-swapped or read-only arrays.
        return torch.from_numpy(np.require(values, values.dtype.newbyteorder("="), ["C", "W"]))
    except TypeError:
        raise TypeError(f"{name} must hold numbers that torch has a type for, got {values.dtype}") from None


def to_scalar(value: Tensor, given: Values) -> Scalar:
    """Return a number as given was: a 0-d tensor on its device, or numpy's own float, both in double precision."""
    value = value.double()
    return value if isinstance(given, Tensor) else np.float64(value.item())


def like(values: Tensor, given: Array) -> Array:
    """Return values as given was: a tensor, or an array."""
    return values.numpy() if isinstance(given, np.ndarray) else values


def check_floating(name: str, tensor: Tensor, shape: str) -> None:
    """Raise ValueError unless the tensor holds floating-point numbers, with as many axes as in `shape`."""
    if tensor.ndim != len(shape.strip("(,)").split(",")) or not tensor.is_floating_point():
        raise ValueError(f"{name} must be floating-point of shape {shape}, got {describe(tensor)}")


def check_finite(name: str, tensor: Tensor, shape: str) -> None:
    """Raise ValueError unless all of that, and all numbers are finite."""
    check_floating(name, tensor, shape)
    if not tensor.isfinite().all():
        raise ValueError(f"{name} must be finite, got {int((~tensor.isfinite()).sum())} that are infinite or NaN")


def check_probabilities(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless every row, along the last axis, is a distribution: logits and NaN are caught here."""
    rows = tensor.flatten(0, -2)
    # Written so that NaN fails it.
    proper = (rows >= 0).all(dim=1) & ((rows.sum(dim=1) - 1).abs() <= SUM_TOLERANCE)
    if not proper.all():
        row = int((~proper).nonzero()[0])
        raise ValueError(
            f"{name} must be probabilities, at least 0 and adding up to 1 in each row, "
            f"but row {row} goes from {rows[row].min():g} to {rows[row].max():g} and adds up to {rows[row].sum():g}"
        )


def check_labels(labels: Tensor, count: int) -> None:
    """Raise ValueError unless labels are so many whole numbers."""
    if labels.shape != (count,) or labels.is_floating_point() or labels.is_complex():
        raise ValueError(f"labels must be whole numbers of shape ({count},), one a row; got {describe(labels)}")


def describe(tensor: Tensor) -> str:
    """Return what a message says of a tensor that will not do."""
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
