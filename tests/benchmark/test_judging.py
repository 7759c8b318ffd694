import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

import greedy_ensembles as ge
from greedy_ensembles.benchmark import judge_probabilities, judge_scores

RNG = np.random.default_rng(0)
INSIDE, LABELS = RNG.dirichlet([0.3] * 3, (4, 50)), RNG.integers(0, 3, 50)
OUTSIDE = {"noise": RNG.dirichlet([2.0] * 3, (4, 20)), "far": RNG.dirichlet([1.0] * 3, (4, 30))}


def test_probabilities_of_anything_have_all_figures_that_probabilities_allow():
    before = INSIDE.copy()
    found = judge_probabilities("mine", INSIDE, LABELS, OUTSIDE)
    assert found.in_domain.accuracy == accuracy_score(LABELS, INSIDE.mean(0).argmax(1))
    assert found.in_domain.nll == pytest.approx(log_loss(LABELS, INSIDE.mean(0), labels=[0, 1, 2]), rel=1e-6)
    assert min(found.in_domain.member_accuracies) == min(accuracy_score(LABELS, each.argmax(1)) for each in INSIDE)
    assert set(found.known_scores) == {name for name, needs in ge.benchmark.SCORES.items() if not needs}
    for result in found.ood:
        scores = [ge.metrics.predictive_entropy(part) for part in (INSIDE, OUTSIDE[result.name])]
        truth = np.repeat([0, 1], [50, result.images])
        assert result.auc == pytest.approx(roc_auc_score(truth, np.concatenate(scores)))
    assert (before == INSIDE).all()  # what is given is not ours
    tensors = {name: torch.from_numpy(probs) for name, probs in OUTSIDE.items()}
    assert judge_probabilities("mine", torch.from_numpy(INSIDE), torch.from_numpy(LABELS), tensors) == found
    halves = {name: probs.bfloat16() for name, probs in tensors.items()}
    rounded = judge_probabilities("mine", torch.from_numpy(INSIDE).bfloat16(), LABELS, halves)
    assert rounded.ood[0].auc == pytest.approx(found.ood[0].auc, abs=0.01)


def test_one_model_needs_no_axis_of_members():
    found = judge_probabilities("one", INSIDE[0], LABELS, {"far": OUTSIDE["far"][0]}, score="max_probability")
    assert found.members == 1
    scores = np.concatenate([-INSIDE[0].max(1), -OUTSIDE["far"][0].max(1)])
    assert found.ood[0].auc == pytest.approx(roc_auc_score(np.repeat([0, 1], [50, 30]), scores))


def test_rows_that_rounding_left_beside_1_are_brought_back():
    off = np.random.default_rng(1).uniform(0.992, 1.008, (4, 50, 1))
    for ours, theirs in ((INSIDE * off, INSIDE), (INSIDE[0] * off[0], INSIDE[0])):
        ood = {"noise": ours[..., :20, :]}, {"noise": theirs[..., :20, :]}
        found, expected = (judge_probabilities("x", *one) for one in ((ours, LABELS, ood[0]), (theirs, LABELS, ood[1])))
        assert found.in_domain.nll == pytest.approx(expected.in_domain.nll, rel=1e-6)
        assert found.in_domain.brier == pytest.approx(expected.in_domain.brier, rel=1e-6)
        assert found.ood[0].auc == expected.ood[0].auc


def test_scores_of_anything_have_figures_of_detection_alone():
    found = judge_scores("norm", [0.1, 0.4, 0.2], {"far": torch.tensor([0.3, 0.5])})
    assert (found.score, found.known_scores, found.members) == ("norm", ("norm",), 1)
    assert found.ood[0].auc == pytest.approx(5 / 6)
    assert np.isnan([found.in_domain.accuracy, found.in_domain.nll]).all()
    assert found.in_domain.member_accuracies == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"labels": LABELS[:9]}, r"labels .*\(50,\), one a row; got .*\(9,\)"),
        ({"ood": {"x": INSIDE[:2]}}, "mine: probs of x are of 2 members"),
        (
            {"probs": INSIDE[0, 0]},
            r"mine: probs must be of shape \(members, n, classes\) or \(n, classes\), got \(3,\)",
        ),
        ({"ood": {"x": INSIDE[:, :0]}}, r"probs of x must be of shape .* got \(4, 0, 3\)"),
        ({"score": "knn"}, "^score='knn' needs features, and mine has probabilities alone"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes, told):
    with pytest.raises(ValueError, match=told):
        judge_probabilities(**{"name": "mine", "probs": INSIDE, "labels": LABELS, "ood": OUTSIDE, **changes})
