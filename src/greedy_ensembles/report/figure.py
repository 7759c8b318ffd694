"""What the pictures of the OOD benchmark have in common: size, type, colours, and the way to a file.

Figures are as wide as a page's text, with type of 7 to 9 points, so that they are printed as they are. Colours are
those of Okabe and Ito, which are told apart with any colour vision; methods differ in dashes and markers as well, so
that a copy in grey will do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from greedy_ensembles.benchmark.evaluation import Estimate

#: For what draws names that are not ours: dollars in them are no mathematics.
AS_IT_IS: dict[Any, Any] = {"text.parse_math": False}
WIDTH = 7.0  #: inches
SMALL, NORMAL, LARGE = 7.0, 8.0, 9.0  #: points
DARK, GREY, RULE, PALE = "#404040", "#8c8c8c", "#cfcfcf", "#e6e6e6"  #: text, lines, grids, shades

_LINES = 3  # of title and caption, beyond the first of each, that figures have room for as they are
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.5), (3, 1, 1, 1), (1, 1))
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Style:
    """How one method looks in every panel."""

    colour: str
    dashes: tuple[float, ...]
    marker: str


def method_styles(count: int) -> list[Style]:
    """Return as many styles, no two alike up to 60: the three cycles are of different lengths."""
    return [
        Style(COLOURS[i % len(COLOURS)], _DASHES[i % len(_DASHES)], _MARKERS[i % len(_MARKERS)]) for i in range(count)
    ]


def new_figure(height: float, width: float = WIDTH) -> Figure:
    """Return an empty figure that belongs to no window and to no list of open figures."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(axis: Axes) -> None:
    """Take from a panel what says nothing."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=SMALL, length=2.5, width=0.6)
    axis.xaxis.label.set_fontsize(NORMAL)
    axis.yaxis.label.set_fontsize(NORMAL)


def entitle(figure: Figure, title: str, caption: str) -> None:
    """Write a title above the panels and a caption below, in lines that fit the figure."""
    inches = float(figure.get_figwidth())
    above, below = fill(title, int(14 * inches)), fill(caption, int(19 * inches))
    if title:
        figure.suptitle(above, fontsize=LARGE)
    figure.supxlabel(below, fontsize=SMALL, color=DARK)
    lines = above.count("\n") + below.count("\n")
    figure.set_figheight(figure.get_figheight() + 0.14 * max(lines - _LINES, 0))


def describe_seeds(estimates: Iterable[Estimate]) -> str:
    """Return what the estimates are, in words for a caption.

    >>> describe_seeds([Estimate(0.5, None, 1)]), describe_seeds([Estimate(0.5, 0.1, 3), Estimate(0.5, 0.1, 5)])
    ('1 seed', 'mean of 3 to 5 seeds')
    """
    seeds = count_seeds(estimate.seeds for estimate in estimates)
    return seeds if seeds == "1 seed" else f"mean of {seeds}"


def count_seeds(counts: Iterable[int]) -> str:
    """Return counts of seeds in words.

    >>> count_seeds([5, 5]), count_seeds([1, 5]), count_seeds([1, 1])
    ('5 seeds', '1 to 5 seeds', '1 seed')
    """
    distinct = set(counts)
    low, high = min(distinct), max(distinct)
    number = f"{low} to {high}" if low < high else f"{low}"
    return f"{number} seed" if high == 1 else f"{number} seeds"


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, format="png")
