"""Charts of the HTML page: matplotlib's SVG, made fit to stand in a page that has a policy and two themes.

Colours become variables of the page's style sheet, so that a chart follows the reader's theme. Style attributes, which
the page's policy would not let pass, become plain attributes. Text stays text, in the page's font. Lines of a method or
a member (artists with a `gid`) are marked by its name, so that a script can switch them off.
"""

import dataclasses
import io
import re
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from greedy_ensembles.report.figure import COLOURS, DARK, GREY, PALE, RULE, new_figure

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


@dataclasses.dataclass(frozen=True)
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
    """Return a chart of one panel, which `draw` fills.

    Args:
        title: what stands above it.
        alt: what is to be seen, in words.
        draw: takes the empty panel.
        x_label: below the panel.
        y_label: beside it.
        inches: width and height.
    """
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
    """Make one element fit for the page."""
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
