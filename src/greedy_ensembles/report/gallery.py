"""Images that both of two methods tell right, only the one, only the other, or neither.

Each method judges by its own threshold, the one that balances its true-positive and true-negative rates. Which images
are shown of a group is drawn by lot from a seed, never chosen.
"""

from textwrap import fill

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from greedy_ensembles.metrics import balanced_threshold
from greedy_ensembles.report.detection import Averages, Scores, average_scores
from greedy_ensembles.report.figure import AS_IT_IS, NORMAL, WIDTH, entitle, new_figure

_COLUMNS = 8


@rc_context(AS_IT_IS)
def draw_gallery(
    images: np.ndarray,
    scores: Scores,
    name: str,
    *,
    examples: int = 16,
    seed: int = 0,
) -> Figure:
    """Draw four groups of OOD images, by which of two methods tells them right.

    Args:
        images: (n, channels, height, width), uint8, grey or colour, in the order of their scores.
        scores: by the names of two methods, scores of in-domain and of OOD images, (seeds, images) each.
        name: of the set that the images are from.
        examples: how many images to show of a group, at most.
        seed: of the lot that decides which.
    """
    averages = average_scores(scores)
    groups = _groups(averages)
    rows = -(-examples // _COLUMNS)
    titles = {group: _title(group, len(members), len(images)) for group, members in groups.items()}
    lines = 1 + max(title.count("\n") for title in titles.values())
    tile = 0.47 * WIDTH / _COLUMNS * images.shape[2] / images.shape[3]
    figure = new_figure(height=2 * (rows * tile + 0.16 * lines + 0.1) + 0.85)
    for place, (axis, (group, members)) in enumerate(zip(figure.subplots(2, 2).flat, groups.items(), strict=True)):
        # A generator for each group: how large the others are makes no difference to what it shows.
        lot = np.random.default_rng([seed, place])
        shown = lot.permutation(members)[:examples]
        axis.set_title(titles[group], fontsize=NORMAL)
        _draw_group(axis, _montage(images, shown, rows))
        if not len(members):
            axis.text(0.5, 0.5, "none", transform=axis.transAxes, ha="center", va="center", fontsize=NORMAL)
    entitle(figure, f"{name}: {len(images):,} OOD images")
    return figure


def _groups(averages: Averages) -> dict[str, np.ndarray]:
    """Return the indices of the images in each of the four groups."""
    first, second = averages
    one, other = (outside >= balanced_threshold(inside, outside) for inside, outside in averages.values())
    return {
        "both right": np.flatnonzero(one & other),
        f"only {first} right": np.flatnonzero(one & ~other),
        f"only {second} right": np.flatnonzero(~one & other),
        "neither right": np.flatnonzero(~one & ~other),
    }


def _title(group: str, count: int, total: int) -> str:
    return fill(f"{group}: {count:,} images ({count / total:.1%})", 52)


def _montage(images: np.ndarray, shown: np.ndarray, rows: int) -> np.ndarray:
    """Return one RGB picture of the images in rows, white between them and where there is none."""
    _, _, height, width = images.shape
    gap = max(1, height // 16)
    picture = np.full((rows * (height + gap) - gap, _COLUMNS * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for place, index in enumerate(shown):
        top, left = place // _COLUMNS * (height + gap), place % _COLUMNS * (width + gap)
        picture[top : top + height, left : left + width] = images[index].transpose(1, 2, 0)  # grey fills all channels
    return picture


def _draw_group(axis: Axes, picture: np.ndarray) -> None:
    axis.imshow(picture, interpolation="nearest")
    axis.set_axis_off()
