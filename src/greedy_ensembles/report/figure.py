"""What all pictures have in common: size, type, colours, and the way to a PNG file or into the HTML page.

Figures are as wide as a page's text, with type of 7 to 9 points, so that they are printed as they are. Colours are
those of Okabe and Ito, which are told apart with any colour vision; methods differ in dashes and markers as well, so
that a copy in grey will do.

A chart of the page is matplotlib's SVG, made fit to stand in a page that has a policy and two themes. Colours become
variables of the page's style sheet, so that a chart follows the reader's theme. Style attributes, which the page's
policy would not let pass, become plain attributes. Text stays text, in the page's font. Lines of a method or a member
(artists with a `gid`) are marked by its name, so that a script can switch them off.
"""

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

WIDTH = 7.0  #: inches
SMALL, NORMAL, LARGE = 7.0, 8.0, 9.0  #: points
DARK, GREY, RULE, PALE = "#404040", "#8c8c8c", "#cfcfcf", "#e6e6e6"  #: text, lines, grids, shades

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_LINES = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_MARKERS = ("o", "s", "^", "D", "v")

INK = "#1c1e21"  #: stands for the page's colour of text
_THEME = {
    INK: "var(--ink)",
    DARK: "var(--faint)",
    GREY: "var(--faint)",
    RULE: "var(--rule)",
    PALE: "var(--shade)",
    **{colour: f"var(--c{number})" for number, colour in enumerate(COLOURS)},
}
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": INK,
    "text.parse_math": False,  # dollars in names are no mathematics
    "axes.labelcolor": INK,
    "axes.edgecolor": RULE,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": RULE,
    "grid.linewidth": 0.75,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": DARK,
    "ytick.labelcolor": DARK,
    "lines.linewidth": 1.5,
    "path.simplify_threshold": 0.4,  # of a point: a curve of 100,000 images is megabytes otherwise
    "svg.fonttype": "none",
    "svg.hashsalt": "greedy-ensembles",  # names inside do not differ from time to time
}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = "\0"  # stands for the number of a chart on its page; no text has it, for such characters are taken out
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")  # what names may have, and no XML may


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


@dataclass(frozen=True)
class Chart:
    """A chart with its title; `alt` says in words what is to be seen."""

    title: str
    alt: str
    svg: str

    def markup(self, number: int) -> Markup:
        """Return the SVG as the page's chart of that number, which no other has."""
        return Markup(self.svg.replace(_NUMBER, f"chart-{number}-"))


def draw_chart(
    title: str,
    alt: str,
    draw: Callable[[Axes], None],
    *,
    x_label: str = "",
    y_label: str = "",
    inches: tuple[float, float] = (5.0, 3.5),
) -> Chart:
    """Return a chart of one panel, which `draw` fills; `alt` says what is to be seen, in words."""
    with rc_context(_STYLE):
        figure = new_figure(inches[1], inches[0])
        axis = figure.add_subplot()
        axis.set(xlabel=x_label, ylabel=y_label)
        axis.tick_params(length=0, pad=5)
        for each in (axis.xaxis, axis.yaxis):
            each.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        draw(axis)
        return Chart(title, alt, _to_svg(figure, alt))


def _to_svg(figure: Figure, alt: str) -> str:
    names = []
    for artist in figure.findobj(lambda artist: artist.get_gid() is not None):
        names.append(_CONTROL.sub("", str(artist.get_gid())))
        artist.set_gid(f"series-{len(names) - 1}")
    file = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # from matplotlib's font, and not from the reader's
        figure.savefig(file, format="svg", metadata=_NO_METADATA, transparent=True)
    text = _CONTROL.sub("", file.getvalue())
    root = ElementTree.fromstring(text)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    for parent in root.iter():
        for child in list(parent):
            if child.tag == f"{_SVG}style" or (child.tag == f"{_SVG}path" and child.get("style") == "fill: none"):
                parent.remove(child)  # the style sheet, and the empty backgrounds
    for element in list(root.iter()):
        _adapt(element, names, used)
    size = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": _CONTROL.sub("", alt)}
    root.attrib = {**size, "stroke-linejoin": "round", "stroke-linecap": "butt"}
    return ElementTree.tostring(root, encoding="unicode")


def _adapt(element: ElementTree.Element, names: list[str], used: set[str]) -> None:
    element.tag = element.tag.removeprefix(_SVG)
    if element.tag not in ("text", "tspan"):
        element.text = None
    element.tail = None
    name = element.attrib.pop("id", "")
    for declaration in filter(None, element.attrib.pop("style", "").split(";")):
        key, _, value = declaration.partition(":")
        if key.strip() != "font-family":
            element.set(key.strip(), value.strip())
    if name.startswith("series-"):
        series = names[int(name.removeprefix("series-"))]
        element.set("data-series", series)
        title = ElementTree.Element("title")
        title.text = series
        element.insert(0, title)
    elif name in used:
        element.set("id", f"{_NUMBER}{name}")
    if _LINK in element.attrib:
        address = element.attrib.pop(_LINK)
        element.set("href", address.replace("#", f"#{_NUMBER}", 1) if address.startswith("#") else address)
    for key, value in element.attrib.items():
        if key in ("fill", "stroke"):
            element.set(key, _THEME.get(value, value))
        elif key == "clip-path":
            element.set(key, value.replace("#", f"#{_NUMBER}", 1))
        elif key in ("d", "x", "y"):
            element.set(key, re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.4g}", " ".join(value.split())))
