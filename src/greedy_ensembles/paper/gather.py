"""Records of a study, as one comparison for each section, with what is still missing and what diverged."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from greedy_ensembles.benchmark import Comparison, Evaluation, Method, RunFacts, judge, paper, unpack_predictions
from greedy_ensembles.benchmark.comparison import Setting, members_alone
from greedy_ensembles.benchmark.paper import of_nearest_size
from greedy_ensembles.benchmark.runs import check_seeds
from greedy_ensembles.paper.records import DIVERGED, Record, Shelf, is_complete, restored
from greedy_ensembles.paper.runner import published_epochs
from greedy_ensembles.paper.study import Case, Job, Protocol, Section, Study, jobs
from greedy_ensembles.paper.weightings import WEIGHTINGS, split_of


@dataclass(frozen=True)
class Gathered:
    """What there is of a section."""

    section: Section
    comparison: Comparison | None  #: None as long as no run was evaluated
    done: dict[Job, Record]
    diverged: dict[Job, Record]
    missing: tuple[Job, ...]


def gather(study: Study, protocol: Protocol, shelf: Shelf) -> list[Gathered]:
    """Return all that the records of a study hold, section by section."""
    every = jobs(study, protocol)
    records = {job: shelf.read(job) for job in every}
    result = []
    for section in study.sections:
        own = [job for job in every if job.case in section.cases]
        found = {job: record for job in own if (record := records[job]) is not None and is_complete(record, study)}
        done = {job: record for job, record in found.items() if record.status != DIVERGED}
        diverged = {job: record for job, record in found.items() if record.status == DIVERGED}
        missing = tuple(job for job in own if job not in found)
        comparison = _compare(section, done, shelf, scores=study.pictures) if study.evaluated else None
        result.append(Gathered(section, comparison, done, diverged, missing))
    return result


def _compare(section: Section, done: dict[Job, Record], shelf: Shelf, scores: bool) -> Comparison | None:
    methods = []
    for case in section.cases:
        repetitions = [(job, record) for job, record in done.items() if job.case == case]
        if repetitions:
            methods.append(_method(section.label(case), repetitions, shelf, scores))
    if not methods:
        return None
    notes = dict.fromkeys(
        [*(training_note(record) for record in done.values()), *(_epochs_note(case) for case in section.cases)]
    )
    known = [note for note in (*notes, *_exposed(section, done), *members_alone(methods)) if note]
    try:
        return Comparison.on_common_sets(methods, known, paper)
    except ValueError as error:
        raise ValueError(
            f"{section.title}: {error}. Delete the records of the former in {' and '.join(shelf.places)}, and run "
            "again: runs whose folders are there are judged anew, and not trained"
        ) from None


def _method(label: str, repetitions: Sequence[tuple[Job, Record]], shelf: Shelf, scores: bool) -> Method:
    facts = [RunFacts(record.name, record.information) for _, record in repetitions]
    check_seeds(facts)
    evaluations = tuple(_evaluation(record, shelf, scores) for _, record in repetitions)
    return Method(
        label,
        evaluations,
        tuple(job.seed for job, _ in repetitions),
        _setting(*repetitions[0]),
        tuple(record.name for _, record in repetitions),
    )


def _evaluation(record: Record, shelf: Shelf, scores: bool) -> Evaluation:
    """Return the figures of a record or, where single scores are wanted, those of its packed predictions."""
    if not scores:
        return restored(record.evaluation or {})
    packed = unpack_predictions(shelf.predictions(record.name))
    return judge(packed.in_domain, packed.ood, missing=packed.missing)


def _setting(job: Job, record: Record) -> Setting | None:
    """Return the place of a case in the paper's tables, of the nearest M that it has there.

    None for a p* that it has not, for stand-ins, and for figures that mean nothing.
    """
    case = job.case
    if job.protocol.quick or record.information["data"]["name"] != case.dataset:
        return None
    if case.strength is None or case.weighting == "wrap":
        return of_nearest_size(Setting(case.model, case.dataset, case.size, case.method, case.strength))
    if case.weighting in WEIGHTINGS:
        return None
    method = f"greedy, lambda_M = {case.strength:g}, p* = {case.weighting}"
    return of_nearest_size(Setting(case.model, case.dataset, case.size, method, case.strength))


def _epochs_note(case: Case) -> str:
    """Return how long a case was trained, where it is not as long as in the paper."""
    published = published_epochs(case)
    if case.epochs in (None, published):
        return ""
    return f"{case.epochs} epochs of training, where the paper has {published}"


def training_note(record: Record) -> str:
    """Return what a reader must know of the images that a run was trained on."""
    data = record.information["data"]
    return f"trained on {data['name']}: {data['note']}" if data["note"] else ""


def _exposed(section: Section, done: Iterable[Job]) -> Iterable[str]:
    for case in dict.fromkeys(job.case for job in done):
        if case.strength is not None and case.weighting not in WEIGHTINGS:
            dataset, split = split_of(case.weighting)
            yield (
                f"{section.label(case)}: members were trained to differ on images of {dataset} ({split}), so {dataset} "
                "as an OOD set is no surprise to it"
            )
