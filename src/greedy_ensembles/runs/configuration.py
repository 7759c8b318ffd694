"""What a run was asked to do, as JSON: `run.json` shows it to people and holds later calls to it.

That of version 0.1 reads as one of today: a field that it lacks has the value that it had when it was written.
"""

import dataclasses
import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
import types
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles import machine, storage
from greedy_ensembles.data import LabelledSet, TableSet
from greedy_ensembles.generators import generator
from greedy_ensembles.inputs import as_normalize
from greedy_ensembles.machine import __version__
from greedy_ensembles.method import Coupling
from greedy_ensembles.saving import check_format, read_field, read_targets
from greedy_ensembles.storage import digest_of_tensor, require

#: What a recipe had where the folder of an older version does not say it.
_OLD_RECIPE: dict[str, Any] = {
    "weighting_statistics": "running",
    "lr_updates": "step",
    "accumulate": 1,
    "normalize": None,
    "select_by": "accuracy",
    "patience": None,
    "clip": None,
    "ema": None,
    "precision": "float32",
    "deterministic": False,
    "members_at_once": None,
    "num_workers": 0,
    "steps_per_epoch": None,
}
_MOST_THREADS = 4096
_DEEPEST = 8  # levels of attributes and layers that are described
_METHODS_OF_0_1 = {
    "greedy": {"class": "greedy_ensembles.method.greedy.Greedy", "label": "greedy", "sees": "earlier"},
    "deep": {"class": "greedy_ensembles.method.deep.Deep", "label": "Deep Ensembles", "sees": "none"},
}
#: What predictions, and saved ensembles, keep of run.json.
KEPT = ("size", "configuration", "model", "data", "extended_from", "members_at_once")


def describe(value: Any, depth: int = 0, seen: set[int] | None = None) -> Any:
    """Return JSON that is the same for two values exactly when training would be, as far as can be told.

    Arrays become their hash, dataclasses their fields, functions their name, methods of an object their name and that
    object, modules their layers and weights, other objects their class and their attributes. Attributes whose names
    begin with `_`, and two lambdas of one module, are not told apart: name the function where the difference matters.
    An object that others hold as well is described where it comes first, since objects may hold each other.
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
    seen, kind = set() if seen is None else seen, f"{type(value).__module__}.{type(value).__qualname__}"
    if depth > _DEEPEST or id(value) in seen:
        return kind
    deeper = functools.partial(describe, depth=depth + 1, seen=seen)
    if isinstance(value, Mapping):
        return {str(key): deeper(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [deeper(item) for item in value]
    if isinstance(value, functools.partial):
        return {"partial": deeper(value.func), "args": deeper(value.args), "keywords": deeper(value.keywords)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {field.name: deeper(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": type(value).__name__, **items}
    if isinstance(value, nn.Module):
        seen.add(id(value))
        return {**_structure(value, depth, seen), "state": deeper(value.state_dict())}
    if isinstance(value, types.MethodType) and not isinstance(value.__self__, type):
        return {"method": f"{value.__module__}.{value.__qualname__}", "of": deeper(value.__self__)}
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    seen.add(id(value))
    return {"class": kind, **_attributes(value, depth, seen)}


def _structure(module: nn.Module, depth: int, seen: set[int]) -> dict[str, Any]:
    described = {"class": type(module).__name__, **_attributes(module, depth, seen)}
    layers = {name: _structure(layer, depth, seen) for name, layer in module.named_children()}
    return {**described, "layers": layers} if layers else described


def _attributes(value: Any, depth: int, seen: set[int]) -> dict[str, Any]:
    """Return an object's attributes, described; what is neither a setting nor can be called is its own affair."""
    items = vars(value).items() if hasattr(value, "__dict__") else ()
    kinds: Any = (bool, int, float, str, Tensor, np.ndarray, np.generic, list, tuple, Mapping)
    described = (
        (name, item) for name, item in items if not name.startswith("_") and (isinstance(item, kinds) or callable(item))
    )
    return {
        name: {"function": text}
        if isinstance(text := describe(item, depth + 1, seen), str) and callable(item)
        else text
        for name, item in described
    }


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
    """Return (where, ours, theirs) for every place at which two descriptions differ.

    Lists and functions that an object holds, and the objects of methods, were not always described: where one side
    lacks them, nothing is known of them.
    """
    if any(isinstance(one, dict) and one.get("method") == other for one, other in ((ours, theirs), (theirs, ours))):
        return []
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = [*ours, *(key for key in theirs if key not in ours)]
        if "class" in ours and "class" in theirs:
            alone = {key: {**ours, **theirs}[key] for key in ours.keys() ^ theirs.keys()}
            keys = [key for key in keys if not isinstance(alone.get(key), list | dict)]
        return [
            d for key in keys for d in differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if ours == theirs else [(path, ours, theirs)]


def read_run(path: Path) -> dict[str, Any]:
    """Return what run.json says, in today's words, or refuse it."""
    file = path / "run.json"
    run = storage.read_json(file)
    check_format(file, run)
    return check_run(file, run)


def check_run(file: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of a run, in today's words, or refuse it."""
    threads: Any = run.get("threads")  # nothing on a GPU, nor in older folders
    configuration: Any = run.get("configuration")
    require(_is_count(run.get("size")), file, "its 'size' is not a whole number above 0")
    proper = _is_count(run.get("members_at_once", 1))  # not there before the first epoch, nor in older folders
    require(proper, file, "its 'members_at_once' is not a whole number above 0")
    proper = threads is None or (_is_count(threads) and threads <= _MOST_THREADS)
    require(proper, file, "its 'threads' is no number of threads")
    proper = isinstance(configuration, dict) and isinstance(configuration.get("recipe"), dict)
    require(proper, file, "its 'configuration' has no 'recipe'")
    require(isinstance(run.get("id", ""), str), file, "its 'id' is no text")  # which older folders do not have
    require(isinstance(run.get("extended_from", []), list), file, "its 'extended_from' is not a list")
    read_field(file, as_normalize, configuration["recipe"].get("normalize"))
    read_targets(file, configuration)
    configuration = in_todays_words(configuration)
    method = configuration.get("method")
    require(isinstance(method, dict) and isinstance(method.get("label"), str), file, "its 'method' has no 'label'")
    return {**run, "configuration": configuration}


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def in_todays_words(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as this version writes it, whichever version did."""
    recipe, name = {**_OLD_RECIPE, **configuration.get("recipe", {})}, configuration.get("method")
    if not isinstance(name, str) or name not in _METHODS_OF_0_1:
        return {**configuration, "recipe": recipe}
    others = {key: value for key, value in configuration.items() if key != "strength"}
    strength = configuration.get("strength")
    method = {**_METHODS_OF_0_1[name], **({} if strength is None else {"strength": strength})}
    return {**others, "method": method, "recipe": recipe}


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
