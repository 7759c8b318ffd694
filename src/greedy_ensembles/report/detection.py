"""The pictures of a comparison: of each OOD set ROC and precision-recall curves, histograms of scores, and examples.

The layout is that of the paper's figure of curves. As there, one curve is drawn for scores averaged over seeds: its
area is not the mean of the areas of the seeds, which tables show.

In galleries each method judges by the threshold that balances its true-positive and true-negative rates. Which images
are shown of a group is drawn by lot from a seed, never chosen.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.patches import Patch

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.metrics import auroc, average_precision, balanced_threshold, precision_recall_curve, roc_curve
from greedy_ensembles.report.figure import (
    GREY,
    NORMAL,
    SMALL,
    WIDTH,
    Style,
    entitle,
    in_lines,
    method_styles,
    new_figure,
    plain,
    write_figure,
)

#: By the name of a method, its scores of in-domain and of OOD images, means over seeds; higher is more OOD.
Averages = Mapping[str, tuple[np.ndarray, np.ndarray]]

_LABELS = {
    "mutual_information": "mutual information (nats)",
    "predictive_entropy": "predictive entropy (nats)",
    "expected_entropy": "expected entropy (nats)",
    "max_probability": "-largest probability",
    "mean_pairwise_kl": "mean pairwise KL (nats)",
    "energy": "energy",
    "energy_of_mean": "energy of the mean logits",
}
_BINS = 50
_SHOWN = 0.999  # of each histogram
_COLUMNS = 8  # of images in a group


def write_pictures(comparison: Comparison, folder: Path, images: Mapping[str, Bytes]) -> list[Path]:
    """Write all pictures of a comparison as PNG files; images as for `draw_pictures`."""
    written = []
    for name, figure in draw_pictures(comparison, images):
        written.append(folder / f"{name}.png")
        write_figure(figure, written[-1])
    return written


def draw_pictures(comparison: Comparison, images: Mapping[str, Bytes]) -> Iterator[tuple[str, Figure]]:
    """Yield curves-SET and gallery-SET of the first and last method, of sets whose `images` are given by name.

    Those are in the order of their scores.
    """
    label, inside = _LABELS[comparison.first.score], comparison.first.in_domain
    stems: list[str] = []
    for number, result in enumerate(comparison.first.ood):
        stem = re.sub(r"[^\w-]+", "-", result.name).strip("-")  # sets of one's own are called by paths
        stems.append(f"{stem}-{number + 1}" if stem in stems else stem)
        averages = average_scores(comparison, number)
        yield f"curves-{stems[-1]}", draw_curves(averages, inside.name, result.name, label)
        if len(averages) > 1 and result.name in images:
            first, *_, last = averages.items()
            yield f"gallery-{stems[-1]}", draw_gallery(images[result.name], dict([first, last]), result.name)


def average_scores(comparison: Comparison, number: int) -> Averages:
    """Return by method the scores of in-domain images and of an OOD set, means over seeds in double precision."""
    return {
        method.label: (
            np.stack([each.in_domain.scores for each in method.evaluations]).mean(axis=0, dtype=np.float64),
            np.stack([each.ood[number].scores for each in method.evaluations]).mean(axis=0, dtype=np.float64),
        )
        for method in comparison.methods
    }


def draw_curves(averages: Averages, in_domain: str, ood: str, label: str = "mutual information (nats)") -> Figure:
    """Draw ROC and precision-recall curves with their areas, chance dotted, and a histogram for each method."""
    inside, outside = (len(part) for part in next(iter(averages.values())))
    # Heights in inches: legends have a place of their own, since inside a panel they would hide curves.
    legend = sum(0.13 * _label(f"AUC 0.000  {method}").count("\n") + 0.16 for method in averages)
    titles = {method: in_lines(method, 36) for method in averages}
    histograms = sum(0.78 + 0.13 * title.count("\n") for title in titles.values())
    below = max(legend, histograms - 1.9)
    figure = new_figure(height=1.9 + below + 1.2)
    grid = figure.add_gridspec(1, 2, width_ratios=(2.05, 1))
    panels = grid[0].subgridspec(2, 2, height_ratios=(1.9, below))
    for column, draw in enumerate((draw_roc, draw_precision_recall)):
        panel = figure.add_subplot(panels[0, column])
        draw(panel, averages)
        _finish(panel, figure.add_subplot(panels[1, column]))
    heights = [*[1.0] * len(averages), 0.35]
    places = grid[1].subgridspec(len(heights), 1, height_ratios=heights)
    *stack, last = (figure.add_subplot(places[row]) for row in range(len(heights)))
    for axis, method in zip(stack, averages, strict=True):
        draw_histogram(axis, averages, method)
        axis.set_title(titles[method], fontsize=NORMAL, color=_styles(averages)[method].colour, loc="right", pad=2)
        axis.tick_params(labelbottom=axis is stack[-1])
        plain(axis)
    stack[(len(stack) - 1) // 2].set_ylabel("examples (%)")
    stack[-1].set_xlabel(label)
    patches = tuple(Patch(color=style.colour, alpha=0.5, linewidth=0) for style in method_styles(len(averages)))
    handles = [Patch(color=GREY, alpha=0.7, linewidth=0), patches]
    _legend(last, handles, [f"in-domain ({inside:,} images)", f"OOD ({outside:,} images)"])
    entitle(figure, f"{in_domain} (in-domain) against {ood} (OOD)")
    return figure


def draw_roc(axis: Axes, averages: Averages) -> None:
    """Draw an ROC curve for each method."""
    axis.axline((0, 0), slope=1, color=GREY, linewidth=0.8, linestyle=":")
    for method, (inside, outside) in averages.items():
        false, true, _ = roc_curve(inside, outside)
        _line(axis, false, true, averages, method, f"AUC {auroc(inside, outside):.3f}")
    axis.set(xlabel="false-positive rate", ylabel="true-positive rate", xlim=(0, 1), ylim=(0, 1))


def draw_precision_recall(axis: Axes, averages: Averages) -> None:
    """Draw a precision-recall curve for each method."""
    inside, outside = next(iter(averages.values()))
    axis.axhline(len(outside) / (len(inside) + len(outside)), color=GREY, linewidth=0.8, linestyle=":")
    for method, (inside, outside) in averages.items():
        precision, recall, _ = precision_recall_curve(inside, outside)
        # The steps whose area is AP: where recall grows, at the precision of the point that it grows to.
        grown = np.flatnonzero(np.diff(recall)) + 1
        x, y = np.repeat(np.r_[0.0, recall[grown]], 2)[1:-1], np.repeat(precision[grown], 2)
        _line(axis, x, y, averages, method, f"AP {average_precision(inside, outside):.3f}")
    axis.set(xlabel="recall (true-positive rate)", ylabel="precision", xlim=(0, 1), ylim=(0, 1))


def draw_histogram(axis: Axes, averages: Averages, method: str) -> None:
    """Draw the share of images of one method, in bins and on a scale that all methods have in common."""
    parts = [part for pair in averages.values() for part in pair]
    # A single far image would squeeze all others into a corner.
    high = max(float(np.quantile(part, _SHOWN, method="higher")) for part in parts)
    edges = np.histogram_bin_edges([], _BINS, (min(float(part.min()) for part in parts), high))
    top = max(100 * np.histogram(part, edges)[0].max() / len(part) for part in parts)
    for part, face, alpha, name in zip(
        averages[method], (GREY, _styles(averages)[method].colour), (0.55, 0.35), (None, method), strict=True
    ):
        share = 100 * np.histogram(part, edges)[0] / len(part)
        axis.stairs(share, edges, fill=True, color=face, alpha=alpha, linewidth=0, gid=name)
        axis.stairs(share, edges, color=face, linewidth=0.9, gid=name)
    # A root scale: where 95 % of the images are all but certain, the rest can still be seen.
    axis.set_yscale("function", functions=(np.sqrt, np.square))
    axis.set_yticks([tick for tick in ((0, 10, 40, 100) if top >= 10 else (0, 1, 4)) if tick <= top])
    axis.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.05 * top))


def _styles(averages: Averages) -> dict[str, Style]:
    return dict(zip(averages, method_styles(len(averages)), strict=True))


def _label(text: str) -> str:
    return in_lines(text, 30, indent=" " * 4)


def _line(axis: Axes, x: np.ndarray, y: np.ndarray, averages: Averages, method: str, area: str) -> None:
    style = _styles(averages)[method]
    (line,) = axis.plot(x, y, label=_label(f"{area}  {method}"), clip_on=False, zorder=3, gid=method)
    line.set(color=style.colour, linestyle=style.linestyle, linewidth=1.3)


def _finish(panel: Axes, place: Axes) -> None:
    """Make a panel of rates a square, with its legend in the place below."""
    plain(panel)
    panel.set(box_aspect=1, anchor="N")
    _legend(place, *panel.get_legend_handles_labels())


def _legend(place: Axes, handles: list[Any], labels: list[str]) -> None:
    """Fill an empty panel with a legend; a tuple of handles stands side by side in one line."""
    place.set_axis_off()
    side_by_side = {tuple: HandlerTuple(ndivide=None, pad=0)}
    layout: dict[str, Any] = {"loc": "upper center", "borderaxespad": 0, "frameon": False, "handlelength": 2.6}
    place.legend(handles, labels, handler_map=side_by_side, fontsize=SMALL, **layout)


def draw_gallery(images: Bytes, averages: Averages, name: str, *, examples: int = 16, seed: int = 0) -> Figure:
    """Draw OOD images in groups, by which of two methods tells them right; a group without images is left out.

    Images are in the order of their scores. Of a group so many `examples` are shown at most, by lot.
    """
    # A generator for each group: how large the others are makes no difference to what it shows.
    groups = {
        group: (members, np.random.default_rng([seed, place]).permutation(members)[:examples])
        for place, (group, members) in enumerate(_groups(averages).items())
        if len(members)
    }
    rows = -(-examples // _COLUMNS)
    titles = {
        group: in_lines(f"{group}: {len(members):,} images ({len(members) / len(images):.1%})", 52)
        for group, (members, _) in groups.items()
    }
    lines = 1 + max(title.count("\n") for title in titles.values())
    tile = 0.47 * WIDTH / _COLUMNS * images.shape[2] / images.shape[3]
    above = -(-len(groups) // 2)
    figure = new_figure(height=above * (rows * tile + 0.16 * lines + 0.35) + 0.35)
    places = iter(figure.subplots(above, 2, squeeze=False).flat)
    for group, (_, shown) in groups.items():
        axis = next(places)
        axis.set_title(titles[group], fontsize=NORMAL)
        axis.imshow(_montage(images, shown, rows), interpolation="nearest")
        axis.set_axis_off()
    for axis in places:
        axis.remove()
    entitle(figure, name)
    return figure


def _groups(averages: Averages) -> dict[str, np.ndarray]:
    first, second = averages
    one, other = (outside >= balanced_threshold(inside, outside) for inside, outside in averages.values())
    return {
        "both right": np.flatnonzero(one & other),
        f"only {first} right": np.flatnonzero(one & ~other),
        f"only {second} right": np.flatnonzero(~one & other),
        "neither right": np.flatnonzero(~one & ~other),
    }


def _montage(images: np.ndarray, shown: np.ndarray, rows: int) -> np.ndarray:
    """Return one RGB picture of the images in rows, white between them and where there is none."""
    _, _, height, width = images.shape
    gap = max(1, height // 16)
    picture = np.full((rows * (height + gap) - gap, _COLUMNS * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for place, index in enumerate(shown):
        top, left = place // _COLUMNS * (height + gap), place % _COLUMNS * (width + gap)
        picture[top : top + height, left : left + width] = images[index].transpose(1, 2, 0)  # grey fills all channels
    return picture
