"""What is kept of a run when it is done: a small file with its figures, times and machine, beside its predictions.

Records are enough for all tables of a page; curves and histograms need the packed predictions, too. Neither needs
weights or data, so pages can be built elsewhere. A page keeps the records that it was made from in its own folder, so a
study can be continued from there alone.
"""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles import storage
from greedy_ensembles.benchmark import Evaluation, InDomain, OutOfDistribution
from greedy_ensembles.paper.study import Job, Study
from greedy_ensembles.runs import Run

DONE, DIVERGED = "done", "diverged"
#: The folder of records beside a page.
KEPT = "records"
_MACHINE = ("started", "command", "device", "versions", "git_commit")


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
    judged_in: dict[str, str] = dataclasses.field(default_factory=dict)  #: by field, where it was not float32
    prediction: dict[str, float] | None = None  #: images, and seconds for all members on them
    evaluation: dict[str, Any] | None = None
    corruptions: dict[str, dict[str, float]] | None = None  #: by corruption/severity: accuracy and nll
    packed: tuple[str, ...] = ()  #: names of the files of its predictions


class Shelf:
    """The folder of records and packed predictions, `predictions` under the folder that processes share.

    kept : a page's folder; records that it keeps count as well.
    """

    def __init__(self, out: Path, kept: Path | None = None) -> None:
        self.folder, self._kept = out / "predictions", kept

    @property
    def places(self) -> list[str]:
        """The folders in which there may be records."""
        return [str(self.folder), *([] if self._kept is None else [str(self._kept / KEPT)])]

    def read(self, job: Job) -> Record | None:
        """Return the record of a job, None if there is none."""
        file = self._file(job.name)
        if not file.exists() and self._kept is not None:
            file = self._kept / KEPT / file.name
        if not file.exists():
            return None
        content = storage.read_json(file)
        try:
            return Record(**{**content, "packed": tuple(content["packed"])})
        except (TypeError, KeyError):
            raise storage.damaged(file, "it is no record of this version", "Delete it to do the run again") from None

    def write(self, record: Record) -> None:
        """Write a record, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        storage.write_json(self._file(record.name), dataclasses.asdict(record))

    def predictions(self, name: str) -> Path:
        """Return where the predictions of a run are packed."""
        return self.folder / f"{name}.npz"

    def names(self) -> list[str]:
        """Return the names of all runs that have a record."""
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def keep(records: Iterable[Record], page: Path) -> None:
    """Write records into a page's folder, without what is true on one machine alone: predictions and paths."""
    folder = page / KEPT
    folder.mkdir(parents=True, exist_ok=True)
    for record in records:
        information = dict(record.information)
        if "data" in information:
            information["data"] = {**information["data"], "source": ""}
        moved = dataclasses.replace(record, information=information, packed=())
        storage.write_json(folder / f"{record.name}.json", dataclasses.asdict(moved))


def is_complete(record: Record | None, study: Study) -> bool:
    """Say whether a record has all that a study wants of it."""
    if record is None:
        return False
    if record.status == DIVERGED:
        return True
    wanted = {
        "evaluation": study.evaluated,
        "corruptions": study.corruptions,
        "prediction": study.timed,
        "packed": study.pictures,
    }
    return all(bool(getattr(record, name)) or not needed for name, needed in wanted.items())


def machine_of(run: Run) -> dict[str, Any]:
    """Return when, where and with what a run was started."""
    command = ["greedy-ensembles", *run.information["command"][1:]]  # wherever the program lies
    return {**{key: run.information.get(key) for key in _MACHINE}, "command": command}


def epoch_seconds(histories: Sequence[Sequence[Any]]) -> float:
    """Return the seconds of a member's epoch: the median of each member's epochs after its first, then the mean.

    The first is left out where there are others, for it warms up caches, kernels and graphs.

    >>> epoch_seconds([[{"seconds": 9.0}, {"seconds": 1.0}, {"seconds": 2.0}], [{"seconds": 3.5}]])
    2.5
    """
    typical = [statistics.median([epoch["seconds"] for epoch in (history[1:] or history)]) for history in histories]
    return statistics.fmean(typical)


def plain(evaluation: Evaluation) -> dict[str, Any]:
    """Return an evaluation as JSON, without the scores of single images."""

    def fields(result: InDomain | OutOfDistribution) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(result))
        return {name: getattr(result, name) for name in names if name != "scores"}

    inside = fields(evaluation.in_domain)
    inside["member_accuracies"] = list(inside["member_accuracies"])
    return {
        "score": evaluation.score,
        "members": evaluation.members,
        "in_domain": inside,
        "ood": [fields(result) for result in evaluation.ood],
        "missing": list(evaluation.missing),
    }


def restored(content: dict[str, Any]) -> Evaluation:
    """Return the evaluation that `plain` made JSON of; its scores are empty."""
    none = np.empty(0)
    inside = {**content["in_domain"], "member_accuracies": tuple(content["in_domain"].get("member_accuracies", ()))}
    return Evaluation(
        content["score"],
        content["members"],
        InDomain(**inside, scores=none),
        tuple(OutOfDistribution(**result, scores=none) for result in content["ood"]),
        tuple(content["missing"]),
    )
