"""What is kept of a run when it is done, and what the records of a study come to.

Records are enough for all tables of a page; curves and histograms need the packed predictions, too. Neither needs
weights or data, so pages can be built elsewhere. A page keeps the records that it was made from in its own folder, so a
study can be continued from there alone.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles import storage
from greedy_ensembles.benchmark import (
    Comparison,
    Detection,
    Evaluation,
    InDomain,
    Method,
    OutOfDistribution,
    RunFacts,
    judge,
    unpack_predictions,
)
from greedy_ensembles.benchmark.comparison import members_alone
from greedy_ensembles.benchmark.runs import Setting, check_seeds
from greedy_ensembles.checks import naming
from greedy_ensembles.paper import published
from greedy_ensembles.paper.images import WEIGHTINGS, split_of
from greedy_ensembles.paper.study import Job, Protocol, Section, Study, jobs

DONE, DIVERGED = "done", "diverged"
#: The folder of records beside a page.
KEPT = "records"


@dataclass(frozen=True)
class Record:
    """What is known of a run that is done, or that left the range of numbers and is not to be tried again."""

    name: str
    status: str  #: done or diverged
    message: str = ""  #: why it diverged
    information: dict[str, Any] = dataclasses.field(default_factory=dict)  #: what run.json says
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)  #: when, where and with what it was started
    seconds: float = 0.0  #: of training
    epoch_seconds: float = 0.0  #: of a member's epoch, the mean over members, without the first epoch
    validation_accuracies: list[float | None] = dataclasses.field(default_factory=list)  #: of kept epochs; 0.1 had none
    judged_in: dict[str, str] = dataclasses.field(default_factory=dict)  #: by field, where it was not float32
    prediction: dict[str, float] | None = None  #: images, and seconds for all members on them
    evaluation: dict[str, Any] | None = None
    corruptions: dict[str, dict[str, float]] | None = None  #: by corruption/severity: accuracy, nll, ace, mi
    packed: list[str] = dataclasses.field(default_factory=list)  #: names of the files of its predictions

    @property
    def facts(self) -> RunFacts:
        """What its run.json says, as tables ask for it."""
        return RunFacts(self.name, self.information)


class Records:
    """The folder of records and packed predictions, `predictions` under the folder that processes share.

    page : a page's folder; records that it keeps count as well.
    """

    def __init__(self, out: Path, page: Path | None = None) -> None:
        self.folder = out / "predictions"
        self.places = [self.folder, *([] if page is None else [page / KEPT])]

    def read(self, job: Job) -> Record | None:
        """Return the record of a job, None if there is none."""
        files = (folder / f"{job.name}.json" for folder in self.places)
        file = next((file for file in files if file.exists()), None)
        if file is None:
            return None
        content = storage.read_json(file)
        try:
            return Record(**content)
        except TypeError:
            raise storage.damaged(file, "it is no record of this version", "Delete it to do the run again") from None

    def complete(self, job: Job, study: Study) -> Record | None:
        """Return the record of a job if it has all that a study wants of it."""
        record = self.read(job)
        return record if is_complete(record, study) else None

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(self.folder / f"{record.name}.json", dataclasses.asdict(record))

    def predictions(self, name: str) -> Path:
        """Return where the predictions of a run are packed."""
        return self.folder / f"{name}.npz"

    def names(self) -> list[str]:
        """Return the names of all runs that have a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))


def keep(records: Iterable[Record], page: Path) -> None:
    """Write records into a page's folder, without what is true on one machine alone: predictions and paths."""
    folder = page / KEPT
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        information = dict(record.information)
        if "data" in information:
            information["data"] = {**information["data"], "source": ""}
        moved = dataclasses.replace(record, information=information, packed=[])
        storage.write_json(folder / f"{record.name}.json", dataclasses.asdict(moved))


def is_complete(record: Record | None, study: Study) -> bool:
    """Say whether a record has all that a study wants of it."""
    if record is None or record.status == DIVERGED:
        return record is not None
    return bool(
        (record.evaluation or not study.evaluated)
        and (record.corruptions or not study.corruptions)
        and (record.prediction or not study.timed)
        and (record.packed or not study.pictures)
    )


def epoch_seconds(histories: Sequence[Sequence[Any]]) -> float:
    """Return the seconds of a member's epoch: the median of each member's epochs after its first, then the mean.

    The first is left out where there are others, for it warms up caches, kernels and graphs.

    >>> epoch_seconds([[{"seconds": 9.0}, {"seconds": 1.0}, {"seconds": 2.0}], [{"seconds": 3.5}]])
    2.5
    """
    typical = [statistics.median([epoch["seconds"] for epoch in (history[1:] or history)]) for history in histories]
    return statistics.fmean(typical)


