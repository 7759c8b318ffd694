"""Scores of images as the pictures take them: of several methods, on one pair of sets, over seeds.

As in the paper, the score of an image is averaged over seeds first, and what is drawn is drawn for the average.
"""

from collections.abc import Mapping

import numpy as np

from greedy_ensembles.report.seeds import count_seeds

#: By the name of a method, its scores of in-domain and of OOD images, (seeds, images) each; higher is more OOD.
Scores = Mapping[str, tuple[np.ndarray, np.ndarray]]
#: The same after the mean over seeds, (images,) each.
Averages = dict[str, tuple[np.ndarray, np.ndarray]]


def mean_over_seeds(scores: np.ndarray, name: str = "scores") -> np.ndarray:
    """Return the mean score of each image, (seeds, images) to (images,), in double precision.

    >>> mean_over_seeds(np.array([[0.0, 1.0], [1.0, 2.0]]))
    array([0.5, 1.5])
    """
    if not isinstance(scores, np.ndarray) or scores.ndim != 2 or 0 in scores.shape:
        given = f"shape {scores.shape}" if isinstance(scores, np.ndarray) else type(scores).__name__
        raise ValueError(f"{name} must be an array (seeds, images), with one row where there is one seed; got {given}")
    if not np.issubdtype(scores.dtype, np.floating):
        raise ValueError(f"{name} must be floating-point, got {scores.dtype}")
    if bad := int((~np.isfinite(scores)).sum()):
        raise ValueError(f"{name} must be finite, got {bad} that are infinite or NaN")
    return np.asarray(scores.mean(axis=0, dtype=np.float64))


def average_scores(scores: Scores) -> Averages:
    """Return the means over seeds of all methods, which must have scored the same images."""
    if not scores:
        raise ValueError("scores must hold at least one method, got none")
    for method, pair in scores.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"scores of {method} must be a pair (id_scores, ood_scores), got {type(pair).__name__}")
    averages = {
        method: (mean_over_seeds(inside, f"id_scores of {method}"), mean_over_seeds(outside, f"ood_scores of {method}"))
        for method, (inside, outside) in scores.items()
    }
    counts = {method: (len(inside), len(outside)) for method, (inside, outside) in averages.items()}
    if len(set(counts.values())) > 1:
        # AP, for one, depends on how many OOD images there are for each in-domain one.
        raise ValueError(f"scores must be of the same images for every method, got (in-domain, OOD) counts {counts}")
    return averages


def describe_score(scores: Scores, label: str) -> str:
    """Return what the score of an image is, for a caption."""
    seeds = count_seeds(len(part) for pair in scores.values() for part in pair)
    return f"{label} of {seeds}" + ("" if seeds == "1 seed" else ", averaged over seeds for each image")
