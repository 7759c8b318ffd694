"""What inputs look like: shape, type and range of what training took, and what prediction is held against.

Of a dict or tuple of tensors, every entry has a form of its own.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from greedy_ensembles.inputs import Inputs, Normalize, as_entries, each, entries, length, to_model

_TYPES = {
    name: getattr(torch, name)
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
_CHUNK = 1024
_BRIGHT = 100.0  # the largest value of images from which on they cannot be meant as [0, 1]
_LARGEST = torch.finfo(torch.float32).max
_MOST = 1 << 28  # values of one input that a file may name: far more than any has, far less than memory


class InputForm(NamedTuple):
    """Shape, type and range of the inputs that training took: what prediction is held against."""

    shape: tuple[int | None, ...]  #: None: a side that differs from batch to batch
    dtype: torch.dtype
    range: tuple[float, float] | None = None  #: smallest and largest value of floating-point data, if they are known
    columns: tuple[str, ...] | None = None  #: names of a data frame's columns, or of a table set's

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"

    def fits(self, shape: Sequence[int | None]) -> bool:
        """Return whether inputs may have this shape, in which None may be any side."""
        return len(shape) == len(self.shape) and all(
            side == own or side is None or own is None for side, own in zip(shape, self.shape, strict=True)
        )

    def example(self) -> Tensor:
        """Return a batch of one input that is nothing."""
        if None in self.shape:
            raise ValueError("example must be a batch of inputs: the ensemble was trained on inputs of several lengths")
        return torch.zeros(1, *self.shape, dtype=self.dtype)  # type: ignore[arg-type]

    def admit(self, batch: Tensor, name: str = "x") -> Tensor:
        """Return a batch as training took inputs, converted where that is exact, or refuse it under this name.

        >>> form = InputForm((2,), torch.uint8)
        >>> form.admit(torch.tensor([[0, 255]])).dtype, form.admit(torch.tensor([[0.0, 1.0]])).dtype
        (torch.uint8, torch.float32)
        """
        given = InputForm(tuple(batch.shape[1:]), batch.dtype)
        if not self.fits(batch.shape[1:]):
            raise self._refusal(name, given, "give inputs of that shape")
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
            raise self._refusal(name, given, "give whole numbers of 0 to 255 as uint8, or floats in [0, 1]", held)
        if self.dtype.is_floating_point:
            # Without a range, images are taken for what they mostly are.
            pixels = len(self.shape) == 3 and (self.range is None or (self.range[0] >= 0 and self.range[1] <= 1))
            if batch.dtype == torch.uint8 and not pixels:
                raise self._refusal(name, given, "bytes stand for [0, 1] and would be divided by 255; give x.float()")
            if self.range is not None and batch.dtype != torch.uint8 and number:
                low, high = _extremes(batch)
                remedy = self.other_scale(low, high)
                if not remedy and pixels and _are_bytes(batch):
                    remedy = "divide them by 255, or give them as uint8"
                ranges = f", from {low:g} to {high:g}", f" in [{self.range[0]:g}, {self.range[1]:g}]"
                if high > 1 and remedy:
                    raise self._refusal(name, given, remedy, *ranges)
                if remedy and bool((batch != batch.round()).any()):  # which a dark image can be, so that it is no error
                    warnings.warn(f"{self._refusal(name, given, remedy, *ranges)}, if they are not dark", stacklevel=2)
            return batch if batch.is_floating_point() or batch.dtype == torch.uint8 else batch.double()
        if batch.is_floating_point() or number == (self.dtype == torch.bool):
            raise self._refusal(name, given, "give inputs of that type")
        return batch.to(self.dtype) if batch.dtype == torch.uint8 else batch

    def other_scale(self, low: float, high: float) -> str:
        """Return what to do about images whose floating-point values are on another scale than these; or "".

        >>> InputForm((1, 8, 8), torch.float32, (0.0, 1.0)).other_scale(0.0, 254.5)
        'divide them by 255'
        """
        own = (0.0, 255.0) if self.dtype == torch.uint8 else self.range
        if len(self.shape) != 3 or self.shape[0] not in (1, 3, 4) or own is None or low < 0:
            return ""
        pixels = _BRIGHT <= high <= 255
        if own[0] < 0:
            return "prepare them as the images of training were" if pixels and own[1] < _BRIGHT / 10 else ""
        if own[1] <= 1 and pixels:
            return "divide them by 255"
        return "multiply them by 255" if own[1] >= _BRIGHT and 0 < high <= 1 else ""

    def _refusal(self, name: str, given: "InputForm", remedy: str, held: str = "", trained: str = "") -> ValueError:
        return _refusal(f"{name} holds {given}{held}, and the ensemble was trained on {self}{trained}: {remedy}")

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON.

        >>> InputForm((3, 32, 32), torch.uint8).to_json()
        {'shape': [3, 32, 32], 'type': 'uint8'}
        """
        known = {name: list(one) for name in ("range", "columns") if (one := getattr(self, name)) is not None}
        return {"shape": list(self.shape), "type": str(self.dtype).removeprefix("torch."), **known}

    def is_nameable(self) -> bool:
        """Return whether files can name it: not types that are rare."""
        return self.dtype in _TYPES.values() and 0 < math.prod(side or 1 for side in self.shape) <= _MOST

    @classmethod
    def from_json(cls, value: Any) -> "InputForm":
        """Return what `to_json` wrote, or refuse it."""
        shape, kind = (value.get("shape"), value.get("type")) if isinstance(value, dict) else (None, None)
        if not (isinstance(shape, list) and all(side is None or (type(side) is int and side > 0) for side in shape)):
            raise ValueError("its 'inputs' have no 'shape' of whole numbers above 0")
        limits = value.get("range")  # which folders of version 0.1 do not have
        proper = isinstance(limits, list) and len(limits) == 2 and all(type(one) is float for one in limits)
        if limits is not None and not (proper and -math.inf < limits[0] <= limits[1] < math.inf):
            raise ValueError("the 'range' of its 'inputs' is not that of numbers")
        limits = None if limits is None else (limits[0], limits[1])
        columns = value.get("columns")  # which only tables with names have
        if columns is not None:
            if not isinstance(columns, list) or [len(columns)] != shape or not all(type(one) is str for one in columns):
                raise ValueError("the 'columns' of its 'inputs' are no names, one a column")
            columns = tuple(columns)
        found = cls(tuple(shape), _TYPES[kind], limits, columns) if isinstance(kind, str) and kind in _TYPES else None
        if found is None or not found.is_nameable():
            raise ValueError("its 'inputs' are of no shape and type that inputs have")
        return found


