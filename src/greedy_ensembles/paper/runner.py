"""All runs of a study, shared between processes through one folder: train, predict, judge, write the record.

Each step leaves files that are whole or absent, and the record comes last, so a kill loses the epoch under way at the
most, or the predictions, which take seconds. A process claims a run with a lock that dies with it. A run that another
has claimed is passed over and come back to, until every run has its record. An executor's worker waits for its own.
"""

import dataclasses
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from greedy_ensembles.benchmark import judge, pack_predictions, predict
from greedy_ensembles.benchmark.predictions import Arithmetic, fitting_batch_size, in_batches
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.data import ImageSet
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.inputs import as_tensor, device_of
from greedy_ensembles.models import named
from greedy_ensembles.paper.images import UNLIKE, Sets, split_of
from greedy_ensembles.paper.published import PUBLISHED
from greedy_ensembles.paper.records import DIVERGED, DONE, Record, Records, epoch_seconds
from greedy_ensembles.paper.study import VALIDATION, Case, Job, Study, members_to_train
from greedy_ensembles.runs import Run, load_run
from greedy_ensembles.sweeps.executor import Executor, Here
from greedy_ensembles.training import Epoch, fit
from greedy_ensembles.training.events import Callback, ProgressBars

_PASSES = 5  # over a set, of which the fastest counts
_MACHINE = ("started", "command", "device", "versions", "git_commit")


