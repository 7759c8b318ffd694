"""Inputs: a tensor, or a dict or tuple of tensors, and their way from the space of the data to that of the model.

A model is called with ``model(x)``, ``model(**x)`` or ``model(*x)``, the same in training, on p* and in prediction.
Bytes (uint8 images) become numbers in [0, 1]; then, if asked for, mean and standard deviation are taken out. Integers
of other types, such as tokens, go to the model as they are.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from greedy_ensembles.checks import check_unmasked
from greedy_ensembles.labels import LABELS

#: What a model takes at once: every tensor has a row for each of n inputs.
Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
#: Means and standard deviations, one for all dimensions or one for each channel (dimension 1 of a batch).
Normalize = tuple[tuple[float, ...], tuple[float, ...]]

#: What messages say of a model whose outputs are probabilities, as `are_probabilities` sees.
SOFTMAX = (
    "returns probabilities (rows that are at least 0 and add up to 1) where logits are expected, so that softmax would "
    "be taken twice; leave out the softmax at its end"
)
_PART = 1024  # samples that are looked at together


def each(change: Callable[..., Any], x: Any, *others: Any) -> Any:
    """Return inputs with every tensor changed; `change` also gets what stands in the same place of `others`.

    >>> each(len, {"tokens": torch.zeros(3, 5), "mask": torch.zeros(3, 5)})
    {'tokens': 3, 'mask': 3}
    """
    if isinstance(x, dict):
        return {name: change(value, *(other[name] for other in others)) for name, value in x.items()}
    if type(x) is tuple:  # and not an InputForm, which Python takes for one
        return tuple(change(*values) for values in zip(x, *others, strict=True))
    return change(x, *others)


def entries(x: Any) -> list[tuple[str, Any]]:
    """Return the tensors of inputs, or what stands in their places, by name.

    >>> entries((1, 2)), entries({"mask": 3}), entries(4)
    ([('x[0]', 1), ('x[1]', 2)], [("x['mask']", 3)], [('x', 4)])
    """
    if isinstance(x, dict):
        return [(f"x[{name!r}]", value) for name, value in x.items()]
    return [(f"x[{place}]", value) for place, value in enumerate(x)] if type(x) is tuple else [("x", x)]


def length(x: Inputs) -> int:
    """Return how many inputs there are."""
    return len(entries(x)[0][1])


def take(x: Any, rows: Any) -> Any:
    """Return some of the inputs: a slice, or those at these indices."""
    return each(lambda one: one[rows], x)


def concatenate(parts: Sequence[Any]) -> Any:
    """Return several inputs as one batch."""
    return each(lambda *values: torch.cat(values), *parts)


def move(x: Any, *where: Any, **how: Any) -> Any:
    """Return inputs as `Tensor.to` has them; a memory format is for images alone."""
    return each(lambda one: one if "memory_format" in how and one.ndim != 4 else one.to(*where, **how), x)


def logits_of(model: Callable[..., Any], x: Inputs) -> Any:
    """Return a model's logits: what it returns, or the `logits` of that.

    >>> logits_of(lambda tokens, mask: tokens * mask, {"tokens": torch.ones(1, 2), "mask": torch.zeros(1, 1)})
    tensor([[0., 0.]])
    """
    found = model(x) if isinstance(x, Tensor) else model(**x) if isinstance(x, dict) else model(*x)
    return found if isinstance(found, Tensor) else getattr(found, "logits", found)


def are_several(x: Any, least: int = 2) -> bool:
    """Return whether x is a dict or tuple of arrays, one of `least` dimensions, and not one array or rows of one."""
    if not isinstance(x, tuple):
        return isinstance(x, Mapping)
    return any(isinstance(one, Tensor | np.ndarray) and one.ndim >= least for one in x)


def as_entries(x: Any, name: str = "x") -> Inputs:
    """Return inputs as tensors; of a dict, all but labels. Messages call them `name`."""
    found: dict[str, Tensor] | tuple[Tensor, ...]
    if isinstance(x, Mapping):
        found = {str(key): as_tensor(value, name) for key, value in x.items() if key not in LABELS}
    elif isinstance(x, tuple):
        found = tuple(as_tensor(value, name) for value in x)
    else:
        return as_tensor(x, name)
    if not found:
        raise ValueError(f"{name} must hold at least one entry, got an empty {type(found).__name__}")
    return found


def batches_of(x: Any, batch_size: int, several: bool = False) -> Iterator[Inputs]:
    """Return inputs some at a time, so that arrays on disk are not read whole.

    Args:
        x: what `as_inputs` returned: arrays, a Dataset or a DataLoader (of inputs, or of tuples that begin with them).
        batch_size: how many are returned together; a DataLoader has its own.
        several: whether inputs are tuples, so that a tuple of tensors is one of them and not inputs and labels.
    """
    if isinstance(x, Dataset):
        x = DataLoader(x, batch_size=batch_size)
    if isinstance(x, DataLoader):
        batch = None
        for batch in x:
            if isinstance(batch, list | tuple) and not (several and isinstance(batch[0], Tensor)):
                batch = batch[0]
            yield as_entries(tuple(batch) if isinstance(batch, list) else batch)
        if batch is None:
            raise ValueError("x is a Dataset or a DataLoader without inputs")
        return
    for first in range(0, max(len(entries(x)[0][1]), 1), batch_size):
        yield each(lambda one, rows=slice(first, first + batch_size): as_tensor(one[rows]), x)


def as_inputs(x: Any, several: bool | None = False, of_labels: bool = False) -> Any:
    """Return lists of rows, data frames and the inputs of (x, y) and (x, y, weights) as arrays, and others as they are.

    Args:
        x: as `predict_proba` takes it.
        several: whether inputs are tuples, so that a pair of arrays is one of them and not inputs and labels; None:
            that is unknown, and fractions in their place, which no labels are, are refused.
        of_labels: whether labels may be independent ones, an array (n, labels) of 0 and 1.
    """
    if isinstance(x, Dataset | DataLoader):
        return x
    labelled = isinstance(x, list | tuple) and len(x) in (2, 3)
    if labelled and (are_several(x[0]) or (not several and np.ndim(x[0]) > 1 and _are_labels(x[1], of_labels))):
        if several is None and _are_fractions(x[1]):
            raise ValueError(
                "x holds an array and fractions, which are no labels: give the array alone or, where the model takes "
                "both, a dict of them by the names of its arguments"
            )
        return as_inputs(x[0])
    if are_several(x):
        found = as_entries(x)
        shapes = {name: tuple(one.shape) for name, one in entries(found)}
        counts = {shape[:1] for shape in shapes.values()}
        if len(counts) > 1 or () in counts:
            raise ValueError(f"entries of x must have a row for each input; got {shapes}")
        return found
    if not isinstance(x, list | tuple) and not hasattr(x, "__array__"):
        raise TypeError(
            "x must be a tensor, an array, a list of rows, a data frame, a dict or tuple of tensors, an ImageSet, a "
            f"Dataset or a DataLoader, got {type(x).__name__}"
        )
    check_unmasked("x", x)
    x = x if isinstance(x, np.ndarray) else as_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"x must have shape (n, ...), got shape {tuple(x.shape)}; x[None] makes a batch of one")
    return x


def _are_labels(y: Any, of_labels: bool) -> bool:
    """Return whether an array is of labels: one an input, or independent ones, if it may be of those."""
    independent = of_labels and isinstance(y, Tensor | np.ndarray) and y.ndim == 2
    return bool(((y == 0) | (y == 1)).all()) if independent else np.ndim(y) == 1


def _are_fractions(y: Any) -> bool:
    y = y if isinstance(y, Tensor) else np.asarray(y)
    is_float = y.is_floating_point() if isinstance(y, Tensor) else y.dtype.kind == "f"
    return is_float and bool((y % 1 != 0).any())


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
        odd = next(v for v in std + mean if not math.isfinite(v) or (v in std and v <= 0))
        raise ValueError(f"normalize must be finite, its standard deviations positive; got {odd:g} among them")
    return mean, std


def to_model(x: Any, normalize: Normalize | None, dtype: torch.dtype) -> Any:
    """Return a batch as the model takes it: a new tensor, floating-point values in the model's own `dtype`.

    >>> to_model(torch.tensor([[0, 51, 255]], dtype=torch.uint8), None, torch.float32)
    tensor([[0.0000, 0.2000, 1.0000]])
    >>> to_model(torch.tensor([[1.0, 5.0]]), ((1.0, 1.0), (1.0, 2.0)), torch.float32)
    tensor([[0., 2.]])
    """
    if not isinstance(x, Tensor):
        if normalize is not None:
            raise ValueError(
                "normalize is for inputs of one tensor; normalise the entries of a dict or tuple beforehand"
            )
        return each(lambda one: to_model(one, None, dtype), x)
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
        if normalize is None:
            return x
    elif not x.is_floating_point():
        return x.clone()
    elif normalize is None:
        # Some models work in place, and what they are given is not theirs.
        return x.clone() if x.dtype == dtype else x.to(dtype)
    if x.ndim > 1 and len(normalize[0]) not in (1, x.shape[1]):  # which might broadcast to images of several channels
        shape = tuple(x.shape[1:])
        raise ValueError(f"normalize has {len(normalize[0])} channels, but inputs of shape {shape} have {x.shape[1]}")
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


def as_stored(samples: Any, form: Any) -> Any:
    """Return samples from the space of data of a form as `to_model` takes such data.

    For uint8 data that is bytes where the samples are whole pixel values, and otherwise numbers on the scale [0, 1].
    """
    if not isinstance(samples, Tensor):
        return each(as_stored, samples, form)
    if form.dtype != torch.uint8 or samples.dtype == torch.uint8:
        return samples
    parts = samples.split(_PART)  # of which there may be very many
    if all(bool(((part >= 0) & (part <= 255) & (part == part.round())).all()) for part in parts):
        return samples.to(torch.uint8)
    return samples / 255


def as_tensor(value: Any, name: str = "x") -> Tensor:
    """Return an array of numbers as a tensor, sharing its memory where torch can; messages call it `name`."""
    check_unmasked(name, value)
    try:
        array = None if isinstance(value, Tensor) else np.asarray(value)
    except ValueError as error:  # rows of several lengths
        raise ValueError(
            f"{name} must be an array of numbers, and a {type(value).__name__} made none: {error}"
        ) from None
    if value.is_complex() if array is None else array.dtype.kind not in "fiub":
        found = value.dtype if array is None else array.dtype
        raise TypeError(f"{name} must hold numbers, got an array of {found}{_of_what(value)}")
    if array is None and value.layout is not torch.strided:
        raise TypeError(f"{name} must be dense, got a tensor of layout {value.layout}; give x.to_dense()")
    if array is None:
        return value  # type: ignore[no-any-return]
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    shareable = all(stride >= 0 for stride in array.strides)
    with warnings.catch_warnings():
        # Nothing here writes to inputs, and an array on disk is not to be copied whole for the fear of it.
        warnings.filterwarnings("ignore", "The given NumPy array is not writ", UserWarning)
        return torch.from_numpy(array if shareable else array.copy())


def _of_what(value: Any) -> str:
    """Return what may help with a value that is no array of numbers: of a data frame, which columns are none."""
    if hasattr(value, "toarray"):
        return ", a sparse matrix; give x.toarray()"
    if not isinstance(value, list | tuple) and not hasattr(value, "__array__"):
        return f", from a {type(value).__name__}"
    kinds: Any = getattr(value, "dtypes", None)
    if not hasattr(kinds, "items"):
        return ""
    odd = [str(column) for column, kind in kinds.items() if not isinstance(kind, np.dtype) or kind.kind not in "fiu"]
    return f"; columns {', '.join(odd[:5])} hold something else: convert them, as x.astype(float) does" if odd else ""


def as_logits(outputs: Tensor, axes: int = 2) -> Tensor:
    """Return a model's outputs as logits (..., classes), in single precision at least.

    One logit z an input, as (n, 1) or (n,), is that of class 1 beside a 0 for class 0: softmax gives sigmoid(z), and
    cross-entropy the binary one. Where many models' outputs are stacked, there are more than two `axes`.

    >>> as_logits(torch.tensor([0.0, 2.0]))
    tensor([[0., 0.],
            [0., 2.]])
    """
    outputs = outputs.float() if outputs.dtype in (torch.bfloat16, torch.float16) else outputs
    outputs = outputs.unsqueeze(-1) if outputs.ndim == axes - 1 else outputs
    return torch.cat([torch.zeros_like(outputs), outputs], dim=-1) if outputs.shape[-1] == 1 else outputs


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
