"""One HTML file about runs: what was trained, how it went, how good it is, and what it looks like.

It needs no network and no other file, follows the reader's light or dark theme, and works without its script, which
only sorts tables, switches lines off and lets one look at one picture at a time. `build` makes its parts.

Every text is escaped where it is shown, and the page's policy allows one style and one script, by their hashes, and
pictures that it holds itself: a hostile name in a run could neither run anything nor call anyone.
"""

import base64
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from greedy_ensembles.machine import __version__
from greedy_ensembles.report.figure import Chart
from greedy_ensembles.report.table import Table, to_html
from greedy_ensembles.storage import write_bytes


class Picture(NamedTuple):
    """A small image with what is to be said below it, a line for each method."""

    address: str  #: data:image/png;base64,...
    alt: str
    lines: Sequence[str] = ()


#: Pictures that have something in common, by a title that says what.
Galleries = Mapping[str, Sequence[Picture]]


class TrainedRun(NamedTuple):
    """One run: charts over its epochs, and all that it was asked to do."""

    name: str
    summary: str
    charts: Sequence[Chart]
    members: Sequence[str]  #: names of the lines of all charts
    configuration: str  #: JSON, for people


class OodView(NamedTuple):
    """What is to be seen of one OOD set."""

    name: str
    summary: str
    charts: Sequence[Chart]
    galleries: Galleries


class Evaluated(NamedTuple):
    """An evaluation: tables, notes, and a view of each OOD set."""

    tables: Sequence[Table]
    notes: Sequence[str]
    methods: Sequence[str]
    sets: Sequence[OodView]
    in_domain: Galleries


class Part(NamedTuple):
    """All runs on one data set."""

    name: str
    anchor: str
    finding: Table  #: what the page opens with
    trained: Table
    runs: Sequence[TrainedRun]
    notes: Sequence[str] = ()
    evaluated: Evaluated | None = None
    maps: Sequence[tuple[Chart, str]] = ()  #: of the plane, with captions, in the order of the slider


def write_page(parts: Sequence[Part], path: Path) -> None:
    """Write a page; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, [render(parts).encode()])


def render(parts: Sequence[Part]) -> str:
    """Return the page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _read("style.css"), _read("page.js")
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}"
    return environment.get_template("template.html").render(
        title=" and ".join(part.name for part in parts),
        parts=parts,
        table=to_html,
        number=partial(next, itertools.count()),  # of a chart
        version=__version__,
        policy=policy,
        style=Markup(style),  # ours, and its hash is in the policy
        script=Markup(script),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")