#: What inputs look like: a form, or one for every entry of a dict or tuple.
Form = InputForm | dict[str, InputForm] | tuple[InputForm, ...]


def check_form(form: Any) -> Form:
    """Return what is known of inputs, or raise TypeError."""
    if not entries(form) or not all(isinstance(one, InputForm) for _, one in entries(form)):
        raise TypeError(f"inputs must be an InputForm, as ensemble.inputs is, or a dict or tuple of them; got {form!r}")
    return form  # type: ignore[no-any-return]


def as_named(form: Form) -> Form | None:
    """Return a form that files can name, None for any other; single numbers are entries, and no inputs of their own."""
    single = isinstance(form, InputForm) and not form.shape
    return form if not single and all(one.is_nameable() for _, one in entries(form)) else None


def to_json(form: Form) -> Any:
    """Return a form as JSON: an object, a list of them for a tuple, or under "entries" those of a dict.

    >>> to_json({"mask": InputForm((None,), torch.bool)})
    {'entries': {'mask': {'shape': [None], 'type': 'bool'}}}
    """
    found = each(InputForm.to_json, form)
    return {"entries": found} if isinstance(form, dict) else list(found) if type(form) is tuple else found


def from_json(value: Any) -> Form:
    """Return what `to_json` wrote, or refuse it."""
    several = value["entries"] if isinstance(value, dict) and "entries" in value else value
    if several is value and not isinstance(value, list):
        if as_named(form := InputForm.from_json(value)) is None:
            raise ValueError("its 'inputs' are single numbers, which entries alone may be")
        return form
    if not isinstance(several, dict | list) or not several:
        raise ValueError("its 'inputs' have no 'entries' by name")
    return each(InputForm.from_json, tuple(several) if isinstance(several, list) else several)  # type: ignore[no-any-return]


def columns_of(x: Any) -> tuple[str, ...] | None:
    """Return the names of a data frame's columns, or a table set's, alone or beside labels; None without names."""
    pair = isinstance(x, list | tuple) and len(x) in (2, 3) and not hasattr(x, "columns")
    named = getattr(x[0] if pair else x, "columns", None)
    names = () if named is None or callable(named) else tuple(named)
    return names if names and all(isinstance(name, str) for name in names) else None


def check_columns(x: Any, form: Form | None, name: str = "x") -> None:
    """Refuse named columns that are others than those of training, or in another order; messages call them `name`."""
    found, known = columns_of(x), getattr(form, "columns", None)
    if found is not None and known is not None and found != known:
        odd = next((one for one in (*known, *found) if (one in known) != (one in found)), None)
        why = "in another order" if odd is None else f"others: {odd!r} is {'missing' if odd in known else 'new'}"
        asked = str(list(known)) if len(known) <= 8 else f"those of training, from {known[0]!r} to {known[-1]!r}"
        raise _refusal(f"columns of {name} are not those of training, but {why}; give {asked}, in that order")


