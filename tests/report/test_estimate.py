import pytest

from greedy_ensembles.report.estimate import Estimate


def test_no_error_is_drawn_as_none():
    assert Estimate(0.5, None, 1).error == 0
    assert Estimate(0.5, 0.1, 2).error == 0.1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((float("nan"), None, 1), "mean must be finite"),
        ((float("inf"), None, 1), "mean must be finite"),
        ((0.5, -0.1, 2), "standard_error must be finite and at least 0"),
        ((0.5, float("nan"), 2), "standard_error must be finite"),
        ((0.5, None, 0), "seeds must be at least 1"),
        ((0.5, 0.1, 1), "standard_error of one seed must be None"),
    ],
)
def test_what_is_no_estimate(given, message):
    with pytest.raises(ValueError, match=message):
        Estimate(*given)
