"""What the pictures of the OOD benchmark have in common: size, type, colours, and the way to a file.

Figures are as wide as a page's text, with type of 7 to 9 points, so that they are printed as they are. Colours are
those of Okabe and Ito, which are told apart with any colour vision; methods differ in dashes and markers as well, so
that a copy in grey will do. What is to be said of a picture, notes on its sets included, stands beside it.
"""

from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

WIDTH = 7.0  #: inches
SMALL, NORMAL, LARGE = 7.0, 8.0, 9.0  #: points
DARK, GREY, RULE, PALE = "#404040", "#8c8c8c", "#cfcfcf", "#e6e6e6"  #: text, lines, grids, shades

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LINES = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Style:
    """How one method looks in every panel."""

    colour: str
    linestyle: Any  #: as matplotlib has it
    marker: str


def method_styles(count: int) -> list[Style]:
    """Return as many styles, no two alike up to 60: the three cycles are of different lengths."""
    return [
        Style(COLOURS[i % len(COLOURS)], _LINES[i % len(_LINES)], _MARKERS[i % len(_MARKERS)]) for i in range(count)
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


def in_lines(text: str, width: int, indent: str = "") -> str:
    """Return a name as a picture shows it, in lines of so many characters: lambda_M is typeset, dollars are dollars.

    >>> in_lines("greedy, lambda_M = 1", 9)
    'greedy,\\n$\\\\lambda_M$\\xa0=\\xa01'
    """
    whole = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}").replace("lambda_M", "\0\0")  # as wide as it
    return fill(whole, width, subsequent_indent=indent).replace("$", r"\$").replace("\0\0", r"$\lambda_M$")


def entitle(figure: Figure, title: str) -> None:
    """Write a short title above the panels, in lines that fit the figure."""
    figure.suptitle(in_lines(title, int(14 * figure.get_figwidth())), fontsize=LARGE)


def write_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, format="png")