def are_alike(one: Form, other: Form) -> bool:
    """Return whether inputs of two forms may be of one data set: entries, types and shapes are the same."""
    forms, others = dict(entries(one)), dict(entries(other))
    return forms.keys() == others.keys() and all(
        form.dtype == others[name].dtype and form.fits(others[name].shape) for name, form in forms.items()
    )


def form_of(x: Tensor, first: int = 0) -> InputForm:
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


def joined(one: InputForm, other: InputForm) -> InputForm:
    """Return the form of inputs of both: their ranges joined, sides that differ open."""
    ranges = [form.range for form in (one, other) if form.range is not None]
    shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    limits = (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None
    return InputForm(shape, one.dtype, limits)


def _beyond(example: int, x: Tensor) -> ValueError:
    if not torch.isfinite(x).all():
        return ValueError(f"x holds NaN or infinity, first in example {example}; training needs finite inputs")
    return ValueError(
        f"x is beyond the range of float32, in which models train, first in example {example}, which reaches "
        f"{x.abs().max():g}; scale it, or take logarithms"
    )


def describe_inputs(x: Any) -> str:
    """Return what inputs, or a form, are like, in words."""
    described = each(lambda one: str(InputForm(tuple(one.shape[1:]), one.dtype) if isinstance(one, Tensor) else one), x)
    if isinstance(described, str):
        return described
    kind = "dict" if isinstance(described, dict) else "tuple"
    return f"a {kind} of " + ", ".join(f"{name} ({one})" for name, one in entries(described))


def _extremes(batch: Tensor) -> tuple[float, float]:
    low, high = torch.aminmax(batch)
    return low.item(), high.item()


def _are_bytes(batch: Tensor) -> bool:
    """Return whether numbers can only be pixels of 0 to 255: whole, in that range, and more than 0, 1 and 2."""
    low, high = _extremes(batch)
    return low >= 0 and 2 < high <= 255 and bool((batch == batch.round()).all())


def admit(
    batches: Iterator[Inputs], form: Form | None, normalize: Normalize | None, dtype: torch.dtype
) -> Iterator[Inputs]:
    """Return inputs as members take them, or refuse what they would take for something else."""
    first = 0
    for batch in batches:
        if form is not None:
            batch = as_trained(batch, form)
        for name, one in entries(batch):
            _check_finite(name, one, normalize, dtype, first)
        yield batch
        first += length(batch)


def _refusal(message: str) -> ValueError:
    """Return the error, with what Python alone can do as a note, which commands do not print."""
    error = ValueError(message)
    error.add_note("ensemble.inputs = None switches this check off.")
    return error


def as_trained(batch: Inputs, form: Form) -> Inputs:
    """Return a batch as training took inputs, every entry admitted, or refuse it."""
    given, trained = [name for name, _ in entries(batch)], [name for name, _ in entries(form)]
    if sorted(given) != sorted(trained):
        raise _refusal(
            f"x holds {describe_inputs(batch)}, and the ensemble was trained on {describe_inputs(form)}: give the same "
            "entries"
        )
    names = iter(trained)
    return each(lambda one, value: one.admit(value, next(names)), form, batch)  # type: ignore[no-any-return]


def example_of(given: Any, form: Form | None) -> Inputs:
    """Return a batch to make a graph from: the one that was given, or an input of nothing."""
    if given is not None:
        given = as_entries(given, "example")
        return given if form is None else as_trained(given, form)
    if form is None:
        raise ValueError("example must be a batch of inputs: what this ensemble was trained on is not known")
    return each(InputForm.example, form)  # type: ignore[no-any-return]


def _check_finite(name: str, batch: Tensor, normalize: Normalize | None, dtype: torch.dtype, first: int) -> None:
    """Refuse inputs that are not finite, or not in the model's type, and name the first; `first` is its index here."""
    if not batch.is_floating_point() or batch.numel() == 0:
        return
    low, high = _extremes(batch)
    if max(-low, high) <= torch.finfo(dtype).max:  # which no NaN is
        return
    for row, one in enumerate(batch, start=first):
        if not torch.isfinite(one).all():
            raise ValueError(f"{name} holds NaN or infinity, first in input {row}; inputs must be finite")
        if not torch.isfinite(to_model(one[None], normalize, dtype)).all():
            kind = str(dtype).removeprefix("torch.")
            raise ValueError(
                f"{name} is beyond the range of {kind}, the model's type, first in input {row}, which reaches "
                f"{one.abs().max():g}; scale such inputs, or take a model in double precision"
            )
