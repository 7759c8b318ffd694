import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from greedy_ensembles.metrics import (
    accuracy,
    adaptive_calibration_error,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)

METRICS = [accuracy, negative_log_likelihood, brier_score, adaptive_calibration_error, expected_calibration_error]
DTYPES = [np.float16, np.float32, np.float64]
SIZES = [(2, 2), (2, 10), (29, 3), (30, 2), (31, 2), (100, 10), (1000, 3)]


def drawn(n, classes, seed=0, dtype=np.float64, levels=None):
    """Return probabilities and labels; with `levels`, probabilities are multiples of 1/levels, hence tied."""
    rng = np.random.default_rng(seed)
    if levels is None:
        logits = rng.normal(size=(n, classes))
        probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    else:
        probs = rng.multinomial(levels, np.full(classes, 1 / classes), size=n) / levels
    return probs.astype(dtype), rng.integers(classes, size=n)


def brute_ace(probs, labels, bins):
    """Follow the definition by loops, with a tied example standing for all that are tied with it."""
    n, classes = probs.shape
    gaps = []
    for k in range(classes):
        column = [float(p) for p in probs[:, k]]
        hits = [np.mean([labels[j] == k for j in range(n) if column[j] == column[i]]) for i in range(n)]
        for part in np.array_split(sorted(range(n), key=column.__getitem__), min(bins, n)):
            gaps.append(abs(np.mean([hits[i] for i in part]) - np.mean([column[i] for i in part])))
    return np.mean(gaps)


def brute_ece(probs, labels, bins):
    """Follow the definition by loops over bins and examples."""
    n, error = len(labels), 0.0
    top = [max(map(float, row)) for row in probs]
    right = [list(row).index(max(row)) == label for row, label in zip(probs, labels, strict=True)]
    for r in range(bins):
        inside = [i for i in range(n) if r / bins < top[i] <= (r + 1) / bins]
        if inside:
            gap = abs(np.mean([right[i] for i in inside]) - np.mean([top[i] for i in inside]))
            error += len(inside) / n * gap
    return error


@given(st.integers(0, 1000), st.integers(1, 40), st.integers(2, 5))
def test_against_scikit_learn(seed, n, classes):
    probs, labels = drawn(n, classes, seed)
    every = list(range(classes))
    assert accuracy(probs, labels) == pytest.approx(accuracy_score(labels, probs.argmax(1)), abs=1e-15)
    assert negative_log_likelihood(probs, labels) == pytest.approx(log_loss(labels, probs, labels=every), abs=1e-12)
    brier = brier_score_loss(labels, probs, labels=every, scale_by_half=False)
    assert brier_score(probs, labels) == pytest.approx(brier, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "classes"), SIZES)
def test_sizes_and_dtypes(n, classes, dtype):
    probs, labels = drawn(n, classes, dtype=dtype)
    assert probs.dtype == dtype
    wide = probs.astype(np.float64)
    of_truth = wide[np.arange(n), labels]
    assert accuracy(probs, labels) == np.mean(wide.argmax(1) == labels)
    assert negative_log_likelihood(probs, labels) == pytest.approx(-np.log(of_truth).mean(), abs=1e-12)
    assert brier_score(probs, labels) == pytest.approx(((wide - np.eye(classes)[labels]) ** 2).sum(1).mean(), abs=1e-12)
    assert adaptive_calibration_error(probs, labels) == pytest.approx(brute_ace(wide, labels, 30), abs=1e-12)
    assert expected_calibration_error(probs, labels) == pytest.approx(brute_ece(wide, labels, 15), abs=1e-12)


# Calibration


@given(
    st.integers(0, 1000), st.integers(1, 40), st.integers(2, 4), st.integers(1, 50), st.sampled_from([2, 4, 20, None])
)
def test_calibration_errors_with_heavy_ties(seed, n, classes, bins, levels):
    probs, labels = drawn(n, classes, seed, levels=levels)
    assert adaptive_calibration_error(probs, labels, bins) == pytest.approx(brute_ace(probs, labels, bins), abs=1e-12)
    assert expected_calibration_error(probs, labels, bins) == pytest.approx(brute_ece(probs, labels, bins), abs=1e-12)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 4), st.sampled_from([1, 2, 3]))
def test_shared_ties_are_the_mean_over_every_order_of_the_examples(seed, n, bins, levels):
    probs, labels = drawn(n, 2, seed, levels=levels)
    gaps = []
    for k in range(2):
        accuracies, confidences = [], []
        for order in itertools.permutations(range(n)):
            parts = np.array_split(sorted(order, key=lambda i: probs[i, k]), min(bins, n))
            accuracies.append([np.mean(labels[part] == k) for part in parts])
            confidences.append([np.mean(probs[part, k]) for part in parts])
        gaps.append(np.abs(np.mean(accuracies, axis=0) - np.mean(confidences, axis=0)))
    assert adaptive_calibration_error(probs, labels, bins) == pytest.approx(np.mean(gaps), abs=1e-12)


