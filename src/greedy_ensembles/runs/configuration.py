"""What a run was asked to do, as JSON: `run.json` shows it to people and holds later calls to it."""

import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles import machine
from greedy_ensembles.data import LabelledSet, TableSet
from greedy_ensembles.generators import generator
from greedy_ensembles.method import Coupling
from greedy_ensembles.storage import digest_of_tensor
from greedy_ensembles.version import __version__


def describe(value: Any) -> Any:
    """Return JSON that is the same for two values exactly when training would be, as far as can be told.

    Arrays become their hash, dataclasses their fields, functions their name, other objects their class and their
    plain attributes. Two lambdas of one module look alike: name the function where the difference matters.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value))
    if isinstance(value, Tensor):
        small = value.numel() <= 4
        return value.tolist() if small else {"shape": list(value.shape), "sha256": digest_of_tensor(value)}
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, functools.partial):
        return {"partial": describe(value.func), "args": describe(value.args), "keywords": describe(value.keywords)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **items}
    if isinstance(value, nn.Module):
        return {"class": type(value).__name__, **_plain_attributes(value), "state": describe(value.state_dict())}
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return {"class": f"{type(value).__module__}.{type(value).__qualname__}", **_plain_attributes(value)}


def _plain_attributes(value: Any) -> dict[str, Any]:
    items = vars(value).items() if hasattr(value, "__dict__") else ()
    plain = bool | int | float | str | Tensor | np.ndarray | np.generic
    return {name: describe(item) for name, item in items if isinstance(item, plain) and not name.startswith("_")}


def describe_method(coupling: Coupling) -> dict[str, Any]:
    """Return class, label and attributes of a method; size, too, where members cannot be added."""
    own: dict[str, Any] = {}
    for kind in reversed(type(coupling).__mro__[: type(coupling).__mro__.index(Coupling)]):
        own.update({name: value for name, value in vars(kind).items() if isinstance(value, bool | int | float | str)})
    own.update(vars(coupling))
    told = {name: describe(value) for name, value in own.items() if name[0] != "_"}
    if not coupling.one_network:
        told.pop("size", None)
    name = f"{type(coupling).__module__}.{type(coupling).__qualname__}"
    return {"class": name, **told, "label": coupling.label, "sees": coupling.sees}


def describe_weighting(weighting: Any) -> Any:
    """Return JSON for a weighting distribution; one that says nothing of itself is known by a few of its samples."""
    if weighting is None or dataclasses.is_dataclass(weighting):
        return describe(weighting)
    return {"class": describe(weighting), "samples": describe(weighting.sample(16, generator(0)))}


def describe_data(data: Any) -> dict[str, Any] | None:
    """Return what a reader of a run must know of its image set or table; None for arrays, which have no name."""
    if not isinstance(data, LabelledSet):
        return None
    known = {"name": data.name, data.unit: len(data), "shape": list(data.inputs.shape[1:])}
    known |= {"source": data.source, "note": data.note, "classes": describe(data.classes)}
    return known | ({"columns": list(data.columns), "target": data.target} if isinstance(data, TableSet) else {})


def differences(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Return (where, ours, theirs) for every place at which two descriptions differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        return [
            d for key in keys for d in differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if ours == theirs else [(path, ours, theirs)]


#: The environment variable that names the commit of a copy without its history, in an image or on another machine.
COMMIT = "GREEDY_ENSEMBLES_COMMIT"


def provenance(device: torch.device, threads: int | None = None) -> dict[str, Any]:
    """Return when, where and with what the run was started."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine.processor()
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "device": f"{device} ({name}), {threads or torch.get_num_threads()} threads",
        "versions": {
            "greedy_ensembles": __version__,
            "torch": torch.__version__,
            "scikit-learn": importlib.metadata.version("scikit-learn"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "git_commit": git_commit(),
    }


def git_commit() -> str | None:
    """Return the commit of this package's source, where it is run from a checkout that tracks it, or is told."""
    if told := os.environ.get(COMMIT):
        return told
    here = Path(__file__)
    try:
        for arguments in (["ls-files", "--error-unmatch", here.name], ["rev-parse", "HEAD"]):
            done = subprocess.run(
                ["git", *arguments], cwd=here.parent, capture_output=True, text=True, check=True, timeout=10
            )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
