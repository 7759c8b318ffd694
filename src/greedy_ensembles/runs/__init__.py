"""Runs on disk: the folder that training survives in, and here reading it back, with the ensemble that came of it."""

import inspect
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
from greedy_ensembles.forms import from_json, to_json
from greedy_ensembles.runs.configuration import KEPT, check_run, read_run
from greedy_ensembles.runs.folder import read_histories, read_members
from greedy_ensembles.runs.notes import training_notes
from greedy_ensembles.saving import Description, read_description, read_field, weights_file
from greedy_ensembles.storage import FolderError, check_contained, damaged, require

__all__ = ["Run", "load_run"]

_LAYERS = {"depth", "blocks_per_stage", "hidden"}  # arguments of `ge.models` that say how many layers there are


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
        known = _known_model(description) if self.make_model is None else None
        if known is not None:
            _check_size(known, self.folder)
        make_model = self.make_model or known
        if make_model is None:
            raise ValueError(
                f"{self.folder} was trained with a model of your own ({description}); "
                "pass its factory, as in ge.load_run(folder, make_model), or --model package:function to a command"
            )
        if not (self.folder / "run.json").exists():
            return Ensemble.load(self.folder, make_model, self.device)
        checksums = [facts["files"]["weights"] for facts in self.members]
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
        kept = {key: self.information[key] for key in KEPT if key in self.information}
        told = Description(checksums, normalize, inputs, notes, kept, targets)
        return Ensemble._read(self.folder, told, make_model, self.device)

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
    if (folder / "run.json").exists():
        members = read_members(folder)
        return Run(folder, read_run(folder), members, read_histories(folder, members), make_model, device)
    if not (file := folder / "ensemble.json").exists():
        runs = sorted(str(path.parent) for path in folder.glob("*/run.json"))[:3]
        hint = f"; there are runs in it: {', '.join(runs)}" if runs else ""
        raise FolderError(f"{folder} holds no run (there is no run.json in it){hint}")
    content = read_description(file)
    if content.run is None:
        raise FolderError(f"{folder} is a saved ensemble that came from no run; read it with ge.Ensemble.load")
    inputs = None if content.inputs is None else to_json(content.inputs)
    information = check_run(file, {**content.run, "size": len(content.members), "inputs": inputs})
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
        for name in _LAYERS & given.keys():
            count = len(given[name]) if isinstance(given[name], list) else given[name]
            if isinstance(count, int) and count > tensors:
                raise ValueError(f"{name} = {count:,}, and {first} has {tensors:,} tensors")
        with torch.device("meta"):
            needed = sum(value.nbytes for value in make_model().state_dict().values())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise damaged(run, f"its 'model' cannot be built: {error}") from None
    require(needed <= first.stat().st_size, run, f"its 'model' does not fit {first}")
