import math

import numpy as np
import pytest
import torch
from hypothesis import given as cases
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score, roc_curve

import greedy_ensembles as ge
from greedy_ensembles.benchmark import SCORES, Estimate, Predictions, estimate, evaluate, judge, score


@pytest.mark.parametrize("kind", ["mutual_information", "predictive_entropy", "expected_entropy", "max_probability"])
def test_every_figure_against_scikit_learn(random_predictions, kind):
    inside = random_predictions("inside", count=200, labelled=True)
    outside = {
        name: random_predictions(name, count=c, spread=4.0, seed=c) for name, c in (("uniform", 70), ("dtd", 30))
    }
    found = judge(inside, outside.values(), score=kind)
    probs = np.exp(inside.log_probs.astype(np.float64)).mean(0)
    assert found.in_domain.accuracy == pytest.approx(accuracy_score(inside.labels, probs.argmax(1)))
    assert 0.5 < found.in_domain.accuracy < 1
    assert found.in_domain.nll == pytest.approx(log_loss(inside.labels, probs, labels=range(4)), abs=1e-6)
    alone = [accuracy_score(inside.labels, member.argmax(1)) for member in inside.log_probs]
    assert found.in_domain.member_accuracies == pytest.approx(alone)
    assert len(set(alone)) > 1
    one_hot = np.eye(4)[inside.labels]
    assert found.in_domain.brier == pytest.approx(((probs - one_hot) ** 2).sum(1).mean())
    assert found.in_domain.ace == float(ge.metrics.adaptive_calibration_error(probs, inside.labels, bins=30))
    assert found.in_domain.ece == float(ge.metrics.expected_calibration_error(probs, inside.labels, bins=15))
    for result in found.ood:
        scores = np.concatenate([score(inside, kind), score(outside[result.name], kind)])
        truth = np.arange(len(scores)) >= 200  # OOD is the positive class
        assert result.auc == pytest.approx(roc_auc_score(truth, scores))
        assert result.ap == pytest.approx(average_precision_score(truth, scores))
        false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
        assert result.fpr95 == pytest.approx(false[true >= 0.95].min())
        assert kind != "mutual_information" or result.auc > 0.6  # members disagree more there


def test_counts_notes_and_means(random_predictions):
    inside = random_predictions("inside", count=30, labelled=True)
    sets = [
        random_predictions(name, count=count, spread=spread, note=f"note of {name}")
        for name, count, spread in (("uniform", 20, 2.0), ("blobs", 10, 4.0), ("svhn", 5, 3.0), ("./mine", 7, 1.0))
    ]
    found = judge(inside, sets, missing=["dtd"])
    assert [(r.name, r.kind, r.images, r.note) for r in found.ood] == [
        ("uniform", "synthetic", 20, "note of uniform"),
        ("blobs", "synthetic", 10, "note of blobs"),
        ("svhn", "natural", 5, "note of svhn"),
        ("./mine", "natural", 7, "note of ./mine"),
    ]
    assert (found.in_domain.images, found.members, found.missing) == (30, 3, ("dtd",))
    values = [result.ap for result in found.ood]
    # Sets count the same, however many images they have.
    assert found.mean("ap", "synthetic") == pytest.approx((values[0] + values[1]) / 2)
    assert found.mean("ap", "natural") == pytest.approx((values[2] + values[3]) / 2)
    assert found.mean("ap") == pytest.approx(sum(values) / 4)
    assert judge(inside, sets[:2]).mean("auc", "natural") is None


def test_ood_predictions_are_taken_one_at_a_time(random_predictions):
    alive = []

    def stream():
        for name in ("uniform", "blobs"):
            alive.append(name)
            yield random_predictions(name)
            alive.remove(name)

    assert len(judge(random_predictions(labelled=True), stream()).ood) == 2
    assert not alive


def test_an_ensemble_and_its_predictions_give_the_same(counting, image_set):
    ensemble, inside = ge.Ensemble([counting(0), counting(1)]), image_set(labelled=True)
    ood = {"called so": image_set("otherwise", seed=1)}
    found = evaluate(ensemble, inside, ood)
    expected = judge(
        ge.benchmark.predict(ensemble, inside),
        [ge.benchmark.predict(ensemble, ood["called so"].replace(name="called so"))],
    )
    assert found == expected
    assert (found.ood[0].scores == expected.ood[0].scores).all()


def test_a_preset_by_name(counting, image_set, tmp_path):
    inside = image_set(labelled=True)
    ensemble = ge.Ensemble([counting(0), counting(1)])
    found = evaluate(ensemble, inside, "mnist", root=tmp_path, batch_size=4096)
    assert [(result.name, result.images) for result in found.ood] == [
        ("bernoulli", 25_000),
        ("gaussian", 25_000),
        ("uniform", 25_000),
    ]
    assert found.missing == ("dtd", "fashion_mnist", "omniglot")


def test_one_member_has_no_mutual_information(random_predictions):
    alone = random_predictions(members=1, labelled=True)
    outside = random_predictions("dtd", members=1, seed=1)
    with pytest.warns(UserWarning, match=r"mutual information of one member is 0 .* take another score"):
        found = judge(alone, [outside])
    assert found.ood[0].auc == 0.5
    judge(alone, [outside], score="predictive_entropy")  # which it has
    judge(alone, [])  # in-domain figures have nothing to do with it


def test_results_say_which_images_they_are_on(counting, image_set):
    ensemble = ge.Ensemble([counting(0), counting(1)])
    one, same, other = (
        evaluate(ensemble, image_set(labelled=True), {"x": image_set(seed=seed)}).ood[0].content for seed in (1, 1, 2)
    )
    assert one == same != other
    assert len(one) == 64


def test_bad_input(counting, image_set, random_predictions):
    ensemble = ge.Ensemble([counting(0)])
    with pytest.raises(ValueError, match="inside has no labels"):
        evaluate(ensemble, image_set(), {})
    with pytest.raises(ValueError, match=r"did you mean 'mnist'"):
        evaluate(ensemble, image_set(), "mnst")
    colour = image_set("photos").with_channels(3)
    with pytest.raises(ValueError, match=r"images of photos are \(3, 4, 4\) and those of inside are \(1, 4, 4\)"):
        evaluate(ensemble, image_set(labelled=True), {"photos": colour})
    with pytest.raises(ValueError, match="score must be one of"):
        judge(random_predictions(labelled=True), [], score="entropy")


def test_no_likelihood_is_made_infinite_by_rounding():
    """exp(-200) is 0 in single precision, where the NLL would be infinite."""
    log_probs = np.array([[[-200.0, 0.0], [0.0, -200.0]]], np.float32)
    found = judge(Predictions("x", log_probs, np.array([0, 0])), [])
    assert found.in_domain.nll == pytest.approx(100.0)


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


def test_what_is_no_image_set_is_told_what_would_do():
    members = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)) for _ in range(2)]
    ensemble = ge.Ensemble.from_members(members)
    x, y = np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    images = ge.data.ImageSet(x, y, "mine")
    assert evaluate(ensemble, images).ood == ()
    with pytest.raises(
        TypeError, match=r"in_domain must be an ImageSet, got tuple; ge\.data\.ImageSet\(x, y, 'name'\)"
    ):
        evaluate(ensemble, (x, y))
    with pytest.raises(TypeError, match=r"ood\['noise'\] must be an ImageSet, got ndarray"):
        evaluate(ensemble, images, {"noise": x})
    with pytest.raises(TypeError, match=r"ood must be a dict of image sets by name, .* got ImageSet"):
        evaluate(ensemble, images, images)