@dataclasses.dataclass(frozen=True)
class Runner:
    """Where runs are made, and how."""

    out: Path  #: the folder that processes share
    sets: Sets
    device: torch.device | str | None  #: None: CUDA where there is one, where a run is made
    progress: bool = True
    pack: bool = True  #: whether predictions are kept
    page: Path | None = None  #: a page's folder, whose records count as well
    wait: Callable[[], object] = lambda: time.sleep(1.0)  #: between two looks at runs that are all in other hands

    @property
    def records(self) -> Records:
        """Where records go."""
        return Records(self.out, self.page)

    def folder(self, job: Job) -> Path:
        """Return the run folder of a job."""
        return self.out / "runs" / job.run

    def work(
        self, study: Study, jobs: Sequence[Job], tell: Callable[[str], None], executor: Executor | None = None
    ) -> dict[str, Exception]:
        """Do all jobs that have no record yet, those of a run together, and wait for those that others are doing.

        Without an executor this process does them. Here an error ends the work; elsewhere it is returned.
        """
        executor = Here() if executor is None else executor
        here, page = isinstance(executor, Here), None if self.page is None else self.page.absolute()
        there = dataclasses.replace(self, out=self.out.absolute(), page=page)
        failures: dict[str, Exception] = {}
        waiting = self._to_do(study, jobs)
        total, done, told = sum(map(len, waiting.values())), 0, False
        with ProgressBars(runs=len(waiting)) if self.progress and waiting else nullcontext() as bars:

            def hear(run: str, event: Epoch | Record | None) -> None:
                nonlocal done
                if isinstance(event, Record):
                    done += 1
                    tell(f"{event.name} ({done} of {total}): {_outcome(event)}")
                elif bars is not None:
                    bars.hear(run, event)

            def stop(run: str, error: Exception) -> None:
                tell(f"{run} failed")  # whose error it is, which bars would not leave on the screen
                raise error

            while waiting:
                work = {run: partial(there.make, study, own, 0 if here else -1) for run, own in waiting.items()}
                mine = executor.run(work, hear, stop if here else failures.__setitem__)
                busy = {run: own for run, own in waiting.items() if mine.get(run) is False}
                if len(busy) == len(waiting):
                    if not told:
                        tell(f"waiting for other processes; runs that they hold: {len(busy)}")
                    told = True
                    self.wait()
                waiting = self._to_do(study, [job for own in busy.values() for job in own])
        return failures

    def _to_do(self, study: Study, jobs: Sequence[Job]) -> dict[str, list[Job]]:
        runs: dict[str, list[Job]] = {}
        for job in jobs:
            if not self.records.complete(job, study):
                runs.setdefault(job.run, []).append(job)
        return runs

    def make(
        self, study: Study, jobs: Sequence[Job], patience: float, tell: Callable[[Epoch | Record | None], None]
    ) -> bool:
        """Do the jobs of one run, telling of epochs and of what came of each job; False where another process does."""
        with self.claimed(jobs[0], patience) as mine:
            for job in jobs if mine else ():
                if not self.records.complete(job, study):  # another may have done it meanwhile
                    tell(self.do(job, study, [lambda epoch: tell(dataclasses.replace(epoch, model=None))]))
        if mine:
            tell(None)
        return mine

    @contextmanager
    def claimed(self, job: Job, patience: float = 0) -> Iterator[bool]:
        """Hold the run of a job for this process inside the block; False where another holds it for longer.

        patience : seconds; -1: as long as it takes.
        """
        claims = self.out / "claims"
        claims.mkdir(parents=True, exist_ok=True)
        lock = FileLock(claims / f"{job.run}.lock", timeout=patience)
        with suppress(Timeout):
            lock.acquire()
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def do(self, job: Job, study: Study, callbacks: Sequence[Callback] = ()) -> Record:
        """Do what is missing of a run, and keep its record; training that left the range of numbers is recorded."""
        folder = self.folder(job)
        try:
            ensemble = self._train(job, study, callbacks)
            record = self._judge(job, study, ensemble, _trained(job, load_run(folder)))
        except ArithmeticError as error:
            machine = _machine_of(load_run(folder)) if (folder / "run.json").exists() else {}
            record = Record(job.name, DIVERGED, str(error), machine=machine)
        self.records.write(record)
        return record

    def _train(self, job: Job, study: Study, callbacks: Sequence[Callback]) -> Ensemble:
        case, folder = job.case, self.folder(job)
        data = self.sets.train(case.dataset, case.images)
        before = load_run(folder).size if (folder / "run.json").exists() else 0
        ensemble = fit(
            make_model(case, data),
            data,
            size=max(members_to_train(case, study), before),
            method=case.method,
            strength=case.strength,
            weighting=self.sets.weighting(case),
            recipe=job.recipe,
            seed=job.seed,
            validation=0.0 if job.protocol.quick else VALIDATION,  # so few images may have but one of a class
            run_dir=folder,
            schedule=job.protocol.schedule,
            device=self.device,
            progress=False,
            callbacks=callbacks,
        )
        return ensemble[: case.size]

    def _judge(self, job: Job, study: Study, ensemble: Ensemble, record: Record) -> Record:
        """Add to a record what the study wants of the ensemble, and what an earlier record had already."""
        precision = arithmetic(job.protocol.precision, device_of(ensemble[0]))
        found: dict[str, Any] = {}
        if study.evaluated:
            found |= self._evaluated(job, study, ensemble, record, precision)
        if study.corruptions:
            found["corruptions"] = _corrupted(ensemble, self.sets, precision)
        if study.timed:
            found["prediction"] = _timed(ensemble, self.sets.test(job.case.dataset), precision)
        judged_in: dict[str, str] = dict.fromkeys(found, precision) if precision != "float32" else {}
        before = self.records.read(job)
        for name in ("evaluation", "corruptions", "prediction", "packed"):
            if before is not None and not found.get(name):
                found[name] = getattr(before, name)
                judged_in |= {name: before.judged_in[name]} if name in before.judged_in else {}
        return dataclasses.replace(record, **found, judged_in=judged_in)

    def _evaluated(
        self, job: Job, study: Study, ensemble: Ensemble, record: Record, precision: Arithmetic
    ) -> dict[str, Any]:
        """Return the evaluation on OOD sets, and the names of the files that predictions were packed into."""
        bench, case = self.sets.bench(job.case.dataset), job.case
        known = split_of(case.weighting)[0] if case.weighting == UNLIKE else ""  # images that members have seen
        sets = {name: images for name, images in bench.ood.items() if name != known}
        inside = predict(ensemble, bench.in_domain, precision=precision)
        outside = [predict(ensemble, images.replace(name=n), precision=precision) for n, images in sets.items()]
        packed: list[str] = []
        if self.pack or study.pictures:
            file = self.records.predictions(job.name)
            information = {**record.information, "judged_in": precision}
            files = pack_predictions(file, inside, outside, missing=bench.missing, information=information)
            packed = [path.name for path in files]
        return {"evaluation": judge(inside, outside, missing=bench.missing).without_scores(), "packed": packed}


