"""Uncertainty over a plane, for inputs of two numbers: panels in a row (the paper's Figure 2), or charts of a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from greedy_ensembles.report.svg import Chart, draw_chart
from greedy_ensembles.runs import Run

_RESOLUTION = 161
_HALF_WIDTH = 8.0


@dataclass(frozen=True)
class Panel:
    """One ensemble: values over the grid of `draw_planes`, with what to write above and below them."""

    title: str
    values: np.ndarray  #: (len(vertical), len(horizontal))
    caption: str = ""


class KnownPoints(NamedTuple):
    """The points that a run was trained on."""

    name: str  #: of the data set
    x: np.ndarray  #: (n, 2)
    y: np.ndarray  #: (n,), whole numbers from 0


def draw_planes(
    panels: Sequence[Panel],
    horizontal: np.ndarray,
    vertical: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    label: str,
    path: Path,
) -> None:
    """Draw the panels in a row with the points x of classes y on top, and write them to an image file."""
    figure = Figure(figsize=(3.1 * len(panels) + 0.9, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    top = max(float(panel.values.max()) for panel in panels)
    for axis, panel in zip(axes, panels, strict=True):
        image = _draw(axis, panel.values, horizontal, vertical, top, KnownPoints("", x, y), "bilinear")
        axis.set_title(panel.title, fontsize=13)
        axis.set_xlabel(panel.caption, fontsize=10)
    figure.colorbar(image, ax=axes, label=label, fraction=0.05, pad=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw(
    axis: Axes,
    values: np.ndarray,
    horizontal: np.ndarray,
    vertical: np.ndarray,
    top: float,
    points: KnownPoints | None,
    interpolation: str,
) -> AxesImage:
    ends = float(horizontal[0]), float(horizontal[-1]), float(vertical[0]), float(vertical[-1])
    image = axis.imshow(
        values, origin="lower", extent=ends, vmin=0, vmax=top, cmap="viridis", interpolation=interpolation
    )
    if points is not None:
        for kind in np.unique(points.y).tolist():
            colour, marker = (("#ff9d4d", "o"), ("#ffffff", "^"))[kind % 2]
            x = points.x[points.y == kind]
            axis.scatter(x[:, 0], x[:, 1], s=9, c=colour, marker=marker, edgecolors="black", linewidths=0.3)
    return image


def takes_points(run: Run) -> bool:
    """Return whether a run's model takes two numbers an input, as its first layer says."""
    shapes = run.configuration.get("model")
    first = next(iter(shapes.values()), None) if isinstance(shapes, dict) else None
    return bool(run.members) and isinstance(first, list) and len(first) == 2 and first[1] == 2


def maps(labelled: Sequence[tuple[str, Run]], points: KnownPoints | None = None) -> list[tuple[Chart, str]]:
    """Return a map of the mutual information for each run, with a caption: in order of lambda_M, on one scale."""
    centre = np.zeros(2) if points is None else points.x.mean(axis=0)
    horizontal, vertical = (np.linspace(c - _HALF_WIDTH, c + _HALF_WIDTH, _RESOLUTION) for c in centre)
    grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1).astype(np.float32).reshape(-1, 2)
    ordered = sorted(labelled, key=lambda entry: (entry[1].strength or 0.0, entry[0]))
    found = [run.ensemble.uncertainty(grid).epistemic.numpy().reshape(_RESOLUTION, -1) for _, run in ordered]
    top = max(float(values.max()) for values in found)
    result = []
    for (label, run), values in zip(ordered, found, strict=True):
        said = f"mean over the plane {values.mean():.3f} nats, highest {values.max():.3f}"
        if points is not None:
            at_data = run.ensemble.uncertainty(points.x.astype(np.float32)).epistemic.mean()
            said += f", mean at the {len(points.x)} points {at_data:.3f}"

        def draw(axis: Axes, values: np.ndarray = values) -> None:
            axis.grid(False)
            image = _draw(axis, values, horizontal, vertical, top, points, "none")
            axis.figure.colorbar(image, ax=axis, label="mutual information (nats)", fraction=0.046, pad=0.03)

        alt = f"Map of the mutual information of {label}; {said}."
        chart = draw_chart(label, alt, draw, x_label="first input", y_label="second input", inches=(5.6, 4.6))
        result.append((chart, f"{label}: {said}"))
    return result
