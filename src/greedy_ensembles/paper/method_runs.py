"""Runs of the study of all methods: each is trained, judged and kept by itself, in a record beside the page.

A setting is a network on a data set. A record is written when its run is judged, and is enough for the page: a study
goes on from the records of its page alone, wherever they were made. A run folder that is there is not trained again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Evaluation
from greedy_ensembles.method import METHODS, as_coupling
from greedy_ensembles.paper.records import KEPT
from greedy_ensembles.paper.study import SPACING
from greedy_ensembles.runs.configuration import describe, describe_method
from greedy_ensembles.storage import FolderError, read_json, write_json
from greedy_ensembles.training.events import ProgressBars

DETECTORS = "detectors"
_MACHINE = ("started", "device", "versions", "git_commit")


class Data(NamedTuple):
    """What methods are trained and judged on."""

    train: Any
    test: Any
    ood: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]  #: by group, names of sets
    reference: Any  #: labelled examples that features are compared with


class Own(NamedTuple):
    """What a method has in a setting in the place of the others' network or recipe, by its own definition."""

    what: str  #: as the page says it
    recipe: Mapping[str, Any] = {}  #: the fields that are others
    make_model: Callable[[], nn.Module] | None = None


@dataclass(frozen=True, eq=False)
class Setting:
    """One network on one data set."""

    name: str
    title: str
    read: Callable[[], Data | None]  #: None where it cannot be run here
    network: str
    make_model: Callable[[], nn.Module]
    features: str  #: the layer before the last
    recipe: ge.Recipe
    size: int = 5
    seeds: int = 3
    other: str = "other natural sets"  #: what the group of sets that may not choose is
    detectors: Callable[[Data, int], dict[str, Evaluation]] | None = None
    own: Mapping[str, Own] = field(default_factory=dict)  #: by method

    def recipe_of(self, method: str) -> ge.Recipe:
        """Return how members of a method are trained."""
        return replace(self.recipe, **self.own[method].recipe) if method in self.own else self.recipe

    def model_of(self, method: str) -> Callable[[], nn.Module]:
        """Return what builds a member of a method."""
        return (self.own[method].make_model if method in self.own else None) or self.make_model