def make_model(case: Case, data: ImageSet) -> Callable[[], nn.Module]:
    """Return the network of a case, as the published code builds it."""
    shape: dict[str, Any] = {"classes": len(data.classes or ()), "channels": data.images.shape[1]}
    return partial(named(case.model, **shape), **PUBLISHED.get(case.model, {}))


def _trained(job: Job, run: Run) -> Record:
    """Return the record of a run that is trained, as far as its members, the first of the run, are concerned."""
    histories = run.histories[: job.case.size]
    return Record(
        job.name,
        DONE,
        information={**facts_of(run).information, "size": job.case.size},
        machine=_machine_of(run),
        seconds=sum(epoch["seconds"] for history in histories for epoch in history),
        epoch_seconds=epoch_seconds(histories),
        validation_accuracies=[member["validation_accuracy"] for member in run.members[: job.case.size]],
    )


def _machine_of(run: Run) -> dict[str, Any]:
    """Return when, where and with what a run was started, without the paths of the machine."""
    given = run.information["command"][1:]
    command = ["greedy-ensembles", *(Path(word).name if Path(word).is_absolute() else word for word in given)]
    return {**{key: run.information.get(key) for key in _MACHINE}, "command": command}


def arithmetic(trained_in: str, device: torch.device) -> Arithmetic:
    """Return what a run is judged in: on a GPU, no more than TF32 where it was trained in less than float32."""
    return "tf32" if trained_in != "float32" and device.type == "cuda" else "float32"


def _timed(ensemble: Ensemble, images: ImageSet, precision: Arithmetic) -> dict[str, float]:
    pixels = as_tensor(images.images)
    with Execution(device_of(ensemble[0]), precision).settings():
        seconds = fastest(lambda: in_batches(ensemble, pixels, fitting_batch_size(ensemble)))
    return {"images": len(images), "seconds": seconds}


def fastest(act: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest of some passes, after a first one.

    The first makes kernels and recordings, which take longer than the predictions, and longer for the first ensemble
    of a process than for others.
    """
    return min(timeit.repeat(act, timer=clock, repeat=1 + _PASSES, number=1)[1:])


def _corrupted(ensemble: Ensemble, sets: Sets, precision: Arithmetic) -> dict[str, dict[str, float]]:
    found = {}
    for name, images in sets.corruptions():
        inside = judge(predict(ensemble, images, precision=precision), []).in_domain
        figures = {"accuracy": inside.accuracy, "nll": inside.nll, "ace": inside.ace, "mi": float(inside.scores.mean())}
        found[name] = {**figures, "images": inside.images}
    return found


def _outcome(record: Record) -> str:
    if record.status == DIVERGED:
        return f"diverged: {record.message}"
    if record.evaluation is None:
        return f"{record.seconds:,.0f} s of training, {record.epoch_seconds:.2f} s a member and epoch"
    accuracy = record.evaluation["in_domain"]["accuracy"]
    areas = ", ".join(f"{result['name']} {result['auc']:.3f}" for result in record.evaluation["ood"])
    return f"{record.seconds:,.0f} s of training, accuracy {accuracy:.2%}; AUC: {areas}"
