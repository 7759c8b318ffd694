"""What was trained, and how it went: a table of runs, and the epochs of every member."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.report.page.charts import Chart, Points, line_chart
from greedy_ensembles.report.page.records import TrainedRun
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.runs import Run

#: Of a chart over epochs: the field of a history, its title, and the label of its axis.
_CHARTS = (
    ("loss", "Loss", "loss"),
    ("diversity", "Diversity term", "diversity term"),
    ("validation_accuracy", "Validation accuracy", "accuracy"),
)
_LEFT_OUT = ("model", "data")  # of the configuration: shapes of all parameters, and a hash


def trained_table(labelled: Sequence[tuple[str, Run, RunFacts]]) -> Table:
    """Return a row for each run."""
    headings = ["run", "method", "network", "M", "lambda_M", "seed", "epochs", "validation accuracy", "training time"]
    return Table("Runs", [Column(heading) for heading in headings], [_row(*entry) for entry in labelled])


def _row(label: str, run: Run, facts: RunFacts) -> dict[str, Entry]:
    epochs = run.configuration["recipe"].get("epochs", "")
    accuracies = [value for member in run.members if (value := _number(member.get("validation_accuracy"))) is not None]
    seconds = sum(_number(member.get("seconds")) or 0.0 for member in run.members)
    accuracy = float(np.mean(accuracies)) if accuracies else None
    return {
        "run": Entry(str(run.folder)),
        "method": Entry(label),
        "network": Entry(facts.architecture),
        "M": Entry(run.size, text=f"{run.size}" if run.finished else f"{len(run.members)} of {run.size}"),
        "lambda_M": Entry(0.0, text="") if facts.strength is None else Entry(float(facts.strength)),
        "seed": Entry(facts.seed, text=f"{facts.seed}"),
        "epochs": Entry(_number(epochs), text=f"{epochs}"),
        "validation accuracy": Entry(accuracy, text="" if accuracy is None else f"{accuracy:.2%}"),
        "training time": Entry(seconds, text=duration(seconds)),
    }


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(9.24), duration(95), duration(7320)
    ('9.2 s', '1 min 35 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


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
    alt = f"{title} over epochs, a line for each of {len(lines)} members; they end at {ends}."
    chart = line_chart(title, alt, "epoch", label, lines)
    return _styled_by_member(chart, members)


def _styled_by_member(chart: Chart, members: Sequence[str]) -> Chart:
    """Give a member the same style in all charts, though some have no first member."""
    return replace(chart, series=[replace(each, style=members.index(each.name)) for each in chart.series])


def _points(history: Sequence[Mapping[str, Any]], field: str) -> Points:
    pairs = [(record.get("epoch"), record.get(field)) for record in history if isinstance(record, Mapping)]
    known = [(x, y) for x, y in pairs if _number(x) is not None and _number(y) is not None]
    x, y = np.array(known, dtype=np.float64).reshape(-1, 2).T
    return x, y


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else: histories may come from other people."""
    proper = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if proper else None
