"""Maps of the mutual information over a plane, for runs on inputs of two numbers: one for each run, on one scale."""

from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np

from greedy_ensembles.report.page.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Chart, Frame, Series, nice
from greedy_ensembles.report.page.pictures import coloured
from greedy_ensembles.report.page.records import Planes
from greedy_ensembles.runs import Run

_RESOLUTION = 161
_HALF_WIDTH = 8.0
_HEIGHT = WIDTH - LEFT - RIGHT + TOP + BOTTOM  # which makes the axes square
_SHADES = 256


class KnownPoints(NamedTuple):
    """The points that a run was trained on."""

    name: str  #: of the data set
    x: np.ndarray  #: (n, 2)
    y: np.ndarray  #: (n,), whole numbers from 0


def takes_points(run: Run) -> bool:
    """Return whether a run's model takes two numbers an input, as its first layer says."""
    shapes = run.configuration.get("model")
    first = next(iter(shapes.values()), None) if isinstance(shapes, dict) else None
    return bool(run.members) and isinstance(first, list) and len(first) == 2 and first[1] == 2


def planes(labelled: Sequence[tuple[str, Run]], points: KnownPoints | None = None) -> Planes:
    """Return a map for each run, in order of lambda_M, with the points on top where they are known."""
    centre = np.zeros(2) if points is None else points.x.mean(axis=0)
    horizontal, vertical = (np.linspace(c - _HALF_WIDTH, c + _HALF_WIDTH, _RESOLUTION) for c in centre)
    grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1).astype(np.float32).reshape(-1, 2)
    ordered = sorted(labelled, key=lambda entry: (entry[1].strength or 0.0, entry[0]))
    maps = [run.ensemble.uncertainty(grid).epistemic.numpy().reshape(_RESOLUTION, -1) for _, run in ordered]
    top = max(float(values.max()) for values in maps)
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 1, _SHADES), bytes=True)[:, :3].tolist()
    frame = Frame((horizontal[0], horizontal[-1]), (vertical[0], vertical[-1]), _HEIGHT)
    charts, captions = [], []
    for (label, run), values in zip(ordered, maps, strict=True):
        said = f"mean over the plane {values.mean():.3f} nats, highest {values.max():.3f}"
        if points is not None:
            at_data = run.ensemble.uncertainty(points.x.astype(np.float32)).epistemic.mean()
            said += f", mean at the {len(points.x)} points {at_data:.3f}"
        charts.append(_chart(label, said, frame, coloured(values, shades, top), points))
        captions.append(f"{label}: {said}")
    return Planes(charts, captions, tuple(_hexadecimal([*shades[:: _SHADES // 8], shades[-1]])), f"{top:.2f}")


def _chart(label: str, said: str, frame: Frame, image: str, points: KnownPoints | None) -> Chart:
    series = []
    if points is not None:
        series = [
            Series(f"class {kind}", kind, frame.points(*points.x[points.y == kind].T), "points")
            for kind in np.unique(points.y).tolist()
        ]
    alt = f"Map of the mutual information of {label}; {said}."
    x_ticks, y_ticks = frame.ticks(nice(*frame.x), frame.across), frame.ticks(nice(*frame.y), frame.up)
    return Chart(label, alt, "first input", "second input", x_ticks, y_ticks, series, _HEIGHT, image)


def _hexadecimal(shades: Sequence[Sequence[int]]) -> list[str]:
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in shades]
