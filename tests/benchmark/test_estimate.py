import math

import numpy as np
import pytest
from hypothesis import given as cases
from hypothesis import strategies as st
from scipy import stats

from greedy_ensembles.benchmark import Estimate, estimate


@cases(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_mean_and_standard_error_are_those_of_scipy(values):
    found = estimate(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.standard_error == pytest.approx(stats.sem(values), abs=1e-9)
    assert found.seeds == len(values)


def test_by_hand():
    # The deviations are -1, 0, 1: variance (n - 1) is 1, and n is 3. With n below the fraction it would be 0.471.
    assert estimate([1.0, 2.0, 3.0]).standard_error == pytest.approx(1 / math.sqrt(3))


def test_one_seed_has_no_standard_error():
    assert estimate([0.25]) == Estimate(0.25, None, 1)
    assert estimate([0.25]).error == 0.0
    assert Estimate(0.5, 0.1, 2).error == 0.1


def test_an_infinite_value_stays_visible():
    assert estimate([1.0, math.inf]) == Estimate(math.inf, None, 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((math.nan, None, 1), "mean must be a number"),
        ((0.5, -0.1, 2), "standard_error must be finite and at least 0"),
        ((0.5, math.nan, 2), "standard_error must be finite"),
        ((0.5, None, 0), "seeds must be at least 1"),
        ((0.5, 0.1, 1), "standard_error of one seed must be None"),
    ],
)
def test_what_is_no_estimate(given, message):
    with pytest.raises(ValueError, match=message):
        Estimate(*given)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="at least one seed"):
        estimate([])
