"""Uncertainty over a plane, for inputs of two numbers: values, how they are drawn, and maps for the page."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from greedy_ensembles.checks import naming
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.report.figure import Chart, draw_chart
from greedy_ensembles.runs import Run

_RESOLUTION = 161
_HALF_WIDTH = 8.0


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


def over_plane(ensemble: Ensemble, centre: np.ndarray) -> np.ndarray:
    """Return the mutual information over a square about a centre, in rows from below."""
    horizontal, vertical = (np.linspace(c - _HALF_WIDTH, c + _HALF_WIDTH, _RESOLUTION) for c in centre)
    grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1).astype(np.float32)
    return ensemble.uncertainty(grid.reshape(-1, 2)).epistemic.numpy().reshape(grid.shape[:2])


def draw_plane(
    axis: Axes,
    values: np.ndarray,
    centre: np.ndarray,
    top: float,
    points: KnownPoints | None,
    interpolation: str = "bilinear",
) -> AxesImage:
    """Draw values over a plane, in colours from 0 to `top`, and points on them where they are known."""
    left, bottom = (centre - _HALF_WIDTH).tolist()
    ends = left, left + 2 * _HALF_WIDTH, bottom, bottom + 2 * _HALF_WIDTH
    image = axis.imshow(
        values, origin="lower", extent=ends, vmin=0, vmax=top, cmap="viridis", interpolation=interpolation
    )
    if points is not None:
        for kind in np.unique(points.y).tolist():
            colour, marker = (("#ff9d4d", "o"), ("#ffffff", "^"))[kind % 2]
            x = points.x[points.y == kind]
            axis.scatter(x[:, 0], x[:, 1], s=9, c=colour, marker=marker, edgecolors="black", linewidths=0.3)
    return image


def maps(labelled: Sequence[tuple[str, Run]], points: KnownPoints | None = None) -> list[tuple[Chart, str]]:
    """Return a map of the mutual information for each run, with a caption: in order of lambda_M, on one scale."""
    centre = np.zeros(2) if points is None else points.x.mean(axis=0)
    ordered = sorted(labelled, key=lambda entry: (entry[1].strength or 0.0, entry[0]))
    found = []
    for _, run in ordered:
        with naming(run.folder, "has members of which no map can be drawn"):
            found.append(over_plane(run.ensemble, centre))
    top = max(float(values.max()) for values in found)

    def draw(axis: Axes, values: np.ndarray) -> None:
        axis.grid(False)
        image = draw_plane(axis, values, centre, top, points, "none")
        axis.figure.colorbar(image, ax=axis, label="mutual information (nats)", fraction=0.046, pad=0.03)

    result = []
    for (label, run), values in zip(ordered, found, strict=True):
        said = f"mean over the plane {values.mean():.3f} nats, highest {values.max():.3f}"
        if points is not None:
            at_data = run.ensemble.uncertainty(points.x.astype(np.float32)).epistemic.mean()
            said += f", mean at the {len(points.x)} points {at_data:.3f}"
        chart = draw_chart(
            label,
            f"Map of the mutual information of {label}; {said}.",
            partial(draw, values=values),
            x_label="first input",
            y_label="second input",
            inches=(5.6, 4.6),
        )
        result.append((chart, f"{label}: {said}"))
    return result
