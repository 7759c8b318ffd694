"""The pictures that go with a comparison: curves for each OOD set, a radar over all of them, galleries of images.

The radar has an axis for each set and a polygon for each method, as the paper's has. Synthetic and natural sets stand
apart, because a method may owe its average to the first alone.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import cast

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.projections.polar import PolarAxes

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.evaluation import Estimate, InDomain, OutOfDistribution
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.detection import draw_curves, draw_gallery, scores_of
from greedy_ensembles.report.figure import (
    AS_IT_IS,
    DARK,
    GREY,
    NORMAL,
    PALE,
    RULE,
    Style,
    entitle,
    method_styles,
    new_figure,
    write_figure,
)

_CHANCE = 0.5

#: By the name of a method, and then of a set, the area under the ROC curve.
Areas = Mapping[str, Mapping[str, Estimate]]
_LABELS = {
    "mutual_information": "mutual information (nats)",
    "predictive_entropy": "predictive entropy (nats)",
    "expected_entropy": "expected entropy (nats)",
    "max_probability": "-largest probability",
    "mean_pairwise_kl": "mean pairwise KL (nats)",
    "energy": "energy",
}


def write_pictures(comparison: Comparison, folder: Path, images: Mapping[str, Bytes]) -> list[Path]:
    """Write all pictures of a comparison as PNG files; images as for `draw_pictures`."""
    written = []
    for name, figure in draw_pictures(comparison, images):
        written.append(folder / f"{name}.png")
        write_figure(figure, written[-1])
    return written


def draw_pictures(comparison: Comparison, images: Mapping[str, Bytes]) -> Iterator[tuple[str, Figure]]:
    """Yield curves-SET and, where images are given, gallery-SET of the first and last method; radar for several sets.

    Args:
        comparison: what is drawn.
        images: the images of OOD sets by name, in the order of their scores.
    """
    label, inside = _LABELS[comparison.first.score], comparison.first.in_domain
    for number, (result, stem) in enumerate(zip(comparison.first.ood, _stems(comparison), strict=True)):
        scores = {_label(name): pair for name, pair in scores_of(comparison, number).items()}
        yield f"curves-{stem}", draw_curves(scores, _noted(inside), _noted(result), label)
        if len(scores) > 1 and result.name in images:
            first, *_, last = scores.items()
            yield f"gallery-{stem}", draw_gallery(images[result.name], dict([first, last]), _noted(result))
    if len(comparison.first.ood) > 2:
        yield "radar", draw_areas(comparison)


def draw_areas(comparison: Comparison) -> Figure:
    """Draw the AUC of all methods over the OOD sets, of which there must be three or more."""
    inside = comparison.first.in_domain
    title = f"{_noted(inside)} ({inside.images:,} images) against OOD sets, AUC by {_LABELS[comparison.first.score]}"
    found = {_label(method): of_method for method, of_method in areas(comparison).items()}
    return draw_radar(found, comparison.first.ood, title)


def areas(comparison: Comparison) -> dict[str, dict[str, Estimate]]:
    """Return areas under ROC curves by method and set."""
    return {
        method.label: {row.set: row.figures["auc"].ours for row in comparison.ood_rows if row.method == method.label}
        for method in comparison.methods
    }


def _label(method: str) -> str:
    """Return a method's label with spaces at which no line is broken about its equals signs."""
    return method.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _noted(result: InDomain | OutOfDistribution) -> str:
    return f"{result.name} [{result.note}]" if result.note else result.name


def _stems(comparison: Comparison) -> list[str]:
    """Return a file name for each OOD set; sets of one's own are called by paths, which may look alike in it."""
    stems: list[str] = []
    for result in comparison.first.ood:
        stem = re.sub(r"[^\w-]+", "-", result.name).strip("-")
        stems.append(f"{stem}-{len(stems) + 1}" if stem in stems else stem)
    return stems


