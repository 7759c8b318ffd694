from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.metrics.test_ranking import drawn, pooled, tied

from greedy_ensembles.metrics import (
    auroc,
    average_precision,
    balanced_threshold,
    precision_recall_curve,
    roc_curve,
)

distinct = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40, unique=True).map(np.array)


def check_curves(inside, outside):
    labels, scores = pooled(inside, outside)
    false, true, thresholds = roc_curve(inside, outside)
    expected = sklearn.metrics.roc_curve(labels, scores, drop_intermediate=False)
    for ours, theirs in zip((false, true, thresholds), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-15)
    assert sklearn.metrics.auc(false, true) == pytest.approx(auroc(inside, outside), abs=1e-12)

    precision, recall, thresholds = precision_recall_curve(inside, outside)
    expected = sklearn.metrics.precision_recall_curve(labels, scores)
    for ours, theirs in zip((precision, recall, thresholds[1:]), expected, strict=True):
        np.testing.assert_allclose(ours[::-1], theirs, rtol=0, atol=1e-15)
    assert thresholds[0] == np.inf
    area = (np.diff(recall) * precision[1:]).sum()
    assert area == pytest.approx(average_precision(inside, outside), abs=1e-12)


def brute_threshold(inside, outside):
    """Try every threshold that makes a difference, in exact arithmetic."""

    def merit(t):
        tpr = Fraction(int((outside >= t).sum()), len(outside))
        tnr = Fraction(int((inside < t).sum()), len(inside))
        return -abs(tpr - tnr), tpr + tnr, -t

    return max([*np.concatenate([inside, outside]), np.inf], key=merit)


@given(tied, tied)
def test_heavy_ties(inside, outside):
    check_curves(inside, outside)


@given(distinct, distinct)
def test_few_ties(inside, outside):
    check_curves(inside, outside)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("levels", [1, 20, None])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 30), (30, 1), (3000, 2000)])
def test_sizes_and_precisions(n, m, levels, dtype):
    check_curves(*drawn(n, m, levels, dtype))


def test_ood_is_positive_and_higher():
    inside, outside = np.array([0.0, 1.0]), np.array([2.0, 3.0])
    assert roc_curve(inside, outside).false_positive_rate.tolist() == [0, 0, 0, 0.5, 1]
    assert roc_curve(outside, inside).true_positive_rate.tolist() == [0, 0, 0, 0.5, 1]
    assert precision_recall_curve(inside, outside).precision.tolist() == [1, 1, 1, 2 / 3, 0.5]


# The threshold in balance


@given(tied, tied)
def test_balance_against_every_threshold_with_ties(inside, outside):
    assert balanced_threshold(inside, outside) == brute_threshold(inside, outside)


@given(distinct, distinct)
def test_balance_against_every_threshold(inside, outside):
    assert balanced_threshold(inside, outside) == brute_threshold(inside, outside)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_balance_of_small_counts(inside, outside):
    inside, outside = np.array(inside, float), np.array(outside, float)
    assert balanced_threshold(inside, outside) == brute_threshold(inside, outside)


def test_rates_that_differ_by_rounding_alone_are_equal():
    # At 2: TPR 1, TNR 1/3; at 3: TPR 0, TNR 2/3, and half the sum. As floats, the second seems the nearer.
    assert abs(1 - 1 / 3) > abs(0 - 2 / 3)
    assert balanced_threshold(np.array([1.0, 2.0, 3.0]), np.array([2.0, 2.0])) == 2


# What goes in and comes out


def test_the_kind_of_the_first_argument_comes_back():
    inside, outside = drawn(50, 30, 10)
    for curve in (roc_curve, precision_recall_curve):
        arrays = curve(inside, outside)
        tensors = curve(torch.from_numpy(inside).float(), torch.from_numpy(outside).float())
        assert all(type(part) is np.ndarray for part in curve(inside, torch.from_numpy(outside)))
        assert [part.dtype for part in arrays] == [np.float64] * 3
        assert [part.dtype for part in tensors] == [torch.float64, torch.float64, torch.float32]
        for ours, theirs in zip(arrays[:2], tensors[:2], strict=True):
            assert ours.tolist() == theirs.tolist()
    assert type(balanced_threshold(inside, outside)) is np.float64
    assert balanced_threshold(torch.from_numpy(inside), outside).item() == balanced_threshold(inside, outside)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_on_a_gpu():
    inside, outside = (torch.from_numpy(scores) for scores in drawn(3000, 2000, 50))
    for curve in (roc_curve, precision_recall_curve):
        for there, here in zip(curve(inside.cuda(), outside.cuda()), curve(inside, outside), strict=True):
            assert there.is_cuda
            # A GPU divides by a number by multiplying with its inverse, which rounds once more.
            torch.testing.assert_close(there.cpu(), here, rtol=1e-15, atol=0)
    assert balanced_threshold(inside.cuda(), outside).cpu() == balanced_threshold(inside, outside)
