"""The figure of the guarantee study: a row a generator, what the instances spread over in each of four panels."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from greedy_ensembles.theory.objective import INAPPROXIMABILITY, RANDOM_GREEDY_FACTOR

_SERIES = {
    "greedy": ("greedy", "#1f5fbf"),
    "random_greedy": ("random greedy (mean of draws)", "#e08214"),
    "surrogate_greedy": ("by Proposition 1's expectation", "#7b3294"),
    "random_selection": ("random selection (mean of all sets)", "#7f7f7f"),
}
_RANKINGS = {
    "expected_rank_correlation": ("by Proposition 1's expectation", "#7b3294"),
    "point_rank_correlation": ("by Algorithm 2's point estimate", "#1b7837"),
}

Figures = Mapping[str, Mapping[str, np.ndarray]]


def draw_guarantee(data: Figures, path: Path) -> None:
    """Draw F ratios, divergence ratios, the share of the bound used, and rank correlations, by generator."""
    figure = Figure(figsize=(13, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharey=True)
    panels = (
        (axes[0, 0], "value", "F(found) / F(optimum)"),
        (axes[0, 1], "divergence", "D(found) / min D"),
        (axes[1, 0], "used", "D(found) / bound"),
    )
    for axis, prefix, title in panels:
        _spread(axis, data, {f"{prefix} {name}": style for name, style in _SERIES.items()})
        axis.set_title(title)
    for value, label in ((RANDOM_GREEDY_FACTOR, "1/e"), (INAPPROXIMABILITY, f"{INAPPROXIMABILITY:g}")):
        axes[0, 0].axvline(value, color="black", linewidth=0.9, linestyle="--")
        axes[0, 0].annotate(label, (value, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes[0, 0].set_title("F(found) / F(optimum)", pad=18)
    # The chi-squared family has tails of a hundred decades, in which nothing could be seen of the others.
    axes[0, 1].set(xscale="log", xlim=(0.9, 1e3), title="D(found) / min D (cut off at 1000)")
    axes[1, 0].set(xscale="log", xlim=(1e-3, 3), title="D(found) / bound (cut off at 1/1000)")
    axes[1, 0].axvline(1, color="black", linewidth=0.9, linestyle="--")
    _spread(axes[1, 1], data, _RANKINGS)
    axes[1, 1].axvline(0, color="black", linewidth=0.9)
    axes[1, 1].set_title("rank correlation of surrogate and exact gain, steps 2 to M")
    axes[0, 0].set_yticks(range(len(data)), [name.replace("_", " ") for name in data])
    axes[0, 0].invert_yaxis()
    handles, labels = axes[0, 0].get_legend_handles_labels()
    more_handles, more_labels = axes[1, 1].get_legend_handles_labels()
    caption = "dot: median; thick: 5 % to 95 % of the instances; thin: all of them"
    figure.legend(
        handles + more_handles[1:],
        labels + more_labels[1:],
        ncols=5,
        loc="outside upper center",
        frameon=False,
        title=caption,
    )
    figure.savefig(path, dpi=110)


def _spread(axis: Axes, data: Figures, series: Mapping[str, tuple[str, str]]) -> None:
    """Draw the range, the central nine tenths and the median of each series, beside each other in each row."""
    for place, (name, (label, colour)) in enumerate(series.items()):
        shift = (place - (len(series) - 1) / 2) * 0.19
        for row, figures in enumerate(data.values()):
            if name not in figures:
                continue
            low, fifth, middle, most, high = np.nanquantile(figures[name], (0, 0.05, 0.5, 0.95, 1))
            axis.plot([low, high], [row + shift] * 2, color=colour, linewidth=0.8)
            axis.plot([fifth, most], [row + shift] * 2, color=colour, linewidth=3.2, alpha=0.6, solid_capstyle="butt")
            axis.plot(middle, row + shift, "o", color=colour, markersize=3.5)
        axis.plot([], [], "o-", color=colour, linewidth=3, label=label)
    for row in range(1, len(data)):
        axis.axhline(row - 0.5, color="#dddddd", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
