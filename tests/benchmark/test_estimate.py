import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from greedy_ensembles.benchmark import Estimate, estimate


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
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
    with pytest.raises(ValueError, match="one seed"):
        Estimate(0.25, 0.1, 1)


def test_an_infinite_value_stays_visible():
    assert estimate([1.0, math.inf]) == Estimate(math.inf, None, 2)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="at least one seed"):
        estimate([])
