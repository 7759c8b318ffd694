"""The rule by which the default p* is chosen, on made-up figures."""

import pytest

from greedy_ensembles.paper.studies.default_p_star import Candidate, choose

DEEP = [0.92, 0.92, 0.92]


def candidate(*aucs, accuracy=0.92, cost=1.0):
    return Candidate(aucs, [accuracy] * len(aucs), cost)


def test_the_largest_mean_wins_where_it_is_clear():
    found = choose({"a": candidate(0.90, 0.91, 0.92), "b": candidate(0.95, 0.96, 0.97, cost=9.0)}, DEEP)
    assert found == "b"


def test_within_one_standard_error_of_the_best_the_cheaper_wins():
    best = candidate(0.95, 0.96, 0.97, cost=9.0)  # mean .96, standard error .0058
    assert choose({"near": candidate(0.955, 0.955, 0.955), "best": best}, DEEP) == "near"
    assert choose({"far": candidate(0.95, 0.95, 0.95), "best": best}, DEEP) == "best"


def test_what_loses_accuracy_is_out_however_good_it_is():
    good = candidate(0.99, 0.99, 0.99, accuracy=0.9179)
    assert choose({"harmless": candidate(0.9, 0.9, 0.9, accuracy=0.9181), "harmful": good}, DEEP) == "harmless"
    with pytest.raises(ValueError, match="every candidate loses"):
        choose({"harmful": good}, DEEP)
