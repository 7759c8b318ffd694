"""A radar plot over OOD sets: an axis for each set, a polygon for each method (the paper's radar figure).

Synthetic and natural sets stand apart, because a method may owe its average to the first alone. A set that a method has
no figure for is a gap in its polygon and is named, never a zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import cast

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.checks import check_count
from greedy_ensembles.report.figure import (
    GREY,
    NORMAL,
    PALE,
    SMALL,
    Style,
    describe_seeds,
    entitle,
    method_styles,
    new_figure,
)

_CHANCE = 0.5


@dataclass(frozen=True)
class OodSet:
    """One axis: a set of so many images, which are synthetic (noise, blobs) or natural."""

    name: str
    images: int
    synthetic: bool
    note: str = ""  #: what a reader of its figure must know

    def __post_init__(self) -> None:
        check_count("images", self.images, least=1)


#: By the name of a method, and then of a set, the area under the ROC curve; a set that is not there is missing.
Areas = Mapping[str, Mapping[str, Estimate]]


def draw_radar(
    areas: Areas, sets: Sequence[OodSet], in_domain: str, images: int, inner: float | None = None, about: str = ""
) -> Figure:
    """Draw areas under ROC curves, 1 on the rim, with bands of one standard error where there is one.

    Parameters
    ----------
    areas : by the name of a method and of a set, the area and its standard error over seeds.
    sets : the axes, three or more; synthetic ones are put first.
    in_domain, images : the name of the in-domain set, and how many of its images were told from the OOD ones.
    inner : the area at the centre, to put figures side by side; None: 0.5, or the tenth below the least area and its
        band if that is smaller.
    about : what else the caption is to say, such as by which score.
    """
    _check(areas, sets)
    sets = sorted(sets, key=lambda each: not each.synthetic)  # stable: the order within a group is the caller's
    estimates = [estimate for of_method in areas.values() for estimate in of_method.values()]
    centre = _centre(min(max(estimate.mean - estimate.error, 0.0) for estimate in estimates), inner)
    figure = new_figure(height=5.6, width=5.2)
    axis = cast(PolarAxes, figure.add_subplot(projection="polar"))
    angles = 2 * np.pi * np.arange(len(sets)) / len(sets)
    _prepare(axis, centre, angles, sets)
    for angle, each in zip(angles, sets, strict=True):
        _write(axis, angle, _label(each, areas))
    for (method, of_method), style in zip(areas.items(), method_styles(len(areas)), strict=True):
        _polygon(axis, angles, [of_method.get(each.name) for each in sets], style, method)
    _legend(figure, axis, sets)
    chance = {True: " (chance)", False: " (dotted: chance)"}[centre == _CHANCE] if centre <= _CHANCE else ""
    bands = "; bands: one standard error either side" if any(estimate.error for estimate in estimates) else ""
    caption = (
        f"{in_domain} ({images:,} images) against each OOD set (images in brackets). AUC from {centre:g} at the centre"
        f"{chance} to 1 at the rim, {describe_seeds(estimates)}{bands}."
    )
    notes = [f"{each.name}: {each.note}." for each in sets if each.note]
    entitle(figure, "", " ".join([caption, *notes, about]))
    return figure


def _check(areas: Areas, sets: Sequence[OodSet]) -> None:
    names = [each.name for each in sets]
    if len(names) < 3 or len(set(names)) < len(names):
        raise ValueError(f"sets must be three or more of different names, or there is no polygon; got {names}")
    if not any(areas.values()):
        raise ValueError("areas must hold at least one method with a figure for one set, got none")
    for method, of_method in areas.items():
        if unknown := sorted(set(of_method) - set(names)):
            raise ValueError(f"areas of {method} must be on the given sets {names}, got some on {unknown}")
        for name, estimate in of_method.items():
            if not 0 <= estimate.mean <= 1:
                raise ValueError(f"areas must be from 0 to 1, got {estimate.mean:g} for {method} on {name}")


def _centre(least: float, inner: float | None) -> float:
    """Return the area at the centre.

    >>> _centre(0.71, None), _centre(0.43, None), _centre(0.09, None), _centre(0.95, 0.9)
    (0.5, 0.4, 0.0, 0.9)
    """
    if inner is None:
        return min(_CHANCE, math.floor(10 * least) / 10)
    if not 0 <= inner < 1 or least < inner:
        raise ValueError(
            f"inner must be from 0 to below 1 and at most the foot of the least band, {least:g}; got {inner:g}"
        )
    return inner


def _prepare(axis: PolarAxes, centre: float, angles: np.ndarray, sets: Sequence[OodSet]) -> None:
    """Lay out rings and axes, clockwise from the top, with a shade behind synthetic sets."""
    axis.set_theta_zero_location("N")
    axis.set_theta_direction(-1)
    axis.set_ylim(centre, 1)
    step = 0.2 if centre < 0.3 else 0.1 if centre <= 0.7 else 0.05
    rings = np.arange(1, centre, -step)[::-1]
    axis.set_yticks(rings, [f"{ring:g}" for ring in np.round(rings, 2)], fontsize=SMALL, color="#505050")
    axis.set_rlabel_position(-180 / len(sets))  # between the last axis and the first, where no label is
    axis.grid(color="#cfcfcf", linewidth=0.6)
    axis.spines["polar"].set(color="#a0a0a0", linewidth=0.8)
    synthetic = [angle for angle, each in zip(angles, sets, strict=True) if each.synthetic]
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


def _label(each: OodSet, areas: Areas) -> str:
    lines = [fill(each.name, 18), f"({each.images:,})"]
    missing = [method for method, of_method in areas.items() if each.name not in of_method]
    if missing:
        lines.append("no result" if len(missing) == len(areas) else fill(f"no result: {', '.join(missing)}", 22))
    return "\n".join(lines)


def _polygon(
    axis: PolarAxes, angles: np.ndarray, estimates: Iterable[Estimate | None], style: Style, method: str
) -> None:
    """Draw a closed line through the means, broken where there is none, and a band about it."""
    around = np.r_[angles, 2 * np.pi]
    given = [(np.nan, None) if each is None else (each.mean, each.standard_error) for each in estimates]
    means, errors = np.array([*given, given[0]], dtype=np.float64).T
    axis.plot(
        around,
        means,
        color=style.colour,
        linewidth=1.4,
        marker=style.marker,
        markersize=3.5,
        dashes=style.dashes or (None, None),
        label=fill(method, 40),
        clip_on=False,
        zorder=3,
    )
    known = np.isfinite(errors)
    if known.any():
        low, high = np.maximum(means - errors, 0), np.minimum(means + errors, 1)
        axis.fill_between(around, low, high, color=style.colour, alpha=0.25, linewidth=0, zorder=2)
        # At a set between two without an error, a band has no width to be seen by.
        axis.vlines(around[known], low[known], high[known], color=style.colour, linewidth=2.2, alpha=0.5, zorder=2)


def _legend(figure: Figure, axis: PolarAxes, sets: Sequence[OodSet]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    for synthetic, colour, name in ((True, PALE, "synthetic sets"), (False, "white", "natural sets")):
        if any(each.synthetic is synthetic for each in sets):
            handles.append(Patch(facecolor=colour, edgecolor="#a0a0a0", linewidth=0.6))
            labels.append(name)
    columns = 1 if max(map(len, labels)) > 30 else 2
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=NORMAL, handlelength=3
    )
