"""What a run held out of everything: examples that no member learnt from and no epoch was chosen on.

They lie beside the weights, in held-out.safetensors, so that a run, or an ensemble saved from it, can be judged and
calibrated wherever it is taken, whatever becomes of the folder that they came from.
"""

import json
from pathlib import Path
from typing import Any

import torch

from greedy_ensembles import storage
from greedy_ensembles.data import ImageSet, LabelledSet, TableSet
from greedy_ensembles.saving import HELD_OUT

_ABOUT = ("name", "classes", "source", "note")
_OF_TABLES = (*_ABOUT, "columns", "target")


def write_held_out(folder: Path, held_out: LabelledSet) -> None:
    """Keep examples with their labels in a run's folder."""
    assert held_out.labels is not None  # they came out of what was trained on
    about = {name: getattr(held_out, name) for name in _fields(held_out)}
    tensors = {"inputs": torch.from_numpy(held_out.inputs), "labels": torch.from_numpy(held_out.labels)}
    storage.write_tensors(folder / HELD_OUT, tensors, {"about": json.dumps(about)})


def _fields(of: LabelledSet) -> tuple[str, ...]:
    return _OF_TABLES if isinstance(of, TableSet) else _ABOUT


def read_held_out(folder: Path) -> ImageSet | TableSet | None:
    """Return what a run held out, None where it keeps nothing, or refuse the file."""
    file = folder / HELD_OUT
    if not file.exists():
        return None
    storage.check_contained(folder)
    tensors, metadata = storage.read_tensors(file)
    try:
        about: dict[str, Any] = json.loads(metadata["about"])
        inputs, labels = tensors["inputs"].numpy(), tensors["labels"].numpy()
        kind = TableSet if inputs.ndim == 2 else ImageSet
        known = {name: _plain(about[name]) for name in (_OF_TABLES if kind is TableSet else _ABOUT)}
        found = kind(inputs, labels, **known)
        proper = len(found) > 0
    except (KeyError, TypeError, ValueError, RecursionError):
        proper = False
    storage.require(proper, file, "it holds no examples of ours")
    return found


def _plain(value: Any) -> Any:
    """Return a text, or a tuple of texts where there is a list; nothing else stands here."""
    if isinstance(value, list):
        return tuple(str(item) for item in value)
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value