@rc_context(AS_IT_IS)
def draw_radar(areas: Areas, sets: Sequence[OutOfDistribution], title: str) -> Figure:
    """Draw areas under ROC curves, 1 on the rim, with bands of one standard error where there is one.

    Chance is dotted, unless it is the centre.

    Args:
        areas: by the name of a method and of a set, the area and its standard error over seeds.
        sets: the axes, three or more; synthetic ones are put first.
        title: what stands above.
    """
    figure = new_figure(height=5.6, width=5.2)
    axis = figure.add_subplot(projection="polar")
    draw_polygons(axis, areas, sets)
    _legend(figure, axis, sets)
    entitle(figure, title)
    return figure


def draw_polygons(axis: Axes, areas: Areas, sets: Sequence[OutOfDistribution], size: float = NORMAL) -> None:
    """Draw a polygon for each method, from 0.5 or, where an area or its band is less, the tenth below it, to 1.

    Args:
        axis: a round panel.
        areas: by method and set.
        sets: the axes, three or more of different names.
        size: of type, in points.
    """
    if len({each.name for each in sets}) < max(3, len(sets)):
        raise ValueError(f"sets must be three or more of different names, got {[each.name for each in sets]}")
    axis = cast(PolarAxes, axis)
    sets = sorted(sets, key=_place)  # stable: the order within a group is the caller's
    least = min(max(each.mean - each.error, 0.0) for of_method in areas.values() for each in of_method.values())
    angles = 2 * np.pi * np.arange(len(sets)) / len(sets)
    _prepare(axis, min(_CHANCE, math.floor(10 * least) / 10), angles, sets, size)
    for angle, each in zip(angles, sets, strict=True):
        _write(axis, angle, f"{fill(each.name, 18)}\n({each.images:,})", size)
    for (method, of_method), style in zip(areas.items(), method_styles(len(areas)), strict=True):
        _polygon(axis, angles, [of_method[each.name] for each in sets], style, method)


def _place(each: OutOfDistribution) -> bool:
    return each.kind != "synthetic"


def _prepare(
    axis: PolarAxes, centre: float, angles: np.ndarray, sets: Sequence[OutOfDistribution], size: float
) -> None:
    """Lay out rings and axes, clockwise from the top, with a shade behind synthetic sets."""
    axis.set_theta_zero_location("N")
    axis.set_theta_direction(-1)
    axis.set_ylim(centre, 1)
    rings = np.arange(1, centre, -0.2 if centre < 0.3 else -0.1)[::-1]
    axis.set_yticks(rings, [f"{ring:g}" for ring in np.round(rings, 2)], fontsize=size - 1, color=DARK)
    axis.set_rlabel_position(-180 / len(sets))  # between the last axis and the first, where no label is
    axis.grid(color=RULE, linewidth=0.6)
    axis.spines["polar"].set(color=GREY, linewidth=0.8)
    synthetic = [angle for angle, each in zip(angles, sets, strict=True) if each.kind == "synthetic"]
    axis.bar(synthetic, 1 - centre, width=2 * np.pi / len(sets), bottom=centre, color=PALE, linewidth=0, zorder=0)
    if centre < _CHANCE:
        around = np.linspace(0, 2 * np.pi, 181)
        axis.plot(around, np.full_like(around, _CHANCE), color=GREY, linewidth=0.9, linestyle=":")
    axis.set_xticks(angles, [])


def _write(axis: PolarAxes, angle: float, text: str, size: float) -> None:
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
        fontsize=size,
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
        dashes=style.dashes or (None, None),
        label=fill(method, 40),
        clip_on=False,
        zorder=3,
        gid=method,
    )
    if errors.any():
        low, high = np.maximum(means - errors, 0), np.minimum(means + errors, 1)
        axis.fill_between(around, low, high, color=style.colour, alpha=0.25, linewidth=0, zorder=2, gid=method)


def _legend(figure: Figure, axis: Axes, sets: Sequence[OutOfDistribution]) -> None:
    handles, labels = axis.get_legend_handles_labels()
    for kind, colour in (("synthetic", PALE), ("natural", "white")):
        if any(each.kind == kind for each in sets):
            handles.append(Patch(facecolor=colour, edgecolor=GREY, linewidth=0.6))
            labels.append(f"{kind} sets")
    columns = 1 if max(map(len, labels)) > 30 else 2
    figure.legend(
        handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=NORMAL, handlelength=3
    )
