"""What predictions are worth, as figures and curves: of labelled examples, and of scores of in-domain and OOD examples.

**Of labelled examples** it is how good, and how honest, their predicted probabilities are. These functions take
probabilities of shape (n, classes), for an ensemble the mean over its members, and labels of shape (n,) from 0 to
classes - 1. All is computed in double precision, and nothing is clipped or normalised: rows that are no probabilities
are refused. The predicted class is the most probable one, the first of them where several are.

**Of scores** it is how well they tell out-of-distribution examples from in-domain ones. OOD is the positive class and a
higher score means more OOD. `id_scores` and `ood_scores` are of shape (n,) and (m,).

A figure is one number: a 0-d tensor on the device of the first argument, or a numpy float64 if that is an array. Curves
are of the kind of `id_scores`, tensors on its device or arrays: rates in double precision, thresholds in that of the
scores.

Ties are handled exactly. Scores are compared in the precision they come in (single where that is half, which changes no
comparison) and counted as integers. A threshold t calls everything >= t OOD, so tied examples are called together: a
curve has one point for each distinct score, from the highest to the lowest, behind a first point at a threshold of
infinity, which calls nothing OOD. A figure needs no curve. Only OOD scores need be tried as thresholds: any other one
admits more in-domain examples than the next OOD score above it, and no more OOD ones. Hence each figure is a count of
how many scores lie on which side of each OOD score: two sorts and a search.
"""

import warnings
from numbers import Real
from typing import Generic, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.checks import check_count, check_kind
from greedy_ensembles.metrics.values import (
    Array,
    Scalar,
    Values,
    check_finite,
    check_floating,
    check_labels,
    check_probabilities,
    describe,
    like,
    to_scalar,
    to_tensor,
)


def _predictions(probs: Values, labels: Values) -> tuple[Tensor, Tensor]:
    predicted, true = to_tensor("probs", probs), to_tensor("labels", labels)
    check_floating("probs", predicted, "(n, classes)")
    if not predicted.numel():
        raise ValueError(f"probs must hold at least one example and one class, got {describe(predicted)}")
    check_labels(true, len(predicted))
    predicted, true = predicted.double(), true.to(predicted.device, torch.int64)
    check_probabilities("probs", predicted)
    low, high, classes = int(true.min()), int(true.max()), predicted.shape[1]
    if low < 0 or high >= classes:
        raise ValueError(f"labels must be from 0 to {classes - 1}, got some from {low} to {high}")
    return predicted, true


@overload
def accuracy(probs: Tensor, labels: Values) -> Tensor: ...
@overload
def accuracy(probs: np.ndarray, labels: Values) -> np.float64: ...
def accuracy(probs: Values, labels: Values) -> Scalar:
    """Return the share of examples whose predicted class is the true one.

    >>> accuracy(np.array([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5]]), np.array([0, 0, 0]))  # right, wrong, the first of two
    np.float64(0.6666666666666666)
    """
    predicted, true = _predictions(probs, labels)
    return to_scalar((predicted.argmax(dim=1) == true).double().mean(), probs)


@overload
def negative_log_likelihood(probs: Tensor, labels: Values) -> Tensor: ...
@overload
def negative_log_likelihood(probs: np.ndarray, labels: Values) -> np.float64: ...
def negative_log_likelihood(probs: Values, labels: Values) -> Scalar:
    """Return the mean of -log(probability of the true class), in nats; infinite, with a warning, where one is 0.

    >>> negative_log_likelihood(torch.tensor([[0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0]))  # 1.5 log 2
    tensor(1.0397, dtype=torch.float64)
    """
    predicted, true = _predictions(probs, labels)
    of_truth = predicted.gather(1, true[:, None])
    if impossible := int((of_truth == 0).sum()):
        message = f"{impossible} of {len(true)} labels have probability 0: the negative log-likelihood is infinite"
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    return to_scalar(-of_truth.log().mean(), probs)


@overload
def brier_score(probs: Tensor, labels: Values) -> Tensor: ...
@overload
def brier_score(probs: np.ndarray, labels: Values) -> np.float64: ...
def brier_score(probs: Values, labels: Values) -> Scalar:
    """Return the mean over examples of the squared error summed over classes: 0 to 2, two classes not halved.

    >>> brier_score(np.array([[0.5, 0.5], [1.0, 0.0]]), np.array([0, 1]))  # (1/4 + 1/4) and (1 + 1), halved for n = 2
    np.float64(1.25)
    """
    predicted, true = _predictions(probs, labels)
    truth = torch.nn.functional.one_hot(true, predicted.shape[1])
    return to_scalar((predicted - truth).square().sum(dim=1).mean(), probs)


