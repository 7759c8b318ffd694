"""PyTorch's switches for TF32 on a GPU, of which there are two generations.

Where one of the newer kind (``fp32_precision``) was set, the older ones (``allow_tf32``) can refuse to be read; and
what the older ones forbid, a newer one can still allow. Whoever uses either must be able to train and predict here, get
the precision that was asked for, and read every switch afterwards as before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_NEWER = hasattr(torch.backends.cudnn, "conv")  # whether this PyTorch has both kinds


def allowed_in_convolutions() -> bool:
    """Return whether convolutions in single precision may round factors to TF32, as PyTorch lets them by default."""
    allowed: bool = torch.backends.cudnn.conv.fp32_precision == "tf32" if _NEWER else torch.backends.cudnn.allow_tf32  # type: ignore[attr-defined]
    return allowed


def settings() -> tuple[object, ...]:
    """Return all switches, for telling whether one has changed."""
    return _older_of_convolutions(), _older_of_products(), *(part.fp32_precision for part in _parts())


@contextmanager
def set_inside(allowed: bool) -> Iterator[None]:
    """Allow TF32, or forbid it, inside the block."""
    convolutions, products, *newer = settings()
    try:
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = allowed
        if products is not None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        for part in _parts():
            if (part.fp32_precision == "tf32") != allowed:
                part.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = convolutions  # type: ignore[assignment]
        if products is not None:
            torch.set_float32_matmul_precision(products)  # type: ignore[arg-type]
        for part, before in zip(_parts(), newer, strict=True):
            if part.fp32_precision != before:
                part.fp32_precision = before


def _parts() -> list[Any]:
    """Return what has a switch of the newer kind: its setting, or what it takes from a more general one."""
    if not _NEWER:
        return []
    return [torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul]  # type: ignore[attr-defined]


def _older_of_convolutions() -> bool | None:
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # a newer switch was set to something else
        return None


def _older_of_products() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
