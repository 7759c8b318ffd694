import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.benchmark.selection import Trial, select


def trial(strength, accuracy=0.9, error=0.01, nll=0.3, ace=0.02, seeds=3):
    return Trial(strength, Estimate(accuracy, error, seeds), Estimate(nll, error, seeds), Estimate(ace, error, seeds))


def test_the_largest_that_reaches_deep_ensembles():
    trials = [trial(3.0, 0.875), trial(0.1, 0.91), trial(None, 0.90), trial(5.0, 0.882), trial(7.0, 0.878)]
    found = select(trials)
    # The reference goes down to .89. Of .885 + .01, .92, .892 and .888 the second and third reach it.
    assert found.harmless == (0.1, 5.0)
    assert found.chosen == 5.0  # though 3, below it, did harm
    assert [each.strength for each in found.trials] == [0.1, 3.0, 5.0, 7.0]
    assert found.deep.strength is None


def test_touching_is_enough():
    assert select([trial(None, 0.5, error=0.125), trial(1.0, 0.25, error=0.125)]).chosen == 1.0
    assert select([trial(None, 0.5, error=0.125), trial(1.0, 0.2499, error=0.125)]).chosen is None


@pytest.mark.parametrize("by", ["nll", "ace"])
def test_lower_is_better_for_the_others(by):
    trials = [trial(None, **{by: 0.30}), trial(1.0, **{by: 0.05}), trial(3.0, **{by: 0.315}), trial(5.0, **{by: 0.33})]
    assert select(trials, by).harmless == (1.0, 3.0)
    assert select(trials, "accuracy").chosen == 5.0  # which is the same for all


def test_better_than_deep_ensembles_is_no_harm():
    """The paper's words, overlap of intervals, would refuse what is clearly better."""
    assert select([trial(None, 0.5), trial(1.0, 0.9)]).chosen == 1.0


def test_an_infinite_likelihood_is_harm():
    bad = Trial(1.0, Estimate(0.9, 0.01, 2), Estimate(math.inf, None, 2), Estimate(0.02, 0.01, 2))
    assert select([trial(None, seeds=2), bad], "nll").chosen is None


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 0.2)), min_size=2, max_size=6))
def test_against_the_rule_in_other_words(figures):
    (mean, error), *others = figures
    trials = [trial(None, mean, error), *(trial(float(k + 1), m, e) for k, (m, e) in enumerate(others))]
    expected = None
    for k, (m, e) in enumerate(others):
        if not m + e < mean - error:
            expected = float(k + 1)
    assert select(trials).chosen == expected


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ([trial(1.0)], "Deep Ensembles"),
        ([trial(None)], "other strengths"),
        ([trial(None), trial(None), trial(1.0)], "once"),
        ([trial(None), trial(1.0), trial(1.0)], "other strengths"),
        ([trial(None), trial(1.0, error=None, seeds=1)], "lambda_M = 1 has 1 seed; a standard error needs at least 2"),
        ([trial(None, error=None, seeds=1), trial(1.0)], "Deep Ensembles has 1 seed"),
    ],
)
def test_bad_input(trials, message):
    with pytest.raises(ValueError, match=message):
        select(trials)


def test_unknown_criteria_are_refused():
    with pytest.raises(ValueError, match="by must be one of 'accuracy', 'nll', 'ace'"):
        select([trial(None), trial(1.0)], "brier")