def restored(content: dict[str, Any]) -> Evaluation:
    """Return the evaluation that a record has as JSON; its scores are empty."""
    none = np.empty(0)

    def outside(result: dict[str, Any]) -> OutOfDistribution:
        by_score = {name: Detection(*figures) for name, figures in result.get("by_score", {}).items()}
        return OutOfDistribution(**{**result, "by_score": by_score}, scores=none)

    inside = {**content["in_domain"], "member_accuracies": tuple(content["in_domain"].get("member_accuracies", ()))}
    return Evaluation(
        content["score"],
        content["members"],
        InDomain(**inside, scores=none),
        tuple(map(outside, content["ood"])),
        tuple(content["missing"]),
    )


@dataclass(frozen=True)
class Gathered:
    """What there is of a section."""

    section: Section
    comparison: Comparison | None  #: None as long as no run was evaluated
    done: dict[Job, Record]
    diverged: dict[Job, Record]
    missing: tuple[Job, ...]


def gather(study: Study, protocol: Protocol, records: Records) -> list[Gathered]:
    """Return all that the records of a study hold, section by section."""
    result = []
    with naming(records.folder, "holds records that are none of this version"):
        every = jobs(study, protocol)
        known = {job: record for job in every if (record := records.complete(job, study)) is not None}
        for section in study.sections:
            own = [job for job in every if job.case in section.cases]
            missing = tuple(job for job in own if job not in known)
            done, diverged = (
                {job: known[job] for job in own if job in known and known[job].status == status}
                for status in (DONE, DIVERGED)
            )
            comparison = _compare(section, done, records, scores=study.pictures) if study.evaluated else None
            result.append(Gathered(section, comparison, done, diverged, missing))
    return result


def _compare(section: Section, done: dict[Job, Record], records: Records, scores: bool) -> Comparison | None:
    def evaluation(record: Record) -> Evaluation:
        if not scores:
            return restored(record.evaluation or {})
        packed = unpack_predictions(records.predictions(record.name))
        return judge(packed.in_domain, packed.ood, missing=packed.missing)

    methods = []
    for case in section.cases:
        own = {job: record for job, record in done.items() if job.case == case}
        if own:
            check_seeds([record.facts for record in own.values()])
            evaluations, seeds = tuple(map(evaluation, own.values())), tuple(job.seed for job in own)
            sources = tuple(record.name for record in own.values())
            methods.append(Method(section.label(case), evaluations, seeds, _setting(*next(iter(own.items()))), sources))
    if not methods:
        return None
    notes = dict.fromkeys([*(record.facts.training_note for record in done.values()), *_notes(section, done)])
    try:
        known = [note for note in (*notes, *members_alone(methods)) if note]
        return Comparison.on_common_sets(methods, known, published)
    except ValueError as error:
        raise ValueError(
            f"{section.title}: {error}. Delete the records of the former in {' and '.join(map(str, records.places))}, "
            "and run again: runs whose folders are there are judged anew, and not trained"
        ) from None


def _setting(job: Job, record: Record) -> Setting | None:
    """Return the place of a case in the paper's tables, of the nearest M that it has there.

    None for a p* or a network that it has not, for stand-ins and parts, and for figures that mean nothing.
    """
    case = job.case
    if job.protocol.quick or case.images is not None or record.information["data"]["name"] != case.dataset:
        return None
    if case.model in published.PUBLISHED and not published.is_published(record.facts):
        return None
    method = case.method
    if case.strength is not None and case.weighting != "wrap":
        if case.ours or case.weighting in WEIGHTINGS:
            return None
        method = f"greedy, lambda_M = {case.strength:g}, p* = {case.weighting}"
    return published.of_nearest_size(Setting(case.model, case.dataset, case.size, method, case.strength))


def _notes(section: Section, done: Mapping[Job, Record]) -> Iterator[str]:
    """Yield what a reader must know of how the cases of a section were trained, maybe by an older version."""
    for case in section.cases:
        if case.epochs not in (None, case.published_epochs):
            yield f"{case.epochs} epochs of training, where the paper has {case.published_epochs}"
    known = [record.facts for record in done.values()]
    found = dict.fromkeys(text for facts in known for text in published.differing(facts))
    if settings := [text for text in found if not text.startswith("epochs ")]:
        yield f"trained otherwise than in the paper: {', '.join(settings)}"
    for name in sorted({facts.architecture for facts in known if not published.is_published(facts)}):
        if name in published.PUBLISHED:
            yield f"this {name} is not that of the paper, whose figures are not beside it"
    for case in dict.fromkeys(job.case for job in done):
        if case.strength is not None and case.weighting not in WEIGHTINGS:
            dataset, split = split_of(case.weighting)
            yield (
                f"{section.label(case)}: members were trained to differ on images of {dataset} ({split}), so {dataset} "
                "as an OOD set is no surprise to it"
            )
