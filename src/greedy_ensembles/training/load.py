"""Reading a run folder: what was asked, what happened, and the ensemble that came of it."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from greedy_ensembles import models
from greedy_ensembles.ensemble import Ensemble, ModelFactory, read_inputs, weights_file
from greedy_ensembles.storage import FolderError, check_contained, damaged, require
from greedy_ensembles.training.notes import training_notes
from greedy_ensembles.training.run_folder import read_history, read_members, read_run, read_weights
from greedy_ensembles.training.store import History


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
    def finished(self) -> bool:
        """Whether all members are there."""
        return len(self.members) == self.size

    @cached_property
    def ensemble(self) -> Ensemble:
        """The members that are finished."""
        if not self.members:
            raise ValueError(f"{self.folder} has no finished member yet")
        description = self.information.get("model")
        make_model = self.make_model or _known_model(description)
        if make_model is None:
            raise ValueError(
                f"{self.folder} was trained with a model of your own ({description}); "
                "pass its factory, as in ge.load_run(folder, make_model), or --model package:function to a command"
            )
        if self.make_model is None:
            _check_size(make_model, self.folder)
        members = read_weights(self.folder, make_model, self.device)
        inputs = read_inputs(self.folder / "run.json", self.information)
        notes: dict[str, str] = {}
        # A folder from elsewhere may say what it likes.
        with suppress(KeyError, TypeError, ValueError, AttributeError, OverflowError):
            at_once = self.information.get("members_at_once")
            notes = training_notes(self.configuration, self.information.get("data"), self.members, at_once)
        return Ensemble(members, self.configuration["recipe"].get("normalize"), inputs=inputs, notes=notes)

    def completed_by(self, make_model: ModelFactory | None) -> "Run":
        """Return the run with this factory where it does not say itself what all of its members are."""
        known = _known_model(self.information.get("model")) is not None
        elsewhere = any(member.get("origin") == "earlier" for member in self.members)
        return self if known and not elsewhere else replace(self, make_model=make_model)


def load_run(folder: str | Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu") -> Run:
    """Read a run's configuration, histories and ensemble.

    `make_model` may be left out where the run was trained with ``functools.partial`` of one of `ge.models`.
    """
    folder = Path(folder).expanduser()
    if not (folder / "run.json").exists():
        raise FolderError(f"{folder} holds no run (there is no run.json in it)")
    check_contained(folder)
    members = read_members(folder)
    histories = [
        read_history(weights_file(folder, number).with_name("history.jsonl"), facts["files"]["history"])
        for number, facts in enumerate(members, start=1)
    ]
    return Run(folder, read_run(folder), members, histories, make_model, device)


def _known_model(description: Any) -> ModelFactory | None:
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


def _check_size(make_model: ModelFactory, folder: Path) -> None:
    """Build a model that run.json describes without its numbers first: the file may ask for more than memory holds."""
    try:
        with torch.device("meta"):
            needed = sum(value.nbytes for value in make_model().state_dict().values())
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise damaged(folder / "run.json", f"its 'model' cannot be built: {error}") from None
    file = weights_file(folder, 1)
    require(file.exists() and needed <= file.stat().st_size, folder / "run.json", f"its 'model' does not fit {file}")
