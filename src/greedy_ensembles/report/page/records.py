"""What the page's template is filled with: plain records, of which every text is escaped where it is shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from greedy_ensembles.report.page.charts import Chart, Radar
from greedy_ensembles.report.table import Table


@dataclass(frozen=True)
class Picture:
    """A small image with what is to be said below it, a line for each style."""

    address: str  #: data:image/png;base64,...
    alt: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Gallery:
    """Images that have something in common."""

    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class TrainedRun:
    """One run: charts over its epochs, and all that it was asked to do."""

    name: str
    summary: str
    charts: Sequence[Chart]
    members: Sequence[str]  #: names of the series of all charts
    configuration: str  #: JSON, for people


@dataclass(frozen=True)
class OodView:
    """What is to be seen of one OOD set."""

    name: str
    summary: str
    charts: Sequence[Chart]
    galleries: Sequence[Gallery] = ()


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: tables, notes, a radar, and a view of each OOD set."""

    tables: Sequence[Table]
    notes: Sequence[str]
    methods: Sequence[str]
    radar: Radar | None
    sets: Sequence[OodView]
    in_domain: Sequence[Gallery] = ()


@dataclass(frozen=True)
class Planes:
    """Maps of a plane, in the order of the slider."""

    charts: Sequence[Chart]
    captions: Sequence[str]
    scale: tuple[str, ...]  #: colours from 0 to `top`
    top: str


@dataclass(frozen=True)
class Part:
    """All runs on one data set."""

    name: str
    anchor: str
    trained: Table
    runs: Sequence[TrainedRun]
    notes: Sequence[str] = ()
    evaluated: Evaluated | None = None
    planes: Planes | None = None


@dataclass(frozen=True)
class Page:
    """The whole page."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)
