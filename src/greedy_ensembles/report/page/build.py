"""From runs and what was found about them to the page: for each data set, what was trained and how it went."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.runs import RunFacts, group
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.figure import method_styles
from greedy_ensembles.report.page.evaluated import evaluated
from greedy_ensembles.report.page.finding import finding, unevaluated
from greedy_ensembles.report.page.render import Part, TrainedRun
from greedy_ensembles.report.planes import KnownPoints, maps, takes_points
from greedy_ensembles.report.results import spelled
from greedy_ensembles.report.svg import Chart, draw_chart
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.runs import Run
from greedy_ensembles.storage import FolderError

#: Of a chart over epochs: the field of a history, its title, and the label of its axis.
_CHARTS = (
    ("loss", "Loss", "loss"),
    ("diversity", "Diversity term", "diversity term"),
    ("validation_accuracy", "Validation accuracy", "accuracy"),
)
_LARGEST = 1e100  # sums of such numbers are finite, and axes can show them
_LEFT_OUT = ("model", "data")  # of the configuration: shapes of all parameters, and a hash


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
) -> list[Part]:
    """Return the parts of the page of some runs, one a data set.

    Args:
        runs: on one data set or several.
        findings: by the name of a data set, `dataset_of` a run.
        points: from a run on inputs of two numbers to the points that it was trained on, where they are known.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    parts: dict[str, list[Run]] = {}
    for run in runs:
        parts.setdefault(dataset_of(run), []).append(run)
    return [
        _part(name, f"part-{number}", of_part, (findings or {}).get(name, Findings()), points)
        for number, (name, of_part) in enumerate(parts.items(), start=1)
    ]


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
    compared = findings.comparison
    return Part(
        name if known is None else known.name,
        anchor,
        _unevaluated(labelled) if compared is None else finding(compared),
        trained_table(labelled),
        [trained_run(label, run) for label, run, _ in labelled],
        [*findings.notes, *notes],
        None if compared is None else evaluated(compared, findings.images or {}),
        maps([(_with_seed(label, run, flat), run) for label, run in flat], known) if flat else (),
    )


def _unevaluated(labelled: Sequence[tuple[str, Run, RunFacts]]) -> str:
    accuracies: dict[str, list[float]] = {}
    for label, run, _ in labelled:
        accuracy = _accuracy(run)
        accuracies.setdefault(label, []).extend([] if accuracy is None else [accuracy])
    return unevaluated(accuracies, [_examples(run) for _, run, _ in labelled])


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


def trained_table(labelled: Sequence[tuple[str, Run, RunFacts]]) -> Table:
    """Return a row for each run."""
    headings = ["run", "method", "network", "M", "lambda_M", "seed", "epochs", "validation accuracy", "training time"]
    return Table("Runs", [Column(heading) for heading in headings], [_row(*entry) for entry in labelled])


def _row(label: str, run: Run, facts: RunFacts) -> dict[str, Entry]:
    epochs = run.configuration["recipe"].get("epochs", "")
    seconds = sum(_number(member.get("seconds")) or 0.0 for member in run.members)
    accuracy, examples = _accuracy(run), _examples(run)
    counted = "" if examples is None else f" of {examples:,.0f}"
    return {
        "run": Entry(str(run.folder)),
        "method": Entry(label),
        "network": Entry(facts.architecture),
        "M": Entry(run.size, text=f"{run.size}" if run.finished else f"{len(run.members)} of {run.size}"),
        "lambda_M": Entry(0.0, text="") if facts.strength is None else Entry(float(facts.strength)),
        "seed": Entry(facts.seed, text=f"{facts.seed}"),
        "epochs": Entry(_number(epochs), text=f"{epochs}"),
        "validation accuracy": Entry(accuracy, text="" if accuracy is None else f"{accuracy:.2%}{counted}"),
        "training time": Entry(seconds, text=spelled(seconds)),
    }


def _accuracy(run: Run) -> float | None:
    """Return the mean validation accuracy of a run's members."""
    found = [value for member in run.members if (value := _number(member.get("validation_accuracy"))) is not None]
    return float(np.mean(found)) if found else None


def _examples(run: Run) -> float | None:
    """Return how many examples that is of; older folders do not say."""
    return _number(run.information.get("validation_examples"))


def trained_run(label: str, run: Run) -> TrainedRun:
    """Return charts of every member's epochs, and the configuration in full."""
    information = run.information
    configuration = {key: value for key, value in run.configuration.items() if key not in _LEFT_OUT}
    shown = {**{key: value for key, value in information.items() if key != "configuration"}, **configuration}
    members = [f"member {number}" for number in range(1, len(run.members) + 1)]
    started, device = information.get("started", ""), information.get("device", "")
    selected = ", ".join(str(member.get("selected_epoch", "?")) for member in run.members)
    summary = f"Selected epochs: {selected or 'none yet'}."
    if started:
        summary += f" Started {started} on {device}."
    charts = [chart for kind in _CHARTS if (chart := _chart(run, members, *kind)) is not None]
    name = f"{label}, seed {run.configuration['seed']} ({run.folder})"
    return TrainedRun(name, summary, charts, members, json.dumps(shown, indent=2))


def _chart(run: Run, members: Sequence[str], field: str, title: str, label: str) -> Chart | None:
    """Return one field over epochs, None where no member has it: Deep Ensembles have no diversity term."""
    found = {name: _points(history, field) for name, history in zip(members, run.histories, strict=True)}
    lines = {name: points for name, points in found.items() if len(points[0])}
    if not lines:
        return None
    ends = ", ".join(f"{points[1][-1]:.3g}" for points in lines.values())
    styles = dict(zip(members, method_styles(len(members)), strict=True))  # the same in all charts

    def draw(axis: Axes) -> None:
        for name, (x, y) in lines.items():
            marker = "o" if len(x) == 1 else ""
            style = styles[name]
            axis.plot(x, y, color=style.colour, linestyle=style.linestyle, marker=marker, clip_on=False, gid=name)
        axis.margins(x=0)
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))

    alt = f"{title} over epochs, a line for each of {len(lines)} members; they end at {ends}."
    return draw_chart(title, alt, draw, x_label="epoch", y_label=label)


def _points(history: Sequence[Mapping[str, Any]], field: str) -> tuple[np.ndarray, np.ndarray]:
    pairs = [(record.get("epoch"), record.get(field)) for record in history if isinstance(record, Mapping)]
    known = [(x, y) for x, y in pairs if _number(x) is not None and _number(y) is not None]
    x, y = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return x, y


def _number(value: Any) -> float | None:
    """Return a number that can be drawn, None for anything else: histories may come from other people."""
    proper = isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    return float(value) if proper else None
