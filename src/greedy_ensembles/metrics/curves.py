"""What every threshold makes of in-domain and out-of-distribution scores: curves, and the threshold in balance.

OOD is the positive class, a higher score means more OOD, and a threshold t calls every score >= t OOD, as in
`ranking.py`: tied examples are called together, so a curve has one point for each distinct score, from the highest to
the lowest, behind a first point at a threshold of infinity, which calls nothing OOD. Curves are of the kind of
`id_scores`, tensors on its device or arrays: rates in double precision, thresholds in that of the scores.
"""

from typing import Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.metrics.arrays import Array, Scalar, Values, to_scalar
from greedy_ensembles.metrics.scores import sort_scores, to_scores


class RocCurve(NamedTuple, Generic[Array]):
    """Points to be joined by straight lines, from (0, 0) to (1, 1)."""

    false_positive_rate: Array
    true_positive_rate: Array
    thresholds: Array


class PrecisionRecallCurve(NamedTuple, Generic[Array]):
    """Points to be joined by steps: up to each recall, and from the one before, precision is that of the point."""

    precision: Array
    recall: Array
    thresholds: Array


def _counts(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return false positives, true positives and thresholds, one for each distinct score, from the highest down."""
    inside, outside = sort_scores(inside), sort_scores(outside)
    thresholds = torch.unique_consecutive(sort_scores(torch.cat([inside, outside]))).flip(0)
    false, true = (len(scores) - torch.searchsorted(scores, thresholds) for scores in (inside, outside))
    return false, true, thresholds


def _begun(values: Tensor, first: float) -> Tensor:
    return torch.cat([values.new_tensor([first]), values])


def _like(values: Tensor, given: Array) -> Array:
    return values.numpy() if isinstance(given, np.ndarray) else values


def roc_curve(id_scores: Array, ood_scores: Values) -> RocCurve[Array]:
    """Return false-positive rates, true-positive rates and thresholds; the area below is `auroc`.

    >>> false, true, thresholds = roc_curve(np.array([0.0, 1.0, 2.0, 2.0]), np.array([1.5, 2.0]))
    >>> false, true  # 2 calls two of four and one of two, 1.5 the other one too
    (array([0.  , 0.5 , 0.5 , 0.75, 1.  ]), array([0. , 0.5, 1. , 1. , 1. ]))
    >>> thresholds
    array([inf, 2. , 1.5, 1. , 0. ])
    """
    inside, outside = to_scores(id_scores, ood_scores)
    false, true, thresholds = _counts(inside, outside)
    return RocCurve(
        _like(_begun(false.double() / len(inside), 0), id_scores),
        _like(_begun(true.double() / len(outside), 0), id_scores),
        _like(_begun(thresholds, torch.inf), id_scores),
    )


def precision_recall_curve(id_scores: Array, ood_scores: Values) -> PrecisionRecallCurve[Array]:
    """Return precisions, recalls and thresholds; the area below the steps is `average_precision`.

    Where nothing is called OOD, at recall 0, precision is 1 by convention. The last point, where everything is, has the
    share of OOD examples for its precision.

    >>> precision, recall, thresholds = precision_recall_curve(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0]))
    >>> precision, recall
    (array([1.        , 0.5       , 0.66666667, 0.5       , 0.4       ]), array([0. , 0.5, 1. , 1. , 1. ]))
    >>> thresholds
    array([inf, 2. , 1.5, 1. , 0. ])
    """
    inside, outside = to_scores(id_scores, ood_scores)
    false, true, thresholds = _counts(inside, outside)
    return PrecisionRecallCurve(
        _like(_begun(true.double() / (true + false), 1), id_scores),
        _like(_begun(true.double() / len(outside), 0), id_scores),
        _like(_begun(thresholds, torch.inf), id_scores),
    )


def balanced_threshold(id_scores: Values, ood_scores: Values) -> Scalar:
    """Return the threshold at which as large a share of OOD as of in-domain examples is told right, or nearly so.

    It is the score t that makes |TPR - TNR| least, TPR being the share of OOD scores >= t and TNR that of in-domain
    scores < t. TPR - TNR falls as t rises, so two scores at most share the least; then it is the one with the larger
    TPR + TNR, and if these are equal too the lower, which misses fewer OOD examples. Infinity is never better.

    >>> balanced_threshold(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.5, 4.0, 5.0]))  # 3/4 and 3/4
    np.float64(2.5)
    """
    inside, outside = to_scores(id_scores, ood_scores)
    false, true, thresholds = _counts(inside, outside)
    # TPR and TNR times n m are whole numbers, so that equal ones compare equal.
    hits, rejections = true * len(inside), (len(inside) - false) * len(outside)
    imbalance = (hits - rejections).abs()
    least = (imbalance == imbalance.min()).nonzero()[:, 0]
    total = (hits + rejections)[least]
    best = least[total == total.max()][-1]  # thresholds descend
    return to_scalar(thresholds[best], id_scores)
