"""AUC over OOD sets as a radar plot, as the paper has it of CIFAR-100: an axis for each set, a polygon for each method.

Synthetic and natural sets stand apart, because a method may owe its average to the first alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes

from greedy_ensembles.benchmark import Comparison, Estimate, OutOfDistribution
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
)

_CHANCE = 0.5

#: By the name of a method, and then of a set, the area under the ROC curve.
Areas = Mapping[str, Mapping[str, Estimate]]


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

    Args:
        areas: by the name of a method and of a set, the area and its standard error over seeds.
        sets: the axes, three or more of different names; synthetic ones are put first.
        title: what stands above.
    """
    figure = new_figure(height=5.6, width=5.2)
    axis = cast(PolarAxes, figure.add_subplot(projection="polar"))
    sets = sorted(sets, key=lambda each: each.kind != "synthetic")  # stable: the order within a group is the caller's
    least = min(max(each.mean - each.error, 0.0) for of_method in areas.values() for each in of_method.values())
    angles = 2 * np.pi * np.arange(len(sets)) / len(sets)
    _prepare(axis, min(_CHANCE, math.floor(10 * least) / 10), angles, sets)
    for angle, each in zip(angles, sets, strict=True):
        _write(axis, angle, f"{in_lines(each.name, 18)}\n({each.images:,})")
    for (method, of_method), style in zip(areas.items(), method_styles(len(areas)), strict=True):
        _polygon(axis, angles, [of_method[each.name] for each in sets], style, method)
    _legend(figure, axis, sets)
    entitle(figure, title)
    return figure


def _prepare(axis: PolarAxes, centre: float, angles: np.ndarray, sets: Sequence[OutOfDistribution]) -> None:
    """Lay out rings and axes, clockwise from the top, with a shade behind synthetic sets."""
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


def _write(axis: PolarAxes, angle: float, text: str) -> None:
    """Write a label outside the rim, on the side of it that the axis points to."""
    right, up = math.sin(angle), math.cos(angle)
    axis.annotate(
        text,
        (angle, 1),
        (8 * right, 8 * up),
        textcoords="offset points",
        ha="center" if abs(right) < 0.2 else "left" if right > 0 else "right",
        va="center" if abs(up) < 0.5 else "bottom" if up > 0 else "top",
        multialignment="center",
        fontsize=NORMAL,
    )


def _polygon(axis: PolarAxes, angles: np.ndarray, estimates: Sequence[Estimate], style: Style, method: str) -> None:
    """Draw a closed line through the means, and a band about it."""
    around = np.r_[angles, 2 * np.pi]
    means, errors = np.array([(each.mean, each.error) for each in (*estimates, estimates[0])]).T
    axis.plot(
        around,
        means,
        color=style.colour,
        linewidth=1.4,
        marker=style.marker,
        markersize=3.5,
        linestyle=style.linestyle,
        label=in_lines(method, 40),
        clip_on=False,
        zorder=3,
    )
    if errors.any():
        low, high = np.maximum(means - errors, 0), np.minimum(means + errors, 1)
        axis.fill_between(around, low, high, color=style.colour, alpha=0.25, linewidth=0, zorder=2)


def _legend(figure: Figure, axis: Axes, sets: Sequence[OutOfDistribution]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    for kind, colour in (("synthetic", PALE), ("natural", "white")):
        if any(each.kind == kind for each in sets):
            handles.append(Patch(facecolor=colour, edgecolor=GREY, linewidth=0.6))
            labels.append(f"{kind} sets")
    columns = 1 if max(map(len, labels)) > 30 else 2
    figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=NORMAL, handlelength=3
    )
