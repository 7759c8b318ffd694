"""PyTorch's switches for TF32 on a GPU, of which there are two generations.

Where one of the newer kind (``fp32_precision``) was set, the older ones (``allow_tf32``) can refuse to be read. Whoever
uses either must be able to train and predict here, and find the switches as they were.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: A setting of the older kind, or of the newer one.
Setting = bool | str


def convolutions() -> Setting:
    """Return the setting of convolutions."""
    return _setting(torch.backends.cudnn, "conv")


def products() -> Setting:
    """Return the setting of matrix products."""
    return _setting(torch.backends.cuda.matmul, None)


def allowed_in_convolutions() -> bool:
    """Return whether convolutions in single precision may round factors to TF32, as PyTorch lets them by default."""
    return convolutions() in (True, "tf32")


@contextmanager
def set_inside(allowed: bool) -> Iterator[None]:
    """Allow TF32, or forbid it, inside the block."""
    before = convolutions(), products()
    try:
        _set(*(_of_kind(setting, allowed) for setting in before))
        yield
    finally:
        _set(*before)


def _of_kind(setting: Setting, allowed: bool) -> Setting:
    return allowed if isinstance(setting, bool) else ("tf32" if allowed else "ieee")


def _setting(backend: Any, part: str | None) -> Setting:
    try:
        older: bool = backend.allow_tf32
        return older
    except RuntimeError:  # the newer switch was set
        newer: str = (backend if part is None else getattr(backend, part)).fp32_precision
        return newer


def _set(of_convolutions: Setting, of_products: Setting) -> None:
    backends = torch.backends
    if isinstance(of_convolutions, bool):
        backends.cudnn.allow_tf32 = of_convolutions
    else:
        backends.cudnn.conv.fp32_precision = of_convolutions  # type: ignore[attr-defined]
    if isinstance(of_products, bool):
        backends.cuda.matmul.allow_tf32 = of_products
    else:
        backends.cuda.matmul.fp32_precision = of_products