def test_the_first_ranges_take_what_is_left_over():
    first = np.array([0.1, 0.2, 0.3, 0.4, 0.9])
    probs, labels = np.stack([first, 1 - first], axis=1), np.array([1, 1, 1, 0, 0])
    of_zero = abs(0 - 0.2) + abs(1 - 0.65)  # 0.1 0.2 0.3 | 0.4 0.9
    of_one = abs(1 / 3 - (0.1 + 0.6 + 0.7) / 3) + abs(1 - 0.85)  # 0.1 0.6 0.7 | 0.8 0.9
    assert adaptive_calibration_error(probs, labels, bins=2) == pytest.approx((of_zero + of_one) / 4, abs=1e-12)


def test_predictions_that_are_all_equal():
    probs, labels = np.full((90, 2), 0.5), np.r_[np.zeros(60), np.ones(30)].astype(int)
    assert adaptive_calibration_error(probs, labels) == pytest.approx(1 / 6, abs=1e-12)  # 2/3 and 1/3, claimed: 1/2
    assert expected_calibration_error(probs, labels) == pytest.approx(1 / 6, abs=1e-12)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    probs, labels = np.array([[0.75, 0.25], [0.7, 0.3], [0.8, 0.2]]), np.array([1, 0, 0])
    assert expected_calibration_error(probs, labels, bins=4) == pytest.approx((0.45 + 0.2) / 3, abs=1e-12)
    on_the_other_side = (abs(1 - 0.7) + abs(1 - 0.75 - 0.8)) / 3
    assert expected_calibration_error(probs, labels, bins=4) != pytest.approx(on_the_other_side, abs=0.01)


# Plausible wrong versions


def test_not_ties_in_the_order_they_came():
    probs, labels = np.full((4, 2), 0.5), np.array([0, 0, 1, 1])  # cut as they came: all of class 0, then none
    assert adaptive_calibration_error(probs, labels, bins=2) == 0


def test_nothing_is_clipped():
    probs = np.array([[1e-300, 1.0], [0.5, 0.5]])
    labels = np.array([0, 1])
    assert negative_log_likelihood(probs, labels) == pytest.approx((300 * math.log(10) + math.log(2)) / 2)
    assert log_loss(labels, probs) < 20  # which clips at the precision of the input


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_probability_zero_is_infinite_and_says_so(kind):
    probs, labels = kind([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]]), kind([0, 1, 0])
    with pytest.warns(RuntimeWarning, match="1 of 3 labels have probability 0") as caught:
        assert negative_log_likelihood(probs, labels) == math.inf
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert brier_score(probs, labels) == pytest.approx(2.5 / 3)  # the others have no trouble with it
        assert negative_log_likelihood(probs, kind([1, 1, 0])) == pytest.approx(math.log(2) / 3)


def test_equally_probable_classes_go_to_the_first():
    for dtype in (torch.float16, torch.float32, torch.float64):
        probs = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], dtype=dtype)
        assert accuracy(probs, torch.tensor([0, 1])) == 1
        assert expected_calibration_error(probs, torch.tensor([0, 1])) == 0.5


# What goes in and comes out


@pytest.mark.parametrize("metric", METRICS)
def test_the_kind_of_the_probabilities_comes_back(metric):
    probs, labels = drawn(40, 3)
    expected = metric(probs, labels)
    assert type(expected) is np.float64
    value = metric(torch.from_numpy(probs), torch.from_numpy(labels))
    assert (value.shape, value.dtype, value.device.type) == ((), torch.float64, "cpu")
    assert value.item() == expected
    assert metric(torch.from_numpy(probs), labels).item() == expected
    assert type(metric(probs, torch.from_numpy(labels))) is np.float64
    for dtype in (np.uint8, np.int8, np.int32, np.uint64):
        assert metric(probs, labels.astype(dtype)) == expected
    half = torch.from_numpy(probs).bfloat16()
    assert metric(half, torch.from_numpy(labels)) == metric(half.double(), torch.from_numpy(labels))


@pytest.mark.parametrize("metric", METRICS[1:])
def test_gradients_pass_where_there_are_any(metric):
    probs, labels = (torch.from_numpy(values) for values in drawn(40, 3))
    metric(probs.requires_grad_(), labels).backward()
    assert probs.grad.isfinite().all()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 1, 2]), "labels must be from 0 to 1, got some from 0 to 2"),
        (np.eye(3, 2, dtype=int), r"labels must be whole numbers of shape \(3,\)"),
    ],
)
def test_labels_that_are_none_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        accuracy(np.full((3, 2), 0.5), labels)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("levels", [10, None])
def test_on_a_gpu(metric, levels):
    probs, labels = (torch.from_numpy(values) for values in drawn(3000, 5, levels=levels))
    if levels:  # no zero, of which the likelihood would warn
        probs = 0.5 * probs + 0.1
    value = metric(probs.cuda(), labels.cuda())
    assert value.is_cuda
    assert value.item() == pytest.approx(metric(probs, labels).item(), abs=1e-12)
