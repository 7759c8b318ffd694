"""Nested state (dicts, lists, numbers, tensors) as a flat table of tensors plus JSON, for one safetensors file.

Optimizer states are nested and keyed by whole numbers, which JSON cannot say; so a dict becomes a list of pairs.
"""

from typing import Any

from torch import Tensor


def flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return JSON for the value, moving its tensors into `tensors` under names that the JSON refers to."""
    if isinstance(value, Tensor):
        name = f"{len(tensors):05d}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the state to save holds a {type(value).__name__}; optimizers may keep tensors, numbers, text, lists and dicts"
    )


def unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `flatten` took apart."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in content}
    items = [unflatten(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
