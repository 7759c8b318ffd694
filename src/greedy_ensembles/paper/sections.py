"""What a page shows of a section: comparisons with their pictures, costs of training, and corrupted images.

In the radar plot synthetic and natural sets stand apart, because a method may owe its average to the first alone.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes

from greedy_ensembles.benchmark import Comparison, Estimate, OutOfDistribution, Trial, estimate
from greedy_ensembles.benchmark.selection import CRITERIA, choose
from greedy_ensembles.data.cifar import SEVERITIES
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.method import Greedy
from greedy_ensembles.paper import published
from greedy_ensembles.paper.images import GENERATED_NAME, NOTE
from greedy_ensembles.paper.records import KEPT, Gathered, Record
from greedy_ensembles.paper.study import DEEP, Section, Study
from greedy_ensembles.report.ablation import draw_ablation
from greedy_ensembles.report.detection import draw_pictures
from greedy_ensembles.report.figure import (
    DARK,
    GREY,
    NORMAL,
    PALE,
    RULE,
    SMALL,
    Style,
    entitle,
    in_lines,
    method_styles,
    new_figure,
    plain,
    write_figure,
)
from greedy_ensembles.report.results import IN_DOMAIN, plural, to_markdown, write_tables
from greedy_ensembles.report.table import Column, Entry, markdown_table

_CORRUPTED = (*IN_DOMAIN[:2], IN_DOMAIN[3], Column("mi", "MI (nats)", 1, 3))
#: Of the picture of these: field, label, factor.
_PANELS = (("accuracy", "accuracy (%)", 100), ("nll", "NLL (nats)", 1), ("ace", "ACE (%)", 100), ("mi", "MI (nats)", 1))
_CHANCE = 0.5
_AXES = 3  # what a radar plot needs at the least

#: By the name of a method, and then of a set, the area under the ROC curve.
Areas = Mapping[str, Mapping[str, Estimate]]


def section_parts(
    study: Study, gathered: Gathered, folder: Path, images: Mapping[str, Mapping[str, Bytes]]
) -> Iterator[str]:
    """Yield the tables and pictures of a section, and write them into the folder."""
    section, comparison = gathered.section, gathered.comparison
    figures: Iterable[tuple[str, str, Figure]] = ()
    if comparison is not None:
        write_tables(comparison, folder / KEPT, section.stem)
        yield to_markdown(comparison).strip()
        figures = _pictures(study, section, comparison, images.get(section.cases[0].dataset, {}))
    elif study.corruptions:
        yield corruption_table(gathered)
        drawn = draw_severities(severities(gathered))
        figures = [(f"{section.stem}-severity", "Figures against the severity of corruptions", drawn)]
    for name, seen, figure in figures:
        write_figure(figure, folder / f"{name}.png")
        yield f"![{seen}]({name}.png)"
        yield "*Bars and bands: one standard error over seeds, where there are several.*"


def _pictures(
    study: Study, section: Section, comparison: Comparison, images: Mapping[str, Bytes]
) -> Iterator[tuple[str, str, Figure]]:
    """Yield the pictures of a section, each with a name and what is to be seen."""
    if study.pictures:
        for name, figure in draw_pictures(comparison, images):
            yield f"{section.stem}/{name}", name.replace("-", " of ", 1), figure
    elif section.curve:
        yield f"{section.stem}-curve", "Accuracy, NLL, ACE and AUC against lambda_M", _draw_curve(section, comparison)
    elif study.radar and len(comparison.first.ood) >= _AXES:
        yield f"{section.stem}-radar", "AUC on every OOD set, by method", draw_areas(comparison)


def _draw_curve(section: Section, comparison: Comparison) -> Figure:
    """Draw figures against lambda_M, and mark the one that the paper's rule would choose, where seeds allow it."""
    strengths = {section.label(case): case.strength for case in section.cases}
    trials = [
        Trial(strengths[row.method], *(row.figures[name].ours for name in CRITERIA))
        for row in comparison.in_domain_rows
    ]
    tried = [trial.strength for trial in trials]
    several = None in tried and len(tried) > 2 and all(trial.accuracy.seeds > 1 for trial in trials)
    chosen = choose(trials).strength if several else None
    areas = mean_areas(comparison, strengths)
    return draw_ablation(trials, comparison.first.in_domain.name, Greedy.label, chosen, areas)


def mean_areas(
    comparison: Comparison, strengths: Mapping[str, float | None]
) -> dict[str, dict[float | None, Estimate]]:
    """Return the mean AUC over synthetic and over natural sets, by strength, of the kinds that there are."""
    found: dict[str, dict[float | None, Estimate]] = {}
    for kind in ("synthetic", "natural"):
        if sets := len(comparison.first.of_kind(kind)):
            found[f"mean AUC, {sets} {kind} sets"] = {
                strengths[method.label]: estimate([each.mean("auc", kind) or 0.0 for each in method.evaluations])
                for method in comparison.methods
            }
    return found


