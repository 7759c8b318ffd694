"""One run from beginning to end: train it in its folder, predict, judge, pack the predictions, write the record.

Each step leaves files that are whole or absent, and the record comes last, so a kill loses the epoch under way at the
most, or the predictions, which take seconds.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from greedy_ensembles.benchmark import judge, pack_predictions, predict
from greedy_ensembles.benchmark.paper import PUBLISHED
from greedy_ensembles.benchmark.predictions import Arithmetic, fitting_batch_size, in_batches
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.data import ImageSet
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.inputs import as_tensor, device_of
from greedy_ensembles.models import named
from greedy_ensembles.paper.images import Sets
from greedy_ensembles.paper.records import (
    DIVERGED,
    DONE,
    Record,
    Shelf,
    epoch_seconds,
    machine_of,
    plain,
)
from greedy_ensembles.paper.study import Case, Job, Protocol, Study, members_to_train
from greedy_ensembles.runs import Run, load_run
from greedy_ensembles.training import Recipe, fit

#: The share of the training images that selects each member's best epoch.
VALIDATION = 0.1
_QUICK_BATCH = 50
_PASSES = 5  # over a set, of which the fastest counts
_PAPER_MODELS = ("PreResNet164", "VGG16BN", "WideResNet28x10")


@dataclasses.dataclass(frozen=True)
class Workshop:
    """Where jobs are done, and how."""

    out: Path
    sets: Sets
    device: torch.device
    progress: bool = True
    pack: bool = True
    kept: Path | None = None  #: a page's folder, whose records count as well

    @property
    def shelf(self) -> Shelf:
        """Where records go."""
        return Shelf(self.out, self.kept)

    def folder(self, job: Job) -> Path:
        """Return the run folder of a job."""
        return self.out / "runs" / job.run


def do(job: Job, study: Study, workshop: Workshop) -> Record:
    """Do what is missing of a run, and keep its record; training that left the range of numbers is recorded as such."""
    try:
        ensemble = _train(job, study, workshop)
        run = load_run(workshop.folder(job))
        record = _judge(job, study, workshop, ensemble, _begun(job, run))
    except ArithmeticError as error:
        folder = workshop.folder(job)
        machine = machine_of(load_run(folder)) if (folder / "run.json").exists() else {}
        record = Record(job.name, DIVERGED, str(error), machine=machine)
    workshop.shelf.write(record)
    return record


def _train(job: Job, study: Study, workshop: Workshop) -> Ensemble:
    case, sets, folder = job.case, workshop.sets, workshop.folder(job)
    data = sets.train(case.dataset)
    before = load_run(folder).size if (folder / "run.json").exists() else 0
    ensemble = fit(
        make_model(case, data),
        data,
        size=max(members_to_train(case, study), before),
        method=case.method,
        strength=case.strength,
        weighting=sets.weighting(case),
        recipe=recipe_of(case, job.protocol),
        seed=job.seed,
        validation=0.0 if job.protocol.quick else VALIDATION,  # so few images may have but one of a class
        run_dir=folder,
        schedule=job.protocol.schedule,
        device=workshop.device,
        progress=workshop.progress,
    )
    return ensemble[: case.size]


def make_model(case: Case, data: ImageSet) -> Callable[[], nn.Module]:
    """Return the network of a case, as the published code builds it."""
    if data.classes is None:
        raise ValueError(f"{data.name} does not say how many classes it has")
    shape: dict[str, Any] = {"classes": len(data.classes), "channels": data.images.shape[1]}
    return partial(named(case.model, **shape), **PUBLISHED.get(case.model, {}))


def recipe_of(case: Case, protocol: Protocol) -> Recipe:
    """Return the paper's recipe, as long as the case has it, under a protocol."""
    changes: dict[str, Any] = {
        "precision": protocol.precision,
        "weighting_batch_size": protocol.weighting_batch,
        "weighting_statistics": protocol.statistics,
    }
    if case.epochs is not None:
        changes |= {"epochs": case.epochs}
    if protocol.quick:
        changes |= {"batch_size": _QUICK_BATCH}
    row = case.model if case.dataset == "mnist" or case.model in _PAPER_MODELS else "PreResNet20"
    return Recipe.paper(case.dataset, row, **changes)


def published_epochs(case: Case) -> int:
    """Return for how many epochs the paper trains a case."""
    return recipe_of(dataclasses.replace(case, epochs=None), Protocol()).epochs


def _begun(job: Job, run: Run) -> Record:
    """Return the record of a run that is trained, as far as its members, the first of the run, are concerned."""
    histories = run.histories[: job.case.size]
    return Record(
        job.name,
        DONE,
        information={**facts_of(run).information, "size": job.case.size},
        machine=machine_of(run),
        seconds=sum(epoch["seconds"] for history in histories for epoch in history),
        epoch_seconds=epoch_seconds(histories),
    )


def _judge(job: Job, study: Study, workshop: Workshop, ensemble: Ensemble, record: Record) -> Record:
    """Add to a record what the study wants of the ensemble, and what an earlier record had already."""
    sets = workshop.sets
    # Who was trained in less than single precision on a GPU is not judged in it.
    less = job.protocol.precision != "float32" and device_of(ensemble[0]).type == "cuda"
    precision: Arithmetic = "tf32" if less else "float32"
    found: dict[str, Any] = {}
    if study.evaluated:
        bench = sets.bench(job.case.dataset)
        inside = predict(ensemble, bench.in_domain, precision=precision)
        outside = [
            predict(ensemble, images.replace(name=name), precision=precision) for name, images in bench.ood.items()
        ]
        packed: tuple[str, ...] = ()
        if workshop.pack or study.pictures:
            file = workshop.shelf.predictions(job.name)
            information = {**record.information, "judged_in": precision}
            files = pack_predictions(file, inside, outside, missing=bench.missing, information=information)
            packed = tuple(path.name for path in files)
        evaluation = plain(judge(inside, outside, missing=bench.missing))
        found |= {"evaluation": evaluation, "packed": packed}
    if study.corruptions:
        found["corruptions"] = _corrupted(ensemble, sets, precision)
    if study.timed:
        found["prediction"] = _timed(ensemble, sets.test(job.case.dataset), precision)
    judged_in: dict[str, str] = dict.fromkeys(found, precision) if less else {}
    before = workshop.shelf.read(job)
    for name in ("evaluation", "corruptions", "prediction", "packed"):
        if before is not None and not found.get(name):
            found[name] = getattr(before, name)
            judged_in |= {name: before.judged_in[name]} if name in before.judged_in else {}
    return dataclasses.replace(record, **found, judged_in=judged_in)


def _timed(ensemble: Ensemble, images: ImageSet, precision: Arithmetic) -> dict[str, float]:
    """Return the seconds of the fastest of some predictions of a set by all members, after a first one.

    The first makes kernels and recordings, which take longer than the predictions, and longer for the first ensemble
    of a process than for others.
    """
    seconds, pixels = [], as_tensor(images.images)
    with Execution(device_of(ensemble[0]), precision).settings():
        for _ in range(1 + _PASSES):
            start = time.perf_counter()
            in_batches(ensemble, pixels, fitting_batch_size(ensemble))
            seconds.append(time.perf_counter() - start)
    return {"images": len(images), "seconds": min(seconds[1:])}


def _corrupted(ensemble: Ensemble, sets: Sets, precision: Arithmetic) -> dict[str, dict[str, float]]:
    found = {}
    for name, images in sets.corruptions():
        inside = judge(predict(ensemble, images, precision=precision), []).in_domain
        found[name] = {"accuracy": inside.accuracy, "nll": inside.nll, "images": inside.images}
    return found
