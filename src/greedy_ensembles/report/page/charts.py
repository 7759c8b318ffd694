"""Charts as the page's template draws them: lines, areas, points and a radar, in the coordinates of an SVG.

Written by a template of our own rather than by matplotlib, so that they take the colours of the reader's theme, stay
sharp and readable on a phone, and let single lines be switched off. Nothing here knows what is drawn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.ticker import MaxNLocator

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 40

Points = tuple[np.ndarray, np.ndarray]
Tick = tuple[float, str]  #: where, in the coordinates of the SVG, and what is written there


@dataclass(frozen=True)
class Series:
    """One line, area or cloud: its name, the number of its style, and the path that draws it."""

    name: str
    style: int
    path: str
    kind: str = "line"  #: line, points, area, inside (an area in grey), or chance (what no skill would do)


@dataclass(frozen=True)
class Chart:
    """Axes and what is drawn in them; `alt` says in words what is to be seen."""

    title: str
    alt: str
    x_label: str
    y_label: str
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    series: Sequence[Series]
    height: int = HEIGHT
    image: str = ""  #: a data address of a picture that fills the axes


@dataclass(frozen=True)
class Frame:
    """From ranges of data to the place between the margins."""

    x: tuple[float, float]
    y: tuple[float, float]
    height: int = HEIGHT

    def across(self, values: np.ndarray) -> np.ndarray:
        """Return horizontal places."""
        low, high = self.x
        return LEFT + (np.asarray(values) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def up(self, values: np.ndarray) -> np.ndarray:
        """Return vertical places, which an SVG counts downwards."""
        low, high = self.y
        return self.height - BOTTOM - (np.asarray(values) - low) / (high - low) * (self.height - TOP - BOTTOM)

    def line(self, x: np.ndarray, y: np.ndarray) -> str:
        """Return a path through points.

        >>> Frame((0, 1), (0, 1)).line(np.array([0.0, 1.0]), np.array([0.0, 1.0]))
        'M56 210L348 10'
        """
        return "M" + "L".join(_pairs(self.across(x), self.up(y)))

    def points(self, x: np.ndarray, y: np.ndarray) -> str:
        """Return a path of lines without length, which round caps make into dots."""
        return "".join(f"M{pair}h0" for pair in _pairs(self.across(x), self.up(y)))

    def ticks(self, values: Sequence[float], place: Callable[[np.ndarray], np.ndarray]) -> list[Tick]:
        """Return values with their places."""
        return [(round(float(place(np.array(value))), 1), f"{value:.10g}") for value in values]


def _pairs(x: np.ndarray, y: np.ndarray) -> list[str]:
    return [f"{across:.4g} {up:.4g}" for across, up in zip(x, y, strict=True)]


def nice(low: float, high: float, whole: bool = False) -> list[float]:
    """Return a few round numbers from low to high, both included; only whole ones if these are asked for.

    >>> nice(0, 1), nice(1, 3, whole=True)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [1.0, 2.0, 3.0])
    """
    ticks = MaxNLocator(5, steps=[1, 2, 5, 10], integer=whole).tick_values(low, high)
    room = 1e-9 * (high - low)
    return [float(f"{value:.10g}") for value in ticks if low - room <= value <= high + room]


def line_chart(
    title: str, alt: str, x_label: str, y_label: str, lines: Mapping[str, Points], rates: bool = False
) -> Chart:
    """Draw lines by name, each in a style of its own: over epochs, or of rates, which go from 0 to 1 both ways."""
    every_x, every_y = (np.concatenate([points[axis] for points in lines.values()]) for axis in (0, 1))
    frame = Frame((0.0, 1.0) if rates else _range(every_x), (0.0, 1.0) if rates else _range(every_y, 0.05))
    series = [
        Series(name, number, frame.line(*points) if len(points[0]) > 1 else frame.points(*points), _kind(points))
        for number, (name, points) in enumerate(lines.items())
    ]
    return Chart(
        title,
        alt,
        x_label,
        y_label,
        frame.ticks(nice(*frame.x, whole=not rates), frame.across),
        frame.ticks(nice(*frame.y), frame.up),
        series,
    )


def _kind(points: Points) -> str:
    return "line" if len(points[0]) > 1 else "points"


def _range(values: np.ndarray, margin: float = 0.0) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        return low - 0.5, high + 0.5
    return low - margin * (high - low), high + margin * (high - low)


@dataclass(frozen=True)
class Spoke:
    """An axis of a radar: where it ends, and its name with the place and side it is written on."""

    end: tuple[float, float]
    place: tuple[float, float]
    anchor: str
    name: str


@dataclass(frozen=True)
class Radar:
    """A radar from `inner` at the centre to 1 at the rim."""

    alt: str
    spokes: Sequence[Spoke]
    rings: Sequence[tuple[float, str]]  #: radius, and what it stands for
    series: Sequence[Series]
    centre: tuple[float, float] = field(default=(230.0, 150.0))


def radar(alt: str, names: Sequence[str], values: Mapping[str, Sequence[float]]) -> Radar:
    """Draw a polygon for each of some methods, over at least three axes, clockwise from the top."""
    least = min(value for row in values.values() for value in row)
    inner = min(0.5, math.floor(10 * least) / 10)
    middle_x, middle_y = Radar.centre
    radius = 105.0
    angles = [2 * math.pi * index / len(names) for index in range(len(names))]

    def at(angle: float, distance: float) -> tuple[float, float]:
        return round(middle_x + distance * math.sin(angle), 1), round(middle_y - distance * math.cos(angle), 1)

    spokes = []
    for angle, name in zip(angles, names, strict=True):
        side = math.sin(angle)
        anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
        x, y = at(angle, radius + 9)
        spokes.append(Spoke(at(angle, radius), (x, round(y + 4 - 5 * math.cos(angle), 1)), anchor, name))
    series = []
    for number, (method, row) in enumerate(values.items()):
        corners = [at(angle, radius * (value - inner) / (1 - inner)) for angle, value in zip(angles, row, strict=True)]
        path = "M" + "L".join(f"{x} {y}" for x, y in corners) + "Z"
        series.append(Series(method, number, path))
    rings = [(round(radius * (ring - inner) / (1 - inner), 1), f"{ring:g}") for ring in nice(inner, 1) if ring > inner]
    return Radar(alt, spokes, rings, series)
