import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.screening import threshold_at

SCORES = st.lists(st.floats(0, 3, allow_nan=False), min_size=1, max_size=60)


@given(SCORES, st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.25, 0.5, 0.9]))
def test_leaving_one_out_flags_no_more_than_asked_for(values, fpr):
    """The guarantee itself: of n + 1 exchangeable scores, each new to the rest in turn, at most fpr are flagged."""
    flags = 0
    for index, new in enumerate(values):
        rest = np.array(values[:index] + values[index + 1 :])
        if len(rest) + 1 < 1 / fpr:
            return  # too few for this rate
        flags += new >= threshold_at(rest, fpr)
    assert flags / len(values) <= fpr + 1e-12


@given(SCORES, st.sampled_from([0.1, 0.25, 0.5]))
def test_no_lower_threshold_would_do(values, fpr):
    """Against a loop over all candidates: one score lower, and more than (n + 1) fpr - 1 of n would be flagged."""
    scores = np.array(values)
    if len(scores) + 1 < 1 / fpr:
        return
    allowed = math.floor(round(fpr * (len(scores) + 1), 9)) - 1
    right = [math.nextafter(t, math.inf) for t in values if sum(s > t for s in values) <= allowed]
    assert threshold_at(scores, fpr) == min(right)


def test_counting_n_and_not_n_plus_one_would_flag_too_many():
    scores = np.arange(19.0)
    assert threshold_at(scores, 0.05) > 18  # of 19 none may be flagged: 1 of 20 is 5 %
    assert (scores >= threshold_at(np.arange(39.0)[:39], 0.05)).sum() == 0
    assert (np.arange(39.0) >= threshold_at(np.arange(39.0), 0.05)).sum() == 1


def test_a_share_is_the_decimal_that_was_typed():
    # 1 - 0.07 is 0.9299999999999999, and times 100 it is 92.99999999999999: its ceiling is right only by luck
    scores = np.arange(99.0)
    for percent in range(1, 100):
        flagged = (scores >= threshold_at(scores, percent / 100)).sum()
        assert flagged == percent - 1, percent


def test_equal_scores_are_not_flagged():
    assert not (np.zeros(50) >= threshold_at(np.zeros(50), 0.05)).any()


@pytest.mark.parametrize(
    ("scores", "fpr", "message"),
    [
        (np.zeros(18), 0.05, "needs 19 in-domain inputs or more to be found from, got 18"),
        (np.zeros(50), 0.0, "fpr must be finite and above 0"),
        (np.zeros(50), 1.0, "fpr must be below 1"),
        (np.array([0.0, np.nan]), 0.5, "finite"),
        (np.zeros((2, 2)), 0.5, r"shape \(n,\)"),
    ],
)
def test_bad_input_is_refused(scores, fpr, message):
    with pytest.raises(ValueError, match=message):
        threshold_at(scores, fpr)
