"""Images that both of two methods tell right, only the one, only the other, or neither.

Each method judges by its own threshold, the one that balances its true-positive and true-negative rates. Which images
are shown of a group is drawn by lot from a seed, never chosen.
"""

from textwrap import fill
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.metrics import balanced_threshold
from greedy_ensembles.report.detection import Averages, Scores, average_scores, describe_score
from greedy_ensembles.report.figure import NORMAL, WIDTH, entitle, new_figure

_COLUMNS = 8

Domain = Literal["ood", "in-domain"]


def draw_gallery(
    images: np.ndarray,
    scores: Scores,
    name: str,
    *,
    domain: Domain = "ood",
    examples: int = 16,
    seed: int = 0,
    label: str = "mutual information (nats)",
    about: str = "",
) -> Figure:
    """Draw four groups of images, by which of two methods tells them right.

    Parameters
    ----------
    images : (n, channels, height, width), uint8, grey or colour, in the order of their scores.
    scores : by the names of two methods, scores of in-domain and of OOD images, (seeds, images) each.
    name : of the set that the images are from.
    domain : which of the two sets that is. An OOD image is told right where its score reaches the threshold, an
        in-domain one where it stays below.
    examples : how many images to show of a group, at most.
    seed : of the lot that decides which.
    label : what the score is, with its unit.
    about : what else the caption is to say, such as which networks made the scores.
    """
    check_choice("domain", domain, ("ood", "in-domain"))
    check_count("examples", examples, least=1)
    if len(scores) != 2:
        raise ValueError(f"scores must be of two methods, got {len(scores)}: {', '.join(scores) or 'none'}")
    averages = average_scores(scores)
    groups = _groups(averages, domain)
    _check_images(images, sum(map(len, groups.values())), domain)
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
    entitle(
        figure,
        f"{name}: {len(images):,} {'OOD' if domain == 'ood' else 'in-domain'} images",
        f"Told right: {'at or above' if domain == 'ood' else 'below'} the threshold that balances a method's "
        f"true-positive and true-negative rates ({_rates(averages)}). Score: {describe_score(scores, label)}. "
        f"Up to {examples} of each group, drawn by lot (seed {seed}). {about}",
    )
    return figure


def _told_right(inside: np.ndarray, outside: np.ndarray, domain: Domain) -> np.ndarray:
    threshold = balanced_threshold(inside, outside)
    return outside >= threshold if domain == "ood" else inside < threshold


def _groups(averages: Averages, domain: Domain) -> dict[str, np.ndarray]:
    """Return the indices of the images in each of the four groups."""
    first, second = averages
    one, other = (_told_right(*pair, domain) for pair in averages.values())
    return {
        "both right": np.flatnonzero(one & other),
        f"only {first} right": np.flatnonzero(one & ~other),
        f"only {second} right": np.flatnonzero(~one & other),
        "neither right": np.flatnonzero(~one & ~other),
    }


def _check_images(images: np.ndarray, count: int, domain: Domain) -> None:
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.dtype != np.uint8:
        raise ValueError(
            "images must be uint8 of shape (n, channels, height, width) with 1 or 3 channels, "
            f"got {images.dtype} of shape {images.shape}"
        )
    if len(images) != count:
        kind = "ood" if domain == "ood" else "id"
        raise ValueError(f"images must be those of {kind}_scores, {count} of them, got {len(images)}")


def _title(group: str, count: int, total: int) -> str:
    return fill(f"{group}: {count:,} images ({count / total:.1%})", 52)


def _rates(averages: Averages) -> str:
    parts = []
    for method, (inside, outside) in averages.items():
        t = balanced_threshold(inside, outside)
        parts.append(f"{method}: {t:.3g}, rates {(outside >= t).mean():.3f} and {(inside < t).mean():.3f}")
    return "; ".join(parts)


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
