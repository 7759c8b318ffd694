"""Uncertainty over a plane, for data in two dimensions: one panel an ensemble, all on one colour scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Panel:
    """One ensemble: values over the grid of `draw_planes`, with what to write above and below them."""

    title: str
    values: np.ndarray  #: (len(vertical), len(horizontal))
    caption: str = ""


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
        image = axis.pcolormesh(
            horizontal, vertical, panel.values, vmin=0, vmax=top, cmap="viridis", shading="gouraud", rasterized=True
        )
        for kind, colour, marker in ((0, "#ff9d4d", "o"), (1, "#ffffff", "^")):
            points = x[y == kind]
            axis.scatter(points[:, 0], points[:, 1], s=9, c=colour, marker=marker, edgecolors="black", linewidths=0.3)
        axis.set_title(panel.title, fontsize=13)
        axis.set_xlabel(panel.caption, fontsize=10)
        axis.set_aspect("equal")
    figure.colorbar(image, ax=axes, label=label, fraction=0.05, pad=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
