"""The choice of lambda_M as it is shown: figures against lambda_M on the terminal, as CSV and JSON, and in a picture.

Other figures than those on in-domain data, such as means of AUC, are to be seen, not to choose by. The baseline, which
has no strength, is a level to compare with: a line at its mean in a band of one standard error.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain
from greedy_ensembles.benchmark.runs import BASELINE, RunFacts
from greedy_ensembles.benchmark.selection import CRITERIA, Selection, Trial
from greedy_ensembles.report import table as formats
from greedy_ensembles.report.figure import NORMAL, entitle, in_lines, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, to_json_text
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.storage import write_bytes

#: Figures by strength, None being the baseline.
ByStrength = Mapping[float | None, Estimate]


class _Panel(NamedTuple):
    label: str  #: of its axis
    factor: float  #: what figures are multiplied by
    least: float  #: that the axis spans: without it, chance in the last digit would look like a trend
    most: float  #: that a figure can be; the least is 0


_PANELS = {
    "accuracy": _Panel("accuracy (%)", 100.0, 0.5, 100.0),
    "nll": _Panel("NLL (nats)", 1.0, 0.01, math.inf),
    "ace": _Panel("ACE (%)", 100.0, 0.1, 100.0),
}


def draw_ablation(
    trials: Sequence[Trial],
    name: str,
    method: str,
    chosen: float | None = None,
    others: Mapping[str, ByStrength] | None = None,
) -> Figure:
    """Draw the three figures side by side over a common axis of strengths, and others below them.

    Bars and bands are one standard error either side, where there is one.
    Trials may come in any order. `name` is that of the in-domain set, `method` what the legend says, and `others` are
    more figures of all trials by the label of their axis.
    """
    panels: list[tuple[_Panel, ByStrength]] = [
        (panel, {trial.strength: getattr(trial, field) for trial in trials}) for field, panel in _PANELS.items()
    ]
    panels += [(_Panel(label, 1.0, 0.02, 1.0), figures) for label, figures in (others or {}).items()]
    rows = -(-len(panels) // 3)
    figure = new_figure(height=0.3 + 2 * rows)
    axes = figure.subplots(rows, 3, sharex=True, squeeze=False).ravel()
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (panel, figures) in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, figures, chosen, in_lines(method, 30))
    _scale(axes[0], np.array(sorted(trial.strength for trial in trials if trial.strength is not None)), chosen)
    handles, labels = axes[0].get_legend_handles_labels()  # error bars come last, whatever the order
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 3}
    if len(panels) < len(axes):  # there is room for it
        place = {"loc": "center", "bbox_to_anchor": (5 / 6, 0.5 / rows)}
    figure.legend(handles[::-1], labels[::-1], frameon=False, fontsize=NORMAL, **place)
    entitle(figure, name)
    return figure


def _draw_panel(axis: Axes, panel: _Panel, figures: ByStrength, chosen: float | None, label: str) -> None:
    level, style = method_styles(2)
    strengths = sorted(strength for strength in figures if strength is not None)
    means, errors = panel.factor * np.array([(figures[key].mean, figures[key].error) for key in strengths]).T
    bars = axis.errorbar(strengths, means, errors, color=style.colour, marker=style.marker, markersize=3.5, linewidth=1)
    bars.set_label(label)
    if chosen is not None:
        ring: dict[str, Any] = {"markersize": 9, "markerfacecolor": "none", "markeredgecolor": "black"}
        marked = panel.factor * figures[chosen].mean
        axis.plot(chosen, marked, "o", **ring, label=rf"chosen: $\lambda_M$ = {chosen:g}")
    if (baseline := figures.get(None)) is not None:
        mean, error = panel.factor * baseline.mean, panel.factor * baseline.error
        axis.axhspan(mean - error, mean + error, color=level.colour, alpha=0.2, linewidth=0)
        axis.axhline(mean, color=level.colour, linewidth=1.2, label=BASELINE)
    _widen(axis, panel)
    axis.set(ylabel=panel.label, xlabel=r"$\lambda_M$")
    axis.tick_params(labelbottom=True)
    plain(axis)


def _widen(axis: Axes, panel: _Panel) -> None:
    """Let an axis span the least that it should, to either side as far as there are figures."""
    low, high = axis.get_ylim()
    missing = max(0.0, panel.least - (high - low))
    above = min(missing / 2, max(0.0, panel.most - high))
    below = min(missing - above, max(0.0, low))
    axis.set_ylim(low - below, high + max(above, missing - below))


def _scale(axis: Axes, strengths: np.ndarray, chosen: float | None) -> None:
    """Space strengths by their ratios, and name those that there is room for."""
    if strengths.min() > 0:
        axis.set_xscale("log")
    else:  # 0 has no place on a logarithmic axis: below the least strength above it, spaces are even
        axis.set_xscale("symlog", linthresh=strengths[strengths > 0].min(initial=strengths.max() or 1))
    labels = [f"{strength:g}" for strength in strengths]
    named = _with_room(axis.xaxis.get_transform().transform(strengths), labels, np.flatnonzero(strengths == chosen))
    axis.set_xticks(strengths[named], [labels[tick] for tick in named])
    axis.set_xticks(np.delete(strengths, named), minor=True, labels=[])


def _with_room(places: np.ndarray, labels: Sequence[str], first: np.ndarray) -> list[int]:
    """Return which ticks can have a label that meets no other, those of `first` before all.

    >>> _with_room(np.log([0.1, 0.8, 0.9, 1, 10]), ["0.1", "0.8", "0.9", "1", "10"], first=np.array([3]))
    [0, 3, 4]
    """
    letter = 0.017 * (places.max() - places.min())  # half of one's width: labels are centred
    named: list[int] = []
    for tick in [*first, *range(len(places))]:
        room = [letter * (1 + len(labels[tick]) + len(labels[other])) for other in named]
        if tick not in named and all(abs(places[tick] - places[named]) >= room):
            named.append(int(tick))
    return sorted(named)


def show(selection: Selection, measured_on: InDomain, console: Console) -> None:
    """Print the figures of every strength, and what follows from them."""
    strengths = [None, *(trial.strength for trial in selection.trials)]
    chosen = None if selection.strength is None else strengths.index(selection.strength)
    formats.show(_table(selection, measured_on), console, chosen)
    if measured_on.note:
        console.print(f"{measured_on.name}: {measured_on.note}", markup=False, highlight=False)
    console.print(selection.verdict, markup=False, highlight=False)


def _table(selection: Selection, measured_on: InDomain) -> Table:
    columns = [
        *(Column("set", shown=False), Column("images", shown=False), Column("lambda_M"), Column("seeds")),
        *(column for column in IN_DOMAIN if column.key in CRITERIA),
        *(Column("harms", f"harms {selection.by}"), Column("by", shown=False), Column("note", shown=False)),
    ]
    rows = [
        {
            "set": Entry(measured_on.name),
            "images": Entry(measured_on.images),
            "lambda_M": Entry(trial.strength, text=BASELINE if trial.strength is None else f"{trial.strength:g}"),
            "seeds": Entry(trial.accuracy.seeds),
            **{metric: Entry(getattr(trial, metric)) for metric in CRITERIA},
            "harms": Entry(selection.harm_of(trial)),
            "by": Entry(selection.by),
            "note": Entry(measured_on.note),
        }
        for trial in (selection.deep, *selection.trials)
    ]
    return Table(f"{measured_on.name}, {measured_on.images:,} examples for each seed", columns, rows)


def write(selection: Selection, measured_on: InDomain, runs: Sequence[RunFacts], folder: Path) -> list[Path]:
    """Write selection.csv, selection.json and ablation.png into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("selection.csv", "selection.json", "ablation.png")]
    write_bytes(paths[0], [formats.to_csv([_table(selection, measured_on)]).encode()])
    content = {
        "by": selection.by,
        "chosen": selection.strength,
        "verdict": selection.verdict,
        "harmless": selection.harmless,
        "deep": dataclasses.asdict(selection.deep),
        "trials": [dataclasses.asdict(trial) for trial in selection.trials],
        "measured_on": {"name": measured_on.name, "images": measured_on.images, "note": measured_on.note},
        "runs": [{"source": run.source, "strength": run.strength, "seed": run.seed, "size": run.size} for run in runs],
    }
    write_bytes(paths[1], [to_json_text(content).encode()])
    trials = [selection.deep, *selection.trials]
    methods = dict.fromkeys(run.label for run in runs if run.strength is not None)
    write_figure(draw_ablation(trials, measured_on.name, ", ".join(methods), selection.strength), paths[2])
    return paths
