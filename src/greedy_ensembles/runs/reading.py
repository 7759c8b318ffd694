"""Reading a run folder: what was asked, what happened, and the ensemble that came of it.

A folder of version 0.1 reads as one of today: a field that it lacks has the value that it had when it was written.
"""

import hashlib
import inspect
import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from greedy_ensembles import models, storage
from greedy_ensembles.checks import as_path, check_factory
from greedy_ensembles.engines.execution import as_device
from greedy_ensembles.engines.member import History
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.flags import fingerprint, read_calibration
from greedy_ensembles.forms import from_json, to_json
from greedy_ensembles.inputs import as_normalize
from greedy_ensembles.runs.notes import training_notes
from greedy_ensembles.saving import (
    HELD_OUT,
    check_format,
    load_members,
    read_description,
    read_field,
    read_targets,
    weights_file,
)
from greedy_ensembles.storage import FolderError, check_contained, damaged, require

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
_LAYERS = {"depth", "blocks_per_stage", "hidden"}  # arguments of `ge.models` that say how many layers there are
_METHODS_OF_0_1 = {
    "greedy": {"class": "greedy_ensembles.method.greedy.Greedy", "label": "greedy", "sees": "earlier"},
    "deep": {"class": "greedy_ensembles.method.deep.Deep", "label": "Deep Ensembles", "sees": "none"},
}


def read_run(path: Path) -> dict[str, Any]:
    """Return what run.json says, in today's words."""
    file = path / "run.json"
    run = storage.read_json(file)
    check_format(file, run)
    return _checked(file, run)


def _checked(file: Path, run: dict[str, Any]) -> dict[str, Any]:
    """Return what a file says of a run, in today's words, or refuse it."""
    size: Any = run.get("size")
    configuration: Any = run.get("configuration")
    require(type(size) is int and size > 0, file, "its 'size' is not a whole number above 0")
    proper = isinstance(configuration, dict) and isinstance(configuration.get("recipe"), dict)
    require(proper, file, "its 'configuration' has no 'recipe'")
    require(isinstance(run.get("id", ""), str), file, "its 'id' is no text")  # which older folders do not have
    require(isinstance(run.get("extended_from", []), list), file, "its 'extended_from' is not a list")
    at_once: Any = run.get("members_at_once", 1)  # which is not there before the first epoch, nor in older folders
    require(type(at_once) is int and at_once > 0, file, "its 'members_at_once' is not a whole number above 0")
    threads: Any = run.get("threads")  # nothing on a GPU, nor in older folders
    proper = threads is None or (type(threads) is int and 0 < threads <= _MOST_THREADS)
    require(proper, file, "its 'threads' is no number of threads")
    read_field(file, as_normalize, configuration["recipe"].get("normalize"))
    read_targets(file, configuration)
    run["configuration"] = in_todays_words(configuration)
    method: Any = run["configuration"].get("method")
    require(isinstance(method, dict) and isinstance(method.get("label"), str), file, "its 'method' has no 'label'")
    return run


#: What predictions, and saved ensembles, keep of run.json.
KEPT = ("size", "configuration", "model", "data", "extended_from", "members_at_once")


