"""From the space of the data to that of the model: the same for training, p* and prediction.

Bytes (uint8 images) become numbers in [0, 1]; then, if asked for, mean and standard deviation are taken out. Integers
of other types, such as tokens, go to the model as they are.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

#: Means and standard deviations, one for all dimensions or one for each channel (dimension 1 of a batch).
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


_TYPES = {
    name: getattr(torch, name)
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: What is said of a model whose outputs are `are_probabilities`.
SOFTMAX = (
    "returns probabilities (rows that are at least 0 and add up to 1) where logits are expected, so that softmax would "
    "be taken twice; leave out the softmax at its end"
)
_PART = 1024  # samples that are looked at together
_MOST = 1 << 28  # values of one input that a file may name: far more than any has, far less than memory


class InputForm(NamedTuple):
    """Shape, type and range of the inputs that training took: what prediction is held against."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    range: tuple[float, float] | None = None  #: smallest and largest value of floating-point data, if they are known

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"

    def example(self) -> Tensor:
        """Return a batch of one input that is nothing."""
        return torch.zeros(1, *self.shape, dtype=self.dtype)

    def admit(self, batch: Tensor) -> Tensor:
        """Return a batch as training took inputs, converted where that is exact, or refuse it.

        >>> form = InputForm((2,), torch.uint8)
        >>> form.admit(torch.tensor([[0, 255]])).dtype, form.admit(torch.tensor([[0.0, 1.0]])).dtype
        (torch.uint8, torch.float32)
        """
        given = InputForm(tuple(batch.shape[1:]), batch.dtype)
        if given.shape != self.shape:
            raise self._refusal(given, "give inputs of that shape")
        if batch.numel() == 0 or (given.dtype == self.dtype == torch.uint8):
            return batch
        if batch.dtype in _UNSIGNED and batch.dtype != self.dtype:  # for which torch has hardly any functions
            batch = batch.long()
        number = batch.dtype != torch.bool
        if self.dtype == torch.uint8:
            low, high = _extremes(batch) if number else (math.nan, math.nan)
            if batch.is_floating_point() and low >= 0 and high <= 1:
                return batch  # the scale on which models see bytes
            if not batch.is_floating_point() and low >= 0 and high <= 255:
                return batch.to(torch.uint8)
            held = f", from {low:g} to {high:g}" if number else ""
            raise self._refusal(given, "give whole numbers of 0 to 255 as uint8, or floats in [0, 1]", held)
        if self.dtype.is_floating_point:
            # Without a range, images are taken for what they mostly are.
            pixels = len(self.shape) == 3 and (self.range is None or (self.range[0] >= 0 and self.range[1] <= 1))
            if batch.dtype == torch.uint8 and not pixels:
                raise self._refusal(given, "bytes stand for [0, 1] and would be divided by 255; give x.float()")
            if pixels and self.range is not None and batch.dtype != torch.uint8 and _are_bytes(batch):
                low, high = _extremes(batch)
                held, trained = (
                    f", whole numbers from {low:g} to {high:g}",
                    f" in [{self.range[0]:g}, {self.range[1]:g}]",
                )
                raise self._refusal(given, "divide them by 255, or give them as uint8", held, trained)
            return batch if batch.is_floating_point() or batch.dtype == torch.uint8 else batch.double()
        if batch.is_floating_point() or number == (self.dtype == torch.bool):
            raise self._refusal(given, "give inputs of that type")
        return batch.to(self.dtype) if batch.dtype == torch.uint8 else batch

    def _refusal(self, given: "InputForm", remedy: str, held: str = "", trained: str = "") -> ValueError:
        return ValueError(
            f"x holds {given}{held}, and the ensemble was trained on {self}{trained}: {remedy} "
            "(ensemble.inputs = None switches this check off)"
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON.

        >>> InputForm((3, 32, 32), torch.uint8).to_json()
        {'shape': [3, 32, 32], 'type': 'uint8'}
        """
        known = {} if self.range is None else {"range": list(self.range)}
        return {"shape": list(self.shape), "type": str(self.dtype).removeprefix("torch."), **known}

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: torch.dtype, range: tuple[float, float] | None = None
    ) -> "InputForm | None":
        """Return the form of an input, None where files cannot name it: single numbers, and types that are rare."""
        named = dtype in _TYPES.values() and len(shape) > 0 and 0 < math.prod(shape) <= _MOST
        return cls(tuple(shape), dtype, range) if named else None

    @classmethod
    def from_json(cls, value: Any) -> "InputForm":
        """Return what `to_json` wrote, or refuse it."""
        shape, kind = (value.get("shape"), value.get("type")) if isinstance(value, dict) else (None, None)
        if not (isinstance(shape, list) and all(type(side) is int and side > 0 for side in shape)):
            raise ValueError("its 'inputs' have no 'shape' of whole numbers above 0")
        limits = value.get("range")  # which folders of version 0.1 do not have
        proper = isinstance(limits, list) and len(limits) == 2 and all(type(one) is float for one in limits)
        if limits is not None and not (proper and -math.inf < limits[0] <= limits[1] < math.inf):
            raise ValueError("the 'range' of its 'inputs' is not that of numbers")
        limits = None if limits is None else (limits[0], limits[1])
        found = cls.of(shape, _TYPES[kind], limits) if isinstance(kind, str) and kind in _TYPES else None
        if found is None:
            raise ValueError("its 'inputs' are of no shape and type that inputs have")
        return found


def _extremes(batch: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(batch)
    return low.item(), high.item()


def _are_bytes(batch: Tensor) -> bool:
    """Return whether numbers can only be pixels of 0 to 255: whole, in that range, and more than 0, 1 and 2."""
    low, high = _extremes(batch)
    return low >= 0 and 2 < high <= 255 and bool((batch == batch.round()).all())


def batches_of(x: Any, batch_size: int, admit: Callable[[Tensor, int], Tensor] | None) -> Iterator[Tensor]:
    """Return inputs some at a time, so that arrays on disk are not read whole.

    Args:
        x: a tensor, an array, a Dataset or a DataLoader (of inputs, or of tuples that begin with them).
        batch_size: how many are returned together; a DataLoader has its own.
        admit: gets every batch, and the index of its first input, and returns it as it is to be used.
    """
    admit = admit or (lambda batch, _: batch)
    if isinstance(x, Dataset):
        x = DataLoader(x, batch_size=batch_size)
    if isinstance(x, DataLoader):
        first = 0
        for batch in x:
            inputs = torch.as_tensor(batch[0] if isinstance(batch, list | tuple) else batch)
            yield admit(inputs, first)
            first += len(inputs)
        return
    for first in range(0, max(len(x), 1), batch_size):
        yield admit(as_tensor(x[first : first + batch_size]), first)


def as_inputs(x: Any) -> Any:
    """Return lists of rows, data frames and the inputs of pairs (x, y) as arrays, and what holds inputs as it is."""
    if isinstance(x, Dataset | DataLoader):
        return x
    if isinstance(x, list | tuple) and len(x) == 2 and np.ndim(x[0]) > 1 and np.ndim(x[1]) == 1:
        return as_inputs(x[0])
    if not isinstance(x, list | tuple) and not hasattr(x, "__array__"):
        raise TypeError(
            "x must be a tensor, an array, a list of rows, a data frame, an ImageSet, a Dataset or a DataLoader, "
            f"got {type(x).__name__}"
        )
    x = x if isinstance(x, Tensor | np.ndarray) else as_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (n, ...), got shape {tuple(x.shape)}; x[None] makes a batch of one")
    return x


def admit(batch: Tensor, first: int, form: InputForm | None, normalize: Normalize | None, dtype: torch.dtype) -> Tensor:
    """Return inputs as members take them, or refuse what they would take for something else.

    Args:
        batch: inputs in the space of the data.
        first: the index of the first of them.
        form: what members were trained on, if that is known.
        normalize: what is taken out of the inputs.
        dtype: of the members' parameters.
    """
    batch = batch if form is None else form.admit(batch)
    check_finite(batch, normalize, dtype, first)
    return batch


def check_finite(
    batch: Tensor, normalize: Normalize | None, dtype: torch.dtype, first: int = 0, what: str = "input"
) -> None:
    """Refuse inputs that are NaN or infinite, or become so in the model's own type, and name the first of them.

    Args:
        batch: inputs in the space of the data.
        normalize: what is taken out of them.
        dtype: of the model's parameters.
        first: the index of the first input.
        what: what messages call one input.
    """
    if not batch.is_floating_point() or batch.numel() == 0:
        return
    low, high = _extremes(batch)
    if max(-low, high) <= torch.finfo(dtype).max:  # which no NaN is
        return
    for row, one in enumerate(batch, start=first):
        if not torch.isfinite(one).all():
            raise ValueError(f"x holds NaN or infinity, first in {what} {row}; inputs must be finite")
        if not torch.isfinite(to_model(one[None], normalize, dtype)).all():
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"x is beyond the range of {kind}, the model's type, first in {what} {row}, which reaches "
                f"{one.abs().max():g}; scale such inputs, or take a model in double precision"
            )


def as_normalize(value: Any) -> Normalize | None:
    """Return (mean, std), each a number or a sequence, array or tensor of them, as tuples of floats, or refuse it."""
    if value is None:
        return None
    try:
        mean, std = (tuple(np.asarray(part, dtype=np.float64).reshape(-1).tolist()) for part in value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"normalize must be (mean, std), each a number or one number a channel; got {value!r}"
        ) from None
    if len(mean) != len(std):
        raise ValueError(f"normalize has {len(mean)} means and {len(std)} standard deviations")
    if not all(math.isfinite(v) for v in mean + std) or not all(s > 0 for s in std):
        raise ValueError(f"normalize must be finite, its standard deviations positive; got {mean} and {std}")
    return mean, std


def to_model(x: Tensor, normalize: Normalize | None, dtype: torch.dtype) -> Tensor:
    """Return a batch as the model takes it: a new tensor, floating-point values in the model's own `dtype`.

    >>> to_model(torch.tensor([[0, 51, 255]], dtype=torch.uint8), None, torch.float32)
    tensor([[0.0000, 0.2000, 1.0000]])
    >>> to_model(torch.tensor([[1.0, 5.0]]), ((1.0, 1.0), (1.0, 2.0)), torch.float32)
    tensor([[0., 2.]])
    """
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
        if normalize is None:
            return x
    elif not x.is_floating_point():
        return x.clone()
    elif normalize is None:
        # Some models work in place, and what they are given is not theirs.
        return x.clone() if x.dtype == dtype else x.to(dtype)
    # In the wider of the two types: a column of timestamps in double precision keeps its digits until its mean is out.
    wide = torch.promote_types(x.dtype, dtype)
    # What tracers make of constants belongs to one trace, and must not be kept.
    constants = _constants.__wrapped__ if torch.compiler.is_compiling() else _constants
    mean, std = constants(normalize, x.ndim, wide, x.device)
    return ((x - mean) / std).to(dtype)


@functools.lru_cache(maxsize=64)  # made once: what a GPU records must not copy from the host
def _constants(normalize: Normalize, ndim: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation in a form that broadcasts over the channels of a batch."""
    channels = (-1, *[1] * (ndim - 2))
    mean, std = (torch.tensor(part, dtype=dtype, device=device).reshape(channels) for part in normalize)
    return mean, std


def as_stored(samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Return samples from the space of data of this type in the form in which `to_model` takes such data.

    For uint8 data that is bytes where the samples are whole pixel values, and otherwise numbers on the scale [0, 1].
    """
    if dtype != torch.uint8 or samples.dtype == torch.uint8:
        return samples
    parts = samples.split(_PART)  # of which there may be very many
    if all(bool(((part >= 0) & (part <= 255) & (part == part.round())).all()) for part in parts):
        return samples.to(torch.uint8)
    return samples / 255


def as_tensor(value: Any) -> Tensor:
    """Return an array of numbers as a tensor, sharing its memory where torch can."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"x must hold numbers, got an array of {array.dtype}")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    shareable = all(stride >= 0 for stride in array.strides)
    with warnings.catch_warnings():
        # Nothing here writes to inputs, and an array on disk is not to be copied whole for the fear of it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(array if shareable else array.copy())


def are_probabilities(outputs: Tensor) -> bool:
    """Return whether rows are at least 0 and add up to 1, as no logits are but by chance.

    >>> logits = torch.tensor([[1.0, -2.0, 0.5]])
    >>> are_probabilities(logits), are_probabilities(logits.softmax(dim=1))
    (False, True)
    """
    return outputs.numel() > 0 and bool((outputs >= 0).all() & ((outputs.sum(dim=1) - 1).abs() < 1e-3).all())


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of a model's floating-point parameters (float32 for a model without any)."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters lie (the CPU for a model without any)."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