@overload
def adaptive_calibration_error(probs: Tensor, labels: Values, bins: int = 30) -> Tensor: ...
@overload
def adaptive_calibration_error(probs: np.ndarray, labels: Values, bins: int = 30) -> np.float64: ...
def adaptive_calibration_error(probs: Values, labels: Values, bins: int = 30) -> Scalar:
    """Return the class-wise calibration error over ranges of equal count (Nixon et al. 2019).

    With K classes and R = `bins` ranges it is 1/(K R) times the sum over classes k and ranges r of
    |acc(r, k) - conf(r, k)|: each class cuts the examples, in the order of its probability, into R ranges; acc is the
    share of the class in a range, conf its mean probability there.

    - n not divisible by R: the first n mod R ranges, those of the lowest probabilities, hold one example more. Fewer
      examples than ranges: each is a range of its own, and R is n.
    - Ties over an edge between ranges: each side takes as many of the tied examples as it has room for, and each of
      these counts as the mean of the tied examples' labels. So the order of the examples never matters, and ranges
      keep their counts even where most probabilities are exactly 0 or 1.

    Args:
        probs: of an ensemble the mean over its members, (n, classes).
        labels: (n,), from 0 to classes - 1.
        bins: R, how many ranges a class has.

    Class 0 below has ranges of probability 1/4, 1/4 with none of it, and 1/2, 1 with all; class 1 mirrors it:

    >>> probs = np.array([[0.25, 0.75], [0.25, 0.75], [0.5, 0.5], [1.0, 0.0]])
    >>> adaptive_calibration_error(probs, np.array([1, 1, 0, 0]), bins=2)  # |0 - 1/4| and |1 - 3/4|
    np.float64(0.25)
    """
    check_count("bins", bins, least=1)
    predicted, true = _predictions(probs, labels)
    # Class by class: memory then stays that of the input, and an error is a mean over ranges of a mean over examples.
    errors = [
        _calibration_gap(predicted[:, k].contiguous(), true == k, min(bins, len(true)))
        for k in range(predicted.shape[1])
    ]
    return to_scalar(torch.stack(errors).mean(), probs)


def _calibration_gap(confidence: Tensor, hit: Tensor, ranges: int) -> Tensor:
    """Return the mean over ranges of equal count of |share of hits - mean confidence|."""
    confidence, order = confidence.sort()
    confidence = confidence.contiguous()
    counted = torch.nn.functional.pad(hit[order].cumsum(dim=0), (1, 0))  # hits among the first 0, 1, ..., n
    first, end = (torch.searchsorted(confidence.detach(), confidence.detach(), right=right) for right in (False, True))
    share = (counted[end] - counted[first]).double() / (end - first)  # of hits, among all tied with each example
    return torch.stack([part.mean().abs() for part in (share - confidence).tensor_split(ranges)]).mean()


@overload
def expected_calibration_error(probs: Tensor, labels: Values, bins: int = 15) -> Tensor: ...
@overload
def expected_calibration_error(probs: np.ndarray, labels: Values, bins: int = 15) -> np.float64: ...
def expected_calibration_error(probs: Values, labels: Values, bins: int = 15) -> Scalar:
    """Return the mean over examples of |accuracy - confidence| of their bin (Guo et al. 2017).

    Confidence is the probability of the predicted class. Bin r of R = `bins` holds those above (r - 1)/R and up to
    r/R, so a confidence on an edge belongs to the bin below it; an empty bin counts nothing.

    Args:
        probs: of an ensemble the mean over its members, (n, classes).
        labels: (n,), from 0 to classes - 1.
        bins: R, how many bins of equal width.

    >>> probs = np.array([[0.625, 0.375], [0.125, 0.875], [0.75, 0.25]])
    >>> expected_calibration_error(probs, np.array([0, 1, 1]), bins=4)  # |1 - (5/8 + 3/4)| and |1 - 7/8|, over 3
    np.float64(0.16666666666666666)
    """
    check_count("bins", bins, least=1)
    predicted, true = _predictions(probs, labels)
    confidence, guess = predicted.max(dim=1)
    edges = torch.arange(1, bins, dtype=torch.float64, device=predicted.device) / bins
    gaps = (guess == true).double() - confidence
    per_bin = gaps.new_zeros(bins).index_add(0, torch.bucketize(confidence, edges), gaps)
    return to_scalar(per_bin.abs().sum() / len(true), probs)


def _as_scores(id_scores: Values, ood_scores: Values) -> tuple[Tensor, Tensor]:
    """Return both as tensors of one precision on the device of the first; refuse what cannot be ranked."""
    inside, outside = to_tensor("id_scores", id_scores).detach(), to_tensor("ood_scores", ood_scores).detach()
    for name, scores in (("id_scores", inside), ("ood_scores", outside)):
        check_finite(name, scores, "(n,)")
        if not scores.numel():
            raise ValueError(f"{name} must hold at least one score: without it there is nothing to tell apart")
    common = torch.promote_types(torch.promote_types(inside.dtype, outside.dtype), torch.float32)
    return inside.to(common), outside.to(inside.device, common)


def _sorted(scores: Tensor) -> Tensor:
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
    inside, outside = map(_sorted, _as_scores(id_scores, ood_scores))
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
    inside, outside = map(_sorted, _as_scores(id_scores, ood_scores))
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
    inside, outside = _as_scores(id_scores, ood_scores)
    rates = np.arange(1, len(outside) + 1) / len(outside)  # at the scores of OOD examples, from the highest
    threshold = _sorted(outside).flip(0)[int(np.searchsorted(rates, tpr))]
    return to_scalar((inside >= threshold).sum().double() / len(inside), id_scores)


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
    inside, outside = map(_sorted, _as_scores(id_scores, ood_scores))
    thresholds = torch.unique_consecutive(_sorted(torch.cat([inside, outside]))).flip(0)
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