def in_todays_words(configuration: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as this version writes it, whichever version did."""
    recipe, name = {**_OLD_RECIPE, **configuration.get("recipe", {})}, configuration.get("method")
    if not isinstance(name, str) or name not in _METHODS_OF_0_1:
        return {**configuration, "recipe": recipe}
    others = {key: value for key, value in configuration.items() if key != "strength"}
    strength = configuration.get("strength")
    method = {**_METHODS_OF_0_1[name], **({} if strength is None else {"strength": strength})}
    return {**others, "method": method, "recipe": recipe}


def check_goes_on(file: Path, run: dict[str, Any], done: int) -> None:
    """Refuse to go on with a run that was begun under other rules."""
    if run["format"] == 1 and done < run["size"] and run["configuration"].get("validation"):
        raise FolderError(
            f"{file} was begun by version 0.1, which kept the first of equally good epochs. This version keeps "
            "the last, and members of one run would be selected by two rules. Finish it with version 0.1, or start "
            "anew in another run_dir; nothing was changed"
        )


def read_members(path: Path) -> list[dict[str, Any]]:
    """Return what the member.json files of the finished members say, in order."""
    members: list[dict[str, Any]] = []
    file = path / "run.json"
    run = storage.read_json(file).get("id") if file.exists() else None  # older folders have none, nor their members
    while (file := weights_file(path, len(members) + 1).with_name("member.json")).exists():
        facts = storage.read_json(file)
        files: Any = facts.get("files")
        proper = isinstance(files, dict) and {"weights", "history"} <= files.keys()
        proper = proper and all(isinstance(checksum, str) for checksum in files.values())
        require(proper, file, "its 'files' are not the checksums of weights and history")
        why = f"it is of member {facts.get('number')!r}, in the place of another"
        require(facts.get("number") == len(members) + 1, file, why)
        require(facts.get("run") == run, file, "it is of another run")
        accuracy, numbers = facts.get("validation_accuracy"), (int, float, type(None))
        proper = type(accuracy) in numbers and 0 <= (accuracy or 0) <= 1 and type(facts.get("last_loss")) in numbers
        require(proper, file, "its accuracy or loss is no such number")
        members.append(facts)
    later = sorted((path / "members").glob("*/member.json"))[len(members) :]
    if later:
        raise damaged(file, f"it is missing while {later[0]} exists")
    return members


def verify_members(path: Path) -> None:
    """Check every file of the finished members against its checksum."""
    for number, facts in enumerate(read_members(path), start=1):
        weights = weights_file(path, number)
        storage.read_tensors(weights, checksum=facts["files"]["weights"])
        read_history(weights.with_name("history.jsonl"), facts["files"]["history"])
        if "bank" in facts["files"]:
            storage.read_tensors(bank_file(path, number), checksum=facts["files"]["bank"])


def read_history(file: Path, checksum: str) -> History:
    """Return the epochs of a finished member."""
    lines = file.read_bytes() if file.exists() else b""
    if digest_of_lines(lines) != checksum:
        raise damaged(file, "its content does not match its checksum" if file.exists() else "it is missing")
    try:
        return [json.loads(line) for line in lines.splitlines()]
    except (ValueError, RecursionError):
        raise damaged(file, "it is not JSON, line by line") from None


def bank_file(path: Path, number: int) -> Path:
    """Return where member `number`, counted from 1, has its outputs on the p* set."""
    return path / "bank" / f"{number:02d}.safetensors"


def digest_of_lines(content: bytes) -> str:
    """Return the checksum of a history."""
    return hashlib.sha256(content).hexdigest()


@dataclass
class Run:
    """A run as its folder holds it."""

    folder: Path
    information: dict[str, Any]  #: run.json: size, configuration, versions, command, machine, commit
    members: list[dict[str, Any]]  #: of each finished member: number, seed, best epoch, validation accuracy
    histories: list[History]  #: of each finished member: one record an epoch
    make_model: ModelFactory | None
    device: torch.device | str

    @property
    def size(self) -> int:
        """How many members the run was asked for."""
        return int(self.information["size"])

    @property
    def configuration(self) -> dict[str, Any]:
        """All arguments that training depends on."""
        return dict(self.information["configuration"])

    @property
    def method(self) -> str:
        """What tables call the method."""
        return str(self.configuration["method"]["label"])

    @property
    def strength(self) -> float | None:
        """lambda_M, None where the method has none."""
        return self.configuration["method"].get("strength")  # type: ignore[no-any-return]

    @property
    def title(self) -> str:
        """The method with its strength."""
        return self.method if self.strength is None else f"{self.method}, lambda_M = {self.strength:g}"

    @property
    def finished(self) -> bool:
        """Whether all members are there."""
        return len(self.members) == self.size

    @cached_property
    def ensemble(self) -> Ensemble:
        """The members that are finished."""
        if not self.members:
            raise ValueError(f"{self.folder} has no finished member yet")
        description = self.information.get("model")
        known = _known_model(description)
        make_model = self.make_model or known
        if make_model is None:
            raise ValueError(
                f"{self.folder} was trained with a model of your own ({description}); "
                "pass its factory, as in ge.load_run(folder, make_model), or --model package:function to a command"
            )
        if self.make_model is None and known is not None:
            _check_size(known, self.folder)
        checksums = [facts["files"]["weights"] for facts in self.members]
        members = load_members(self.folder, checksums, make_model, self.device)
        inputs = read_field(self.folder / "run.json", from_json, self.information.get("inputs"))
        notes: dict[str, str] = {}
        # A folder from elsewhere may say what it likes.
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            asked = self.configuration
            share = asked["validation"] if isinstance(asked["validation"], float) else None
            of_training = (self.title, asked["schedule"], asked["seed"], share)
            at_once = None if self.strength is None else self.information.get("members_at_once")
            notes = training_notes(*of_training, self.information.get("data"), self.members, at_once)
        targets, normalize = self.configuration.get("targets", "classes"), self.configuration["recipe"].get("normalize")
        ensemble = Ensemble(members, normalize, inputs=inputs, notes=notes, targets=targets)
        ensemble.calibration = read_calibration(self.folder, fingerprint(checksums))
        ensemble.run = {key: self.information[key] for key in KEPT if key in self.information}
        ensemble.held_out = self.folder / HELD_OUT
        return ensemble

    def completed_by(self, make_model: ModelFactory | None) -> "Run":
        """Return the run with this factory where it does not say itself what all of its members are."""
        known = _known_model(self.information.get("model")) is not None
        elsewhere = any(member.get("origin") == "earlier" for member in self.members)
        return self if known and not elsewhere else replace(self, make_model=make_model)


def load_run(folder: str | Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu") -> Run:
    """Read a run's configuration, histories and ensemble; of an ensemble that was saved from a run, all but histories.

    Args:
        folder: the `run_dir` of the run, or a saved ensemble.
        make_model: what builds a member; may be left out where the run was trained with ``functools.partial`` of one of
            `ge.models`.
        device: where the members of its ensemble are put.
    """
    folder, device = as_path("folder", folder), as_device(device)
    if make_model is not None:
        check_factory("make_model", make_model)
    check_contained(folder)
    if (folder / "ensemble.json").exists() and not (folder / "run.json").exists():
        return _load_saved(folder, make_model, device)
    if not (folder / "run.json").exists():
        raise FolderError(f"{folder} holds no run (there is no run.json in it)")
    members = read_members(folder)
    histories = [
        read_history(weights_file(folder, number).with_name("history.jsonl"), facts["files"]["history"])
        for number, facts in enumerate(members, start=1)
    ]
    return Run(folder, read_run(folder), members, histories, make_model, device)


def _load_saved(folder: Path, make_model: ModelFactory | None, device: torch.device | str) -> Run:
    """Return the run that a saved ensemble came from, as far as it says: without histories."""
    content = read_description(file := folder / "ensemble.json")
    if content.run is None:
        raise FolderError(f"{folder} is a saved ensemble that came from no run; read it with ge.Ensemble.load")
    inputs = None if content.inputs is None else to_json(content.inputs)
    information = _checked(file, {**content.run, "size": len(content.members), "inputs": inputs})
    members = [{"files": {"weights": checksum}} for checksum in content.members]
    return Run(folder, information, members, [[] for _ in members], make_model, device)


def _known_model(description: Any) -> "partial[nn.Module] | None":
    """Return the factory of one of our own models from its description in run.json, a name and plain values."""
    if not isinstance(description, dict) or "partial" not in description:
        return None
    for name in models.__all__:
        model = getattr(models, name)
        if description["partial"] == f"{model.__module__}.{model.__qualname__}":
            arguments, keywords = description.get("args"), description.get("keywords")
            if isinstance(arguments, list) and isinstance(keywords, dict):
                return partial(model, *arguments, **keywords)
    return None


def _check_size(make_model: "partial[nn.Module]", folder: Path) -> None:
    """Refuse a model that run.json describes if it is larger than its weights: it may ask for more than memory holds.

    Layers are counted before any is built, for there may be billions, and the model is then built without its numbers.
    """
    first = weights_file(folder, 1)
    run = folder / ("run.json" if (folder / "run.json").exists() else "ensemble.json")
    tensors = len(storage.read_tensors(first)[0])
    try:
        given = inspect.signature(make_model.func).bind(*make_model.args, **make_model.keywords).arguments
    except TypeError as error:
        raise damaged(run, f"its 'model' cannot be built: {error}") from None
    for name in _LAYERS & given.keys():
        count = len(given[name]) if isinstance(given[name], list) else given[name]
        if isinstance(count, int) and count > tensors:
            raise damaged(run, f"its 'model' has {name} = {count:,}, and {first} has {tensors:,} tensors")
    try:
        with torch.device("meta"):
            needed = sum(value.nbytes for value in make_model().state_dict().values())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise damaged(run, f"its 'model' cannot be built: {error}") from None
    require(needed <= first.stat().st_size, run, f"its 'model' does not fit {first}")