def draw_severities(found: Mapping[str, Mapping[str, Sequence[Estimate]]]) -> Figure:
    """Draw figures against the severity of corruptions, 1, 2, ..., a line for each method with bars of an error."""
    figure = new_figure(height=2.75)
    for axis, (field, label, factor) in zip(figure.subplots(1, len(_PANELS)), _PANELS, strict=True):
        for (method, figures), style in zip(found.items(), method_styles(len(found)), strict=True):
            means, errors = factor * _arrays(figures[field])
            ticks = range(1, len(means) + 1)
            axis.errorbar(ticks, means, errors, linewidth=1, **_look(method, style))
        axis.set(xlabel="severity", ylabel=label, xticks=ticks)
        plain(axis)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=NORMAL)
    return figure


def _arrays(estimates: Iterable[Estimate]) -> np.ndarray:
    return np.array([(each.mean, each.error) for each in estimates]).T


def _look(method: str, style: Style) -> dict[str, Any]:
    own = {"color": style.colour, "marker": style.marker, "linestyle": style.linestyle}
    return {**own, "markersize": 3.5, "label": in_lines(method, 40)}


def overhead_table(sections: Sequence[Gathered]) -> str:
    """Return seconds of training and of prediction by section and method, with how much more the greedy one takes."""
    paper = {row["architecture"]: f"+{row['overhead_percent']} %" for row in published.table("overhead")}
    rows, notes = [], []
    for gathered in sections:
        seconds = {label: fmean(r.epoch_seconds for r in records) for label, records in _by_method(gathered).items()}
        for label, records in _by_method(gathered).items():
            more = f"{100 * (seconds[label] / seconds[DEEP] - 1):+.1f} %" if DEEP in seconds else ""
            beside = ["", ""] if label == DEEP else [more, paper.get(gathered.section.cases[0].model, "")]
            times = [1000 * r.prediction["seconds"] / r.prediction["images"] for r in records if r.prediction]
            image = f"{fmean(times):.3f}" if times else ""
            rows.append([gathered.section.title, label, f"{len(records)}", f"{seconds[label]:.3f}", *beside, image])
        if any(job.recipe.epochs == 1 for job in gathered.done):
            notes.append("seconds are those of the first epoch")
        notes += [record.facts.training_note for record in gathered.done.values()]
    heading = ["", "method", "runs", "seconds a member and epoch", f"more than {DEEP}", "the paper's (V100)"]
    return f"{markdown_table([*heading, 'ms an image, all members'], rows)}\n\n{bullets(notes)}" if rows else ""


def corruption_table(gathered: Gathered) -> str:
    """Return accuracy, NLL, ACE and MI by severity, with the corruptions that they are means over."""
    found, methods = severities(gathered), _by_method(gathered)
    rows = []
    for number, severity in enumerate(SEVERITIES):
        for label, figures in found.items():
            shown = [Entry(figures[column.key][number]).shown(column) for column in _CORRUPTED]
            rows.append([str(severity), label, str(len(methods[label])), *shown])
    names = _names(gathered)
    kinds = dict.fromkeys(name.partition("/")[0] for name in names)
    notes = [f"means over {plural(len(kinds), 'corruption')} ({', '.join(kinds)}), ± standard error over seeds"]
    if any(name.startswith(GENERATED_NAME) for name in names):
        notes.append(f"the corruptions are {NOTE}")
    heading = ["severity", "method", "seeds", *(column.heading for column in _CORRUPTED)]
    notes += [record.facts.training_note for record in gathered.done.values()]
    return f"{markdown_table(heading, rows)}\n\n{bullets(notes)}"


def severities(gathered: Gathered) -> dict[str, dict[str, list[Estimate]]]:
    """Return figures by method and severity: the mean over corruptions of each seed, and then over seeds."""

    def of(record: Record, severity: int, metric: str) -> float:
        corruptions = (record.corruptions or {}).items()
        return fmean(values[metric] for name, values in corruptions if name.endswith(f"/{severity}"))

    return {
        label: {
            column.key: [estimate([of(record, severity, column.key) for record in records]) for severity in SEVERITIES]
            for column in _CORRUPTED
        }
        for label, records in _by_method(gathered).items()
    }


def _names(gathered: Gathered) -> list[str]:
    """Return the corruptions by name and severity, which must be the same in all runs."""
    (first, found), *rest = ((job.name, list(record.corruptions or {})) for job, record in gathered.done.items())
    for name, other in rest:
        if set(other) != set(found):
            raise ValueError(
                f"{gathered.section.title}: {name} was judged on other corruptions than {first}. Delete the records of "
                "the former, and run again: runs whose folders are there are judged anew, and not trained"
            )
    return found


