import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from greedy_ensembles import metrics
from greedy_ensembles.metrics import auroc, average_precision, fpr_at_tpr

METRICS = [auroc, average_precision, fpr_at_tpr]
DTYPES = [np.float16, np.float32, np.float64]

few_values = st.sampled_from([-1.0, -0.0, 0.0, 1e-300, 0.25, 0.5, 3.0, 1e300])
tied = st.lists(few_values, min_size=1, max_size=40).map(np.array)


def pooled(inside, outside):
    return np.r_[np.zeros(len(inside)), np.ones(len(outside))], np.r_[inside, outside].astype(np.float64)


def brute_fpr(inside, outside, tpr=0.95):
    """Try every threshold that makes a difference."""
    rates = [
        (np.mean(inside >= t), np.mean(outside >= t)) for t in [*np.unique(np.concatenate([inside, outside])), np.inf]
    ]
    return min(false for false, true in rates if true >= tpr)


def drawn(n, m, levels, dtype=np.float64, seed=0):
    """Return overlapping scores with so many distinct values at most."""
    rng = np.random.default_rng(seed)
    inside, outside = rng.beta(2, 4, n), rng.beta(3, 3, m)
    if levels:
        inside, outside = np.floor(inside * levels) / levels, np.floor(outside * levels) / levels
    return inside.astype(dtype), outside.astype(dtype)


def check_all(inside, outside):
    labels, scores = pooled(inside, outside)
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(inside, outside) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
    assert fpr_at_tpr(inside, outside) == brute_fpr(inside, outside)


@given(tied, tied)
def test_heavy_ties_against_scikit_learn_and_every_threshold(inside, outside):
    check_all(inside, outside)


@given(tied, tied, st.floats(0.01, 1))
def test_other_rates(inside, outside, tpr):
    assert fpr_at_tpr(inside, outside, tpr=tpr) == brute_fpr(inside, outside, tpr)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1, 2, 30, None])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 1), (1, 2), (19, 20), (20, 21), (300, 5), (5, 300), (2000, 2000)])
def test_sizes_ties_and_dtypes(n, m, levels, dtype):
    check_all(*drawn(n, m, levels, dtype))


@pytest.mark.parametrize("levels", [3, 1000, None])
def test_a_million_scores(levels):
    inside, outside = drawn(600_000, 400_000, levels, np.float32)
    labels, scores = pooled(inside, outside)
    assert auroc(inside, outside) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert average_precision(inside, outside) == pytest.approx(average_precision_score(labels, scores), abs=1e-10)
    enough = np.sort(outside)[-380_000]  # 95 % of 400,000
    assert fpr_at_tpr(inside, outside) == np.mean(inside >= enough)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 1), (7, 20), (500_000, 250_000)])
def test_scores_that_are_all_equal_say_nothing(n, m):
    inside, outside = np.full(n, 0.3), np.full(m, 0.3)
    assert auroc(inside, outside) == 0.5
    assert average_precision(inside, outside) == pytest.approx(m / (n + m), abs=1e-15)
    assert fpr_at_tpr(inside, outside) == 1.0


def test_perfect_scores_and_their_opposite():
    low, high = np.linspace(0, 1, 50), np.linspace(2, 3, 30)
    assert [metric(low, high) for metric in METRICS] == [1, 1, 0]
    assert auroc(high, low) == 0  # a higher score must mean more OOD
    assert fpr_at_tpr(high, low) == 1


def test_half_precision_makes_the_ties_and_nothing_else_does():
    inside, outside = drawn(3000, 2000, None)
    for metric in METRICS:
        half = [scores.astype(np.float16) for scores in (inside, outside)]
        assert metric(*half) == metric(*(scores.astype(np.float64) for scores in half))
        assert metric(half[0], outside) == metric(half[0].astype(np.float64), outside)  # of two precisions


# Plausible wrong versions


def test_not_the_threshold_that_stays_below_the_rate():
    inside, outside = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 2.5, 2.6, 2.7])  # 3 of 4 are not 95 %
    assert fpr_at_tpr(inside, outside) == 0.75
    assert fpr_at_tpr(inside, outside, tpr=0.75) == 0.25


def test_a_rate_met_exactly_is_met():
    inside, outside = np.zeros(1), np.r_[0.0, np.ones(19)]
    assert fpr_at_tpr(inside, outside) == 0  # 19 of 20 are 95 %
    for m in range(1, 400):  # 0.95 m and the like round to either side of the whole number
        for count in {1, max(1, (95 * m) // 100), m}:
            outside = np.arange(m)[::-1].astype(float)
            inside = outside
            assert fpr_at_tpr(inside, outside, tpr=count / m) == count / m


def test_not_ranked_in_a_precision_that_ties_what_differs():
    inside, outside = np.array([1.0]), np.array([1.0 + 1e-12])
    assert auroc(inside, outside) == 1


# What goes in and comes out


@pytest.mark.parametrize("metric", METRICS)
def test_the_kind_of_the_first_argument_comes_back(metric):
    inside, outside = drawn(100, 50, 10)
    expected = metric(inside, outside)
    assert type(expected) is np.float64
    for dtype in (torch.float32, torch.float64):
        value = metric(torch.from_numpy(inside).to(dtype), torch.from_numpy(outside).to(dtype))
        assert value.shape == ()
        assert value.dtype == torch.float64
        assert value.device.type == "cpu"
    assert metric(torch.from_numpy(inside), outside).item() == expected
    assert type(metric(inside, torch.from_numpy(outside))) is np.float64
    bfloat = [torch.from_numpy(scores).bfloat16() for scores in (inside, outside)]
    assert metric(*bfloat) == metric(*(scores.double() for scores in bfloat))


CURVES = [metrics.roc_curve, metrics.precision_recall_curve, metrics.balanced_threshold]


@pytest.mark.parametrize("metric", [*METRICS, *CURVES])
def test_nothing_given_is_changed(metric):
    inside, outside = (torch.from_numpy(scores) for scores in drawn(100, 50, None))
    before = inside.clone(), outside.clone()
    metric(inside.requires_grad_(), outside.requires_grad_())
    assert torch.equal(inside, before[0])
    assert torch.equal(outside, before[1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_on_a_gpu(metric, dtype):
    inside, outside = (torch.from_numpy(scores).to(dtype) for scores in drawn(3000, 2000, 50))
    value = metric(inside.cuda(), outside.cuda())
    assert value.is_cuda
    assert value.item() == pytest.approx(metric(inside, outside).item(), abs=1e-14)
    assert metric(inside.cuda(), outside).is_cuda


def test_the_second_is_the_one_named():
    with pytest.raises(ValueError, match="ood_scores must be finite, got 2 that"):
        auroc(np.ones(3), np.array([np.nan, 1.0, np.inf]))
