"""How good, and how honest, the predicted probabilities of labelled examples are.

All take probabilities of shape (n, classes), for an ensemble the mean over its members, and labels of shape (n,) from
0 to classes - 1. The result is one number: a 0-d tensor on the device of `probs`, or a numpy float64 if that is an
array. All is computed in double precision, and nothing is clipped or normalised: rows that are no probabilities are
refused. The predicted class is the most probable one, the first of them where several are.
"""

import warnings
from typing import overload

import numpy as np
import torch
from torch import Tensor

from greedy_ensembles.checks import check_count
from greedy_ensembles.metrics.values import (
    Scalar,
    Values,
    check_floating,
    check_probabilities,
    describe,
    to_scalar,
    to_tensor,
)


def _predictions(probs: Values, labels: Values) -> tuple[Tensor, Tensor]:
    predicted, true = to_tensor("probs", probs), to_tensor("labels", labels)
    check_floating("probs", predicted, "(n, classes)")
    if not predicted.numel():
        raise ValueError(f"probs must hold at least one example and one class, got {describe(predicted)}")
    if true.shape != predicted.shape[:1] or true.is_floating_point() or true.is_complex():
        raise ValueError(
            f"labels must be whole numbers of shape ({len(predicted)},), one a row of probs; got {describe(true)}"
        )
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
