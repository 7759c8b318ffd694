"""How well a score tells out-of-distribution examples from in-domain ones: figures, curves, and a threshold.

OOD is the positive class and a higher score means more OOD. `id_scores` and `ood_scores` are of shape (n,) and (m,).
A figure is one number: a 0-d tensor on the device of `id_scores`, or a numpy float64 if that is an array. Curves are of
the kind of `id_scores`, tensors on its device or arrays: rates in double precision, thresholds in that of the scores.

Ties are handled exactly. Scores are compared in the precision they come in (single where that is half, which changes no
comparison) and counted as integers. A threshold t calls everything >= t OOD, so tied examples are called together: a
curve has one point for each distinct score, from the highest to the lowest, behind a first point at a threshold of
infinity, which calls nothing OOD. A figure needs no curve. Only OOD scores need be tried as thresholds: any other one
admits more in-domain examples than the next OOD score above it, and no more OOD ones. Hence each figure is a count of
how many scores lie on which side of each OOD score: two sorts and a search.
"""

import math
from numbers import Real
from typing import Generic, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.checks import check_kind
from greedy_ensembles.metrics.values import Array, Scalar, Values, check_finite, like, to_scalar, to_tensor


def to_scores(id_scores: Values, ood_scores: Values) -> tuple[Tensor, Tensor]:
    """Return both as tensors of one precision on the device of the first; refuse what cannot be ranked."""
    inside, outside = to_tensor("id_scores", id_scores).detach(), to_tensor("ood_scores", ood_scores).detach()
    for name, scores in (("id_scores", inside), ("ood_scores", outside)):
        check_finite(name, scores, "(n,)")
        if not scores.numel():
            raise ValueError(f"{name} must hold at least one score: without it there is nothing to tell apart")
    common = torch.promote_types(torch.promote_types(inside.dtype, outside.dtype), torch.float32)
    return inside.to(common), outside.to(inside.device, common)


def sort_scores(scores: Tensor) -> Tensor:
    """Return the scores in ascending order."""
    # On the CPU by numpy, which sorts values alone: torch.sort carries indices along, at two to three times the cost.
    return torch.from_numpy(np.sort(scores.numpy())) if scores.device.type == "cpu" else scores.sort().values


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

    Args:
        id_scores: of in-domain examples, (n,).
        ood_scores: of OOD examples, (m,); higher means more OOD.
        tpr: the share of OOD examples that must be found, above 0 and at most 1.

    >>> fpr_at_tpr(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.0]))  # 1.5 is needed, and one of three reaches it
    np.float64(0.3333333333333333)
    >>> fpr_at_tpr(np.array([0.0, 1.0, 2.0]), np.array([1.5, 2.5]), tpr=0.5)  # 2.5 will do, and none reaches it
    np.float64(0.0)
    """
    check_kind("tpr", tpr, Real, "a number")
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


def _counts(id_scores: Values, ood_scores: Values) -> tuple[Tensor, Tensor, Tensor]:
    """Return false positives, true positives and thresholds: infinity, then each distinct score from above."""
    inside, outside = map(sort_scores, to_scores(id_scores, ood_scores))
    thresholds = torch.unique_consecutive(sort_scores(torch.cat([inside, outside]))).flip(0)
    thresholds = torch.cat([thresholds.new_tensor([torch.inf]), thresholds])
    false, true = (len(scores) - torch.searchsorted(scores, thresholds) for scores in (inside, outside))
    return false, true, thresholds


def roc_curve(id_scores: Array, ood_scores: Values) -> RocCurve[Array]:
    """Return false-positive rates, true-positive rates and thresholds; the area below is `auroc`.

    >>> false, true, thresholds = roc_curve(np.array([0.0, 1.0, 2.0, 2.0]), np.array([1.5, 2.0]))
    >>> false, true  # 2 calls two of four and one of two, 1.5 the other one too
    (array([0.  , 0.5 , 0.5 , 0.75, 1.  ]), array([0. , 0.5, 1. , 1. , 1. ]))
    >>> thresholds
    array([inf, 2. , 1.5, 1. , 0. ])
    """
    false, true, thresholds = _counts(id_scores, ood_scores)
    fpr, tpr = false.double() / false[-1], true.double() / true[-1]  # the lowest threshold calls everything OOD
    return RocCurve(*(like(values, id_scores) for values in (fpr, tpr, thresholds)))


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
    false, true, thresholds = _counts(id_scores, ood_scores)
    precision, recall = true.double() / (true + false), true.double() / true[-1]
    precision[0] = 1
    return PrecisionRecallCurve(*(like(values, id_scores) for values in (precision, recall, thresholds)))


def balanced_threshold(id_scores: Values, ood_scores: Values) -> Scalar:
    """Return the threshold at which as large a share of OOD as of in-domain examples is told right, or nearly so.

    It is the score t that makes |TPR - TNR| least, TPR being the share of OOD scores >= t and TNR that of in-domain
    scores < t. TPR - TNR falls as t rises, so two scores at most share the least; then it is the one with the larger
    TPR + TNR, and if these are equal too the lower, which misses fewer OOD examples. Infinity is never better.

    >>> balanced_threshold(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.5, 4.0, 5.0]))  # 3/4 and 3/4
    np.float64(2.5)
    """
    false, true, thresholds = _counts(id_scores, ood_scores)
    # TPR and TNR times n m are whole numbers, so that equal ones compare equal.
    hits, rejections = true * false[-1], (false[-1] - false) * true[-1]
    imbalance = (hits - rejections).abs()
    least = (imbalance == imbalance.min()).nonzero()[:, 0]
    total = (hits + rejections)[least]
    best = least[total == total.max()][-1]  # thresholds descend
    return to_scalar(thresholds[best], id_scores)