def bullets(lines: Iterable[str]) -> str:
    """Return lines as a list in Markdown, each once."""
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines) if line)


def _by_method(gathered: Gathered) -> dict[str, list[Record]]:
    methods: dict[str, list[Record]] = {}
    for job, record in gathered.done.items():
        methods.setdefault(gathered.section.label(job.case), []).append(record)
    return methods


def draw_areas(comparison: Comparison) -> Figure:
    """Draw the AUC of all methods over the OOD sets, of which there must be three or more."""
    areas = {
        method.label: {row.set: row.figures["auc"].ours for row in comparison.ood_rows if row.method == method.label}
        for method in comparison.methods
    }
    first = comparison.first
    return draw_radar(areas, first.ood, f"{first.in_domain.name}: AUC by {first.score.replace('_', ' ')}")


def draw_radar(areas: Areas, sets: Sequence[OutOfDistribution], title: str) -> Figure:
    """Draw areas under ROC curves, from 0.5 or, where an area or its band is less, the tenth below it, to 1 on the rim.

    Bands are one standard error either side, where there is one. Chance is dotted, unless it is the centre.
    The sets, three or more of different names, are the axes, synthetic ones first.
    """
    figure = new_figure(height=5.6, width=5.2)
    axis = cast(PolarAxes, figure.add_subplot(projection="polar"))
    sets = sorted(sets, key=lambda each: each.kind != "synthetic")  # stable: the order within a group is the caller's
    least = min(max(each.mean - each.error, 0.0) for of_method in areas.values() for each in of_method.values())
    angles = 2 * np.pi * np.arange(len(sets)) / len(sets)
    _prepare(axis, min(_CHANCE, math.floor(10 * least) / 10), angles, sets)
    for (method, of_method), style in zip(areas.items(), method_styles(len(areas)), strict=True):
        means, errors = _arrays(of_method[each.name] for each in (*sets, sets[0]))
        around = np.r_[angles, 2 * np.pi]
        axis.plot(around, means, linewidth=1.4, clip_on=False, zorder=3, **_look(method, style))
        if errors.any():
            low, high = np.maximum(means - errors, 0), np.minimum(means + errors, 1)
            axis.fill_between(around, low, high, color=style.colour, alpha=0.25, linewidth=0, zorder=2)
    _legend(figure, axis, sets)
    entitle(figure, title)
    return figure


def _prepare(axis: PolarAxes, centre: float, angles: np.ndarray, sets: Sequence[OutOfDistribution]) -> None:
    """Lay out rings and named axes, clockwise from the top, with a shade behind synthetic sets."""
    axis.set_theta_zero_location("N")
    axis.set_theta_direction(-1)
    axis.set_ylim(centre, 1)
    rings = np.arange(1, centre, -0.2 if centre < 0.3 else -0.1)[::-1]
    axis.set_yticks(rings, [f"{ring:g}" for ring in np.round(rings, 2)], fontsize=SMALL, color=DARK)
    axis.set_rlabel_position(-180 / len(sets))  # between the last axis and the first, where no label is
    axis.grid(color=RULE, linewidth=0.6)
    axis.spines["polar"].set(color=GREY, linewidth=0.8)
    synthetic = [angle for angle, each in zip(angles, sets, strict=True) if each.kind == "synthetic"]
    axis.bar(synthetic, 1 - centre, width=2 * np.pi / len(sets), bottom=centre, color=PALE, linewidth=0, zorder=0)
    if centre < _CHANCE:
        around = np.linspace(0, 2 * np.pi, 181)
        axis.plot(around, np.full_like(around, _CHANCE), color=GREY, linewidth=0.9, linestyle=":")
    axis.set_xticks(angles, [])
    for angle, each in zip(angles, sets, strict=True):  # outside the rim, on the side that the axis points to
        right, up = math.sin(angle), math.cos(angle)
        axis.annotate(
            f"{in_lines(each.name, 18)}\n({each.images:,})",
            (angle, 1),
            (8 * right, 8 * up),
            textcoords="offset points",
            ha="center" if abs(right) < 0.2 else "left" if right > 0 else "right",
            va="center" if abs(up) < 0.5 else "bottom" if up > 0 else "top",
            multialignment="center",
            fontsize=NORMAL,
        )


def _legend(figure: Figure, axis: Axes, sets: Sequence[OutOfDistribution]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    for kind, colour in (("synthetic", PALE), ("natural", "white")):
        if any(each.kind == kind for each in sets):
            handles.append(Patch(facecolor=colour, edgecolor=GREY, linewidth=0.6))
            labels.append(f"{kind} sets")
    columns = 1 if max(map(len, labels)) > 30 else 2
    look = {"ncols": columns, "frameon": False, "fontsize": NORMAL, "handlelength": 3}
    figure.legend(handles, labels, loc="outside lower center", **look)
