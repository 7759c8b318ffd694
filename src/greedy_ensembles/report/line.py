"""Densities on the line and their approximations, side by side: the layout of the paper's Figure 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_TRUE, _APPROXIMATION = "#1f5fbf", "#d62728"


@dataclass(frozen=True)
class Approximation:
    """One panel: an approximation over the grid of `draw_approximations`, and where its kernels sit."""

    title: str
    values: np.ndarray  #: (points,)
    centres: np.ndarray
    caption: str = ""


def draw_approximations(
    panels: Sequence[Approximation], grid: np.ndarray, density: np.ndarray, label: str, path: Path
) -> None:
    """Draw the density in blue and one approximation a panel in red, on common axes, and write an image file.

    Ticks below the curves are the kernels; those that coincide are stacked, so that they can be counted.
    """
    figure = Figure(figsize=(4.3 * len(panels), 3.7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    top = 1.08 * max(float(density.max()), *(float(np.quantile(panel.values, 0.999)) for panel in panels))
    for axis, panel in zip(axes, panels, strict=True):
        axis.fill_between(grid, density, color=_TRUE, alpha=0.18, linewidth=0)
        axis.plot(grid, density, color=_TRUE, linewidth=1.8, label=label)
        axis.plot(grid, panel.values, color=_APPROXIMATION, linewidth=1.8, label="approximation")
        heights = -0.035 * top * (1 + _ranks(panel.centres))
        axis.scatter(panel.centres, heights, s=16, marker="^", color=_APPROXIMATION, linewidths=0, clip_on=False)
        axis.set_title(panel.title, fontsize=13)
        axis.set_xlabel(panel.caption, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_yticks([])
    lowest = max(int(_ranks(panel.centres).max()) for panel in panels)
    axes[0].set_ylim(-0.035 * top * (lowest + 2), top)
    axes[0].set_xlim(grid[0], grid[-1])
    axes[0].set_ylabel("density")
    axes[-1].legend(frameon=False, fontsize=10, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _ranks(centres: np.ndarray) -> np.ndarray:
    """Return 0 for the first of equal centres, 1 for the second, and so on."""
    return np.array([int((centres[:i] == centre).sum()) for i, centre in enumerate(centres)])
