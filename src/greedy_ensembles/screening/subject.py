"""The ensemble that is asked: a run folder, or one that `Ensemble.save` wrote, with a fingerprint of its weights."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch

from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.benchmark.sources import facts_of, open_run
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.storage import FolderError, read_json


@dataclass(frozen=True, eq=False)
class Subject:
    """An ensemble as it lies in a folder."""

    folder: Path
    ensemble: Ensemble
    weights: str  #: SHA-256 of the checksums of all members: others after any change, or with more members
    facts: RunFacts | None  #: None for a saved ensemble, which names no data set


def open_subject(folder: Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu") -> Subject:
    """Return a finished run or a saved ensemble, or refuse the folder.

    `make_model` may be left out for runs with one of `ge.models`; a saved ensemble always needs it.
    """
    folder = folder.expanduser()
    if (folder / "run.json").exists():
        run = open_run(folder, make_model, device)
        seals = [member["files"]["weights"] for member in run.members]
        return Subject(folder, run.ensemble, _fingerprint(seals), facts_of(run))
    if not (folder / "ensemble.json").exists():
        raise FolderError(f"{folder} holds neither a run (run.json) nor a saved ensemble (ensemble.json)")
    if make_model is None:
        raise ValueError(f"{folder} is a saved ensemble, which does not name its model; give --model package:function")
    ensemble = Ensemble.load(folder, make_model, device)
    return Subject(folder, ensemble, _fingerprint(read_json(folder / "ensemble.json")["members"]), None)


def _fingerprint(seals: list[str]) -> str:
    return hashlib.sha256(json.dumps(seals).encode()).hexdigest()
