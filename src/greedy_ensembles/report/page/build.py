"""From runs and what was found about them to the records that the page is filled with: a part for each data set."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.runs import RunFacts, group
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.page.evaluated import evaluated
from greedy_ensembles.report.page.planes import KnownPoints, planes, takes_points
from greedy_ensembles.report.page.records import Page, Part
from greedy_ensembles.report.page.trained import trained_run, trained_table
from greedy_ensembles.runs import Run
from greedy_ensembles.storage import FolderError


@dataclass(frozen=True, eq=False)
class Findings:
    """What was found about the runs on one data set: a comparison and the images behind it, or why there is none."""

    comparison: Comparison | None = None
    images: Mapping[str, Bytes] | None = None  #: by the names of sets
    notes: Sequence[str] = ()


def build_page(
    runs: Sequence[Run],
    findings: Mapping[str, Findings] | None = None,
    points: Callable[[Run], KnownPoints | None] = lambda run: None,
) -> Page:
    """Return the page of some runs.

    findings : by the name of a data set, `dataset_of` a run.
    points : from a run on inputs of two numbers to the points that it was trained on, where they are known.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(dataset_of(run), []).append(run)
    built = [
        _part(name, f"part-{number}", of_part, (findings or {}).get(name, Findings()), points)
        for number, (name, of_part) in enumerate(parts.items(), start=1)
    ]
    return Page(" and ".join(part.name for part in built), built)


def dataset_of(run: Run) -> str:
    """Return what a run was trained on: the name of an image set, or arrays, by the beginning of their hash."""
    data = run.information.get("data")
    if isinstance(data, dict):
        return str(data.get("name"))
    return f"arrays {str(run.configuration.get('data'))[:8]}"


def _part(
    name: str, anchor: str, runs: Sequence[Run], findings: Findings, points: Callable[[Run], KnownPoints | None]
) -> Part:
    labelled = _labelled(runs)
    flat, notes = _loadable([(label, run) for label, run, _ in labelled if takes_points(run)])
    known = points(flat[0][1]) if flat else None
    return Part(
        name if known is None else known.name,
        anchor,
        trained_table(labelled),
        [trained_run(label, run) for label, run, _ in labelled],
        [*findings.notes, *notes],
        None if findings.comparison is None else evaluated(findings.comparison, findings.images or {}),
        planes([(_with_seed(label, run, flat), run) for label, run in flat], known) if flat else None,
    )


def _loadable(labelled: Sequence[tuple[str, Run]]) -> tuple[list[tuple[str, Run]], list[str]]:
    """Return the runs whose members can be built, and notes on the others: their curves can be shown all the same."""
    found, notes = [], []
    for label, run in labelled:
        try:
            run.ensemble  # noqa: B018 (which builds it, and keeps it)
        except FolderError:
            raise
        except ValueError as error:
            notes.append(f"No map: {error}.")
        else:
            found.append((label, run))
    return found, notes


def _labelled(runs: Sequence[Run]) -> list[tuple[str, Run, RunFacts]]:
    """Return runs with what tables call their configuration, in the order of tables."""
    facts = [facts_of(run) for run in runs]
    by_source = {each.source: run for each, run in zip(facts, runs, strict=True)}
    return [(label, by_source[each.source], each) for label, same in group(facts).items() for each in same]


def _with_seed(label: str, run: Run, among: Sequence[tuple[str, Run]]) -> str:
    """Return a label that tells repetitions apart."""
    repeated = sum(other == label for other, _ in among) > 1
    return f"{label}, seed {run.configuration['seed']}" if repeated else label
