"""How well a score tells out-of-distribution examples from in-domain ones.

OOD is the positive class and a higher score means more OOD. `id_scores` and `ood_scores` are of shape (n,) and (m,);
the result is one number: a 0-d tensor on the device of `id_scores`, or a numpy float64 if that is an array.

Ties are handled exactly, since scores are compared as they come in (`scores.py`) and counted as integers. A threshold t
calls everything >= t OOD, so tied examples are called together. Only OOD scores need be tried as thresholds: any other
one admits more in-domain examples than the next OOD score above it, and no more OOD ones. Hence each metric is a count
of how many scores lie on which side of each OOD score: two sorts and a search, with no curve made (`curves.py` has it).
"""

import math
from typing import overload

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.metrics.arrays import Scalar, Values, to_scalar
from greedy_ensembles.metrics.scores import sort_scores, to_scores


@overload
def auroc(id_scores: Tensor, ood_scores: Values) -> Tensor: ...
@overload
def auroc(id_scores: np.ndarray, ood_scores: Values) -> np.float64: ...
def auroc(id_scores: Values, ood_scores: Values) -> Scalar:
    """Return the chance that an OOD example scores above an in-domain one, ties counting one half.

    That is the area under the ROC curve.

    >>> auroc(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0]))  # 1.5 wins 2 of 3; 2 wins 2 and ties 1: (4 + 1/2) / 6
    np.float64(0.75)
    """
    inside, outside = map(sort_scores, to_scores(id_scores, ood_scores))
    below = torch.searchsorted(inside, outside).sum()
    not_above = torch.searchsorted(inside, outside, right=True).sum()
    return to_scalar((below + not_above).double() / (2 * len(inside) * len(outside)), id_scores)


@overload
def average_precision(id_scores: Tensor, ood_scores: Values) -> Tensor: ...
@overload
def average_precision(id_scores: np.ndarray, ood_scores: Values) -> np.float64: ...
def average_precision(id_scores: Values, ood_scores: Values) -> Scalar:
    """Return the step-wise sum of precision times gain in recall, over thresholds from high to low.

    Each OOD example gains 1/m of recall at the threshold of its own score, so this is the mean, over OOD examples, of
    the precision there. It depends on how many OOD examples there are for each in-domain one: report both counts.

    >>> average_precision(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0]))  # (2/3 at 1.5 + 1/2 at 2) / 2 = 7/12
    np.float64(0.5833333333333333)
    """
    inside, outside = map(sort_scores, to_scores(id_scores, ood_scores))
    true_positives = len(outside) - torch.searchsorted(outside, outside)
    false_positives = len(inside) - torch.searchsorted(inside, outside)
    precision = true_positives.double() / (true_positives + false_positives)
    return to_scalar(precision.mean(), id_scores)


@overload
def fpr_at_tpr(id_scores: Tensor, ood_scores: Values, tpr: float = 0.95) -> Tensor: ...
@overload
def fpr_at_tpr(id_scores: np.ndarray, ood_scores: Values, tpr: float = 0.95) -> np.float64: ...
def fpr_at_tpr(id_scores: Values, ood_scores: Values, tpr: float = 0.95) -> Scalar:
    """Return the smallest false-positive rate among thresholds whose true-positive rate is at least tpr.

    >>> fpr_at_tpr(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0]))  # 1.5 is needed, and one of three reaches it
    np.float64(0.3333333333333333)
    >>> fpr_at_tpr(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.5]), tpr=0.5)  # 2.5 will do, and none reaches it
    np.float64(0.0)
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be above 0 and at most 1, got {tpr}")
    inside, outside = to_scores(id_scores, ood_scores)
    # The highest threshold that will do is the score of the OOD example that completes the rate, counted from above.
    threshold = sort_scores(outside)[len(outside) - _fewest(tpr, len(outside))]
    return to_scalar((inside >= threshold).sum().double() / len(inside), id_scores)


def _fewest(share: float, total: int) -> int:
    """Return the smallest count whose share of the total, as a float, is at least `share`.

    >>> _fewest(0.07, 100), math.ceil(0.07 * 100)  # the product rounds up to 7.000000000000001
    (7, 8)
    """
    count = max(math.ceil(share * total) - 1, 1)  # rounding puts the ceiling off by one at most
    while count / total < share:
        count += 1
    return count
