"""From the space of the data to that of the model: the same for training, p* and prediction.

Bytes (uint8 images) become numbers in [0, 1]; then, if asked for, mean and standard deviation are taken out. Integers
of other types, such as tokens, go to the model as they are.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

#: Means and standard deviations, one for all dimensions or one for each channel (dimension 1 of a batch).
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


def as_normalize(value: Sequence[float | Sequence[float]] | None) -> Normalize | None:
    """Return (mean, std), each a number or a sequence of them, as tuples of floats, or refuse it."""
    if value is None:
        return None
    try:
        mean, std = (tuple(float(v) for v in (part if isinstance(part, Sequence) else [part])) for part in value)
    except (TypeError, ValueError):
        raise ValueError(
            f"normalize must be (mean, std), each a number or one number a channel; got {value!r}"
        ) from None
    if len(mean) != len(std):
        raise ValueError(f"normalize has {len(mean)} means and {len(std)} standard deviations")
    if not all(s > 0 for s in std):
        raise ValueError(f"standard deviations of normalize must be positive, got {std}")
    return mean, std


def to_model(x: Tensor, normalize: Normalize | None, dtype: torch.dtype) -> Tensor:
    """Return a batch as the model takes it, floating-point values in the model's own `dtype`.

    >>> to_model(torch.tensor([[0, 51, 255]], dtype=torch.uint8), None, torch.float32)
    tensor([[0.0000, 0.2000, 1.0000]])
    >>> to_model(torch.tensor([[1.0, 5.0]]), ((1.0, 1.0), (1.0, 2.0)), torch.float32)
    tensor([[0., 2.]])
    """
    if x.dtype == torch.uint8:
        x = x.to(dtype) / 255
    elif x.is_floating_point():
        x = x.to(dtype)
    else:
        return x
    if normalize is None:
        return x
    channels = (-1, *[1] * (x.ndim - 2))
    mean, std = (torch.tensor(part, dtype=dtype, device=x.device).reshape(channels) for part in normalize)
    return (x - mean) / std


def dtype_of(model: nn.Module) -> torch.dtype:
    """Return the type of a model's floating-point parameters (float32 for a model without any)."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


def device_of(model: nn.Module) -> torch.device:
    """Return where a model's parameters lie (the CPU for a model without any)."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))