class Job(NamedTuple):
    """One run: a method with one seed; or all detectors with one."""

    setting: Setting
    method: str
    seed: int

    @property
    def name(self) -> str:
        """What its record and its run folder are called."""
        return f"{self.setting.name}-{self.method}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """What its record must have been made with."""
        if self.method == DETECTORS:
            return {}
        described = {"method": describe_method(as_coupling(self.method))}
        described["recipe"] = describe(self.setting.recipe_of(self.method))
        fields = {f"{name}.{key}": value for name, own in described.items() for key, value in own.items()}
        return {"size": self.setting.size, **fields}

    def record(self, out: Path) -> dict[str, Any] | None:
        """Return what is known of the run, None if nothing is; refuse what was made with other settings."""
        file = out / KEPT / f"{self.name}.json"
        if not file.exists():
            return None
        content = read_json(file)
        for key, asked in self.settings.items():  # a version that had fewer of them trained by their defaults
            if (made := content["settings"].get(key, asked)) != asked:
                raise FolderError(f"{file} was made with {key} {made}, not {asked}; delete it to do the run again")
        return content


def jobs(settings: Iterable[Setting]) -> list[Job]:
    """Return all runs of a study; the first seeds of all methods come before the second."""
    return [
        Job(setting, method, number * SPACING)
        for setting in settings
        for number in range(setting.seeds)
        for method in (*METHODS, *([DETECTORS] if setting.detectors else []))
    ]


def work(out: Path, wanted: Sequence[Job], progress: bool) -> None:
    """Do the runs that have no record yet, as far as they can be done here."""
    missing = [job for job in wanted if job.record(out) is None]
    for setting, own in groupby(missing, key=lambda job: job.setting):
        if (data := setting.read()) is not None:
            (out / KEPT).mkdir(parents=True, exist_ok=True)
            for job in own:
                write_json(
                    out / KEPT / f"{job.name}.json", {"settings": job.settings, **done(job, data, out, progress)}
                )


def done(job: Job, data: Data, out: Path, progress: bool) -> dict[str, Any]:
    """Train and judge a run, and return its record: figures by the names of rows; or why there are none."""
    groups = {name: list(sets) for name, sets in data.groups.items()}
    counts = {"training (a tenth of them held out)": count(data.train), "test": count(data.test)}
    known = {"groups": groups, "examples": counts | {name: count((None, x)) for name, x in data.ood.items()}}
    if job.method == DETECTORS:
        found = (job.setting.detectors or _none)(data, job.seed // SPACING)
        return {**known, "rows": {name: {"evaluation": one.without_scores()} for name, one in found.items()}}
    try:
        ensemble = trained(job, data, out / "runs" / job.name, progress)
    except FolderError:
        raise
    except (ValueError, ArithmeticError) as error:  # the method says what it needs, or training left the numbers
        return {**known, "refused": str(error)}
    told = read_json(out / "runs" / job.name / "run.json")
    machine = {name: told.get(name) for name in _MACHINE}
    return {**known, "machine": machine, "rows": judged(job, data, ensemble)}


def _none(data: Data, seed: int) -> dict[str, Evaluation]:
    return {}


def trained(job: Job, data: Data, folder: Path, progress: bool) -> ge.Ensemble:
    """Return the ensemble of a run; what its folder holds is not trained again."""
    with ProgressBars() if progress else nullcontext() as bars:
        return ge.fit(
            job.setting.model_of(job.method),
            data.train,
            size=job.setting.size,
            method=job.method,
            recipe=job.setting.recipe_of(job.method),
            seed=job.seed,
            run_dir=folder,
            schedule=schedule_of(job.method),
            progress=False,
            callbacks=[partial(bars.show, run=job.name)] if bars else [],
        )


def judged(job: Job, data: Data, ensemble: ge.Ensemble) -> dict[str, Any]:
    """Return a method's figures and costs; beside those of Deep Ensembles, one network's, by its outputs and by all."""
    known = {"features": job.setting.features, "reference": data.reference}
    held = {p.data_ptr(): p.numel() for member in ensemble for p in member.parameters()}
    steps, parameters = member_steps(job.setting, job.method, count(data.train), ensemble), sum(held.values())

    def row(own: ge.Ensemble, score: str, networks: int, more: Mapping[str, Any]) -> dict[str, Any]:
        evaluation = ge.benchmark.evaluate(own, data.test, data.ood, score=score, **more)
        costs = {"steps": steps // networks, "passes": len(own), "parameters": parameters // networks}
        return {"evaluation": evaluation.without_scores(), **costs}

    found = {job.method: row(ensemble, "mutual_information", 1, known)}
    if job.method == "deep":
        for name, more in (("one network", {}), ("one network, features", known)):
            found[name] = row(ensemble[:1], "predictive_entropy", len(ensemble), more)
    return found


def schedule_of(method: str) -> str:
    """Return the schedule that a method can have: members that all meet each other must train together."""
    return "concurrent" if METHODS[method].sees == "all" else "sequential"


def member_steps(setting: Setting, method: str, examples: int, ensemble: ge.Ensemble) -> int:
    """Return the steps of all networks that are trained, each times how often it takes a row of the batch.

    A tenth of the examples is held out. BatchEnsemble takes every row once a member, in one network.
    """
    coupling = as_coupling(method)
    coupling.size = setting.size
    example = torch.zeros(2, *ensemble.inputs.shape)  # type: ignore[union-attr]  # arrays and images have a shape
    with torch.no_grad():
        rows = len(coupling.build(setting.model_of(method)(), 1, 0).train()(example)) // 2
    networks = 1 if coupling.one_network else setting.size
    recipe = setting.recipe_of(method)
    steps = ceil((examples - ceil(0.1 * examples)) / recipe.batch_size)
    return networks * rows * recipe.epochs * steps


def count(examples: Any) -> int:
    """Return how many examples there are."""
    return len(examples[1] if isinstance(examples, tuple) else examples)
