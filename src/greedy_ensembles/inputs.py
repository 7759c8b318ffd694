"""From the space of the data to that of the model: the same for training, p* and prediction.

Bytes (uint8 images) become numbers in [0, 1]; then, if asked for, mean and standard deviation are taken out. Integers
of other types, such as tokens, go to the model as they are.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

#: Means and standard deviations, one for all dimensions or one for each channel (dimension 1 of a batch).
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


_TYPES = {
    name: getattr(torch, name)
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "bool"),
    )
}
_PART = 1024  # samples that are looked at together
_MOST = 1 << 28  # values of one input that a file may name: far more than any has, far less than memory


class InputForm(NamedTuple):
    """Shape and type of one input, as training or prediction takes it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def example(self) -> Tensor:
        """Return a batch of one input that is nothing."""
        return torch.zeros(1, *self.shape, dtype=self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON.

        >>> InputForm((3, 32, 32), torch.uint8).to_json()
        {'shape': [3, 32, 32], 'type': 'uint8'}
        """
        return {"shape": list(self.shape), "type": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def of(cls, shape: Sequence[int], dtype: torch.dtype) -> "InputForm | None":
        """Return the form of an input, None where files cannot name it: single numbers, and types that are rare."""
        named = dtype in _TYPES.values() and len(shape) > 0 and 0 < math.prod(shape) <= _MOST
        return cls(tuple(shape), dtype) if named else None

    @classmethod
    def from_json(cls, value: Any) -> "InputForm":
        """Return what `to_json` wrote, or refuse it."""
        shape, kind = (value.get("shape"), value.get("type")) if isinstance(value, dict) else (None, None)
        if not (isinstance(shape, list) and all(type(side) is int and side > 0 for side in shape)):
            raise ValueError("its 'inputs' have no 'shape' of whole numbers above 0")
        found = cls.of(shape, _TYPES[kind]) if isinstance(kind, str) and kind in _TYPES else None
        if found is None:
            raise ValueError("its 'inputs' are of no shape and type that inputs have")
        return found


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
    shareable = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if shareable else array.copy())


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of a model's floating-point parameters (float32 for a model without any)."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters lie (the CPU for a model without any)."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
