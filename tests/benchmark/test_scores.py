import math

import numpy as np
import pytest

from greedy_ensembles.benchmark import SCORES, Predictions, score


def by_loops(predictions, kind):
    """The definitions, one image at a time."""
    found = []
    for image in range(len(predictions)):
        rows = [[math.exp(v) for v in member[image]] for member in predictions.log_probs.tolist()]
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        total = -sum(p * math.log(p) for p in mean)
        aleatoric = sum(-sum(p * math.log(p) for p in row) for row in rows) / len(rows)
        values = {"mutual_information": total - aleatoric, "predictive_entropy": total}
        found.append({**values, "expected_entropy": aleatoric, "max_probability": 1 - max(mean)}[kind])
    return found


@pytest.mark.parametrize("kind", SCORES)
def test_against_loops(random_predictions, kind):
    predictions = random_predictions(count=20)
    scores = score(predictions, kind)
    assert scores.dtype == np.float64
    assert scores == pytest.approx(by_loops(predictions, kind), abs=1e-12)


@pytest.mark.parametrize("kind", SCORES)
def test_doubt_scores_higher_than_certainty(kind):
    """All but the expected entropy also tell members that are certain of different classes; that one must not."""
    certain, uniform = [[0.0, -50.0], [0.0, -50.0]], [[math.log(0.5)] * 2] * 2
    torn = [[0.0, -50.0], [-50.0, 0.0]]
    scores = score(Predictions("x", np.array([certain, uniform, torn], np.float32).swapaxes(0, 1)), kind)
    if kind == "mutual_information":
        assert scores == pytest.approx([0, 0, math.log(2)], abs=1e-12)
    else:
        assert scores[1] > scores[0] + 0.4
        assert (scores[2] > 0.4) == (kind != "expected_entropy")


def test_unknown_scores_are_refused(random_predictions):
    with pytest.raises(ValueError, match="did you mean 'mutual_information'"):
        score(random_predictions(), "mutual_informaton")
