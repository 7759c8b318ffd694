import math
from collections import OrderedDict

import numpy as np
import pytest
import scipy.special
import torch
from hypothesis import given as cases
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, average_precision_score, log_loss, roc_auc_score, roc_curve
from tests.benchmark.test_evaluated_data import linear, table

import greedy_ensembles as ge
from greedy_ensembles.benchmark import SCORES, Estimate, Predictions, estimate, evaluate, judge, scores_of

OF_PROBABILITIES = [name for name, needs in SCORES.items() if not needs]


@pytest.mark.parametrize("kind", [name for name, needs in SCORES.items() if needs != "features"])
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
        scores = np.concatenate([scores_of(inside)[kind], scores_of(outside[result.name])[kind]])
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
    with pytest.warns(UserWarning, match=r"mutual information .*one member is 0 .*another score, or more"):
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


def test_bad_input(counting, image_set):
    ensemble = ge.Ensemble([counting(0)])
    with pytest.raises(ValueError, match="inside has no labels"):
        evaluate(ensemble, image_set(), {})
    with pytest.raises(ValueError, match=r"did you mean 'mnist'"):
        evaluate(ensemble, image_set(), "mnst")
    colour = image_set("photos").with_channels(3)
    with pytest.raises(ValueError, match=r"photos .*\(3, 4, 4\) .*inside .*\(1, 4, 4\).*with_channels"):
        evaluate(ensemble, image_set(labelled=True), {"photos": colour})


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
        found.append({**values, "expected_entropy": aleatoric, "max_probability": -max(mean)}.get(kind))
        if kind == "mean_pairwise_kl":
            pairs = [(p, q) for i, p in enumerate(rows) for j, q in enumerate(rows) if i != j]
            summed = sum(a * math.log(a / b) for p, q in pairs for a, b in zip(p, q, strict=True))
            found[-1] = summed / len(pairs)
    return found


@pytest.mark.parametrize("kind", OF_PROBABILITIES)
def test_against_loops(random_predictions, kind):
    predictions = random_predictions(count=20)
    scores = scores_of(predictions)[kind]
    assert scores.dtype == np.float64
    assert scores == pytest.approx(by_loops(predictions, kind), abs=1e-12)


@pytest.mark.parametrize("kind", OF_PROBABILITIES)
def test_doubt_scores_higher_than_certainty(kind):
    """All but the expected entropy also tell members that are certain of different classes; that one must not."""
    certain, uniform = [[0.0, -50.0], [0.0, -50.0]], [[math.log(0.5)] * 2] * 2
    torn = [[0.0, -50.0], [-50.0, 0.0]]
    scores = scores_of(Predictions("x", np.array([certain, uniform, torn], np.float32).swapaxes(0, 1)))[kind]
    if kind in ("mutual_information", "mean_pairwise_kl"):  # of disagreement alone
        assert scores == pytest.approx([0, 0, math.log(2) if kind == "mutual_information" else 50], abs=1e-12)
    else:
        assert scores[1] > scores[0] + 0.4
        assert (scores[2] > scores[0] + 0.4) == (kind != "expected_entropy")


@cases(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=10))
def test_mean_and_standard_error_are_those_of_scipy(values):
    found = estimate(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.standard_error == pytest.approx(stats.sem(values), abs=1e-9)
    assert found.seeds == len(values)


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


def test_every_score_is_kept_and_another_can_be_chosen_without_a_second_pass(counting, image_set):
    members, inside = [counting(0), counting(1)], image_set(labelled=True)
    found = evaluate(ge.Ensemble(members), inside, {"x": image_set(seed=1)})
    seen = [member.seen for member in members]
    assert found.known_scores == (*OF_PROBABILITIES, "energy", "energy_of_mean")
    for kind in found.known_scores:
        chosen = found.by(kind)
        expected = evaluate(ge.Ensemble(members[:]), inside, {"x": image_set(seed=1)}, score=kind)
        assert chosen == expected
        assert (chosen.ood[0].scores == expected.ood[0].scores).all()
        scores = np.concatenate([chosen.in_domain.scores, chosen.ood[0].scores])
        assert chosen.ood[0].auc == pytest.approx(roc_auc_score([0] * 40 + [1] * 40, scores))
    assert seen == [80, 80]
    with pytest.raises(ValueError, match="did you mean 'energy'"):
        found.by("enrgy")


def test_energy_is_that_of_the_logits(counting, image_set):
    members, images = [counting(0), counting(1)], image_set(labelled=True)
    with torch.no_grad():
        logits = torch.stack([member(torch.from_numpy(images.images) / 255) for member in members])
    expected = ge.metrics.energy(logits.double()).numpy()
    predictions = ge.benchmark.predict(ge.Ensemble(members), images)
    found = scores_of(predictions)
    np.testing.assert_allclose(found["energy"], expected, rtol=1e-5)
    mean = logits.double().mean(dim=0).numpy()
    np.testing.assert_allclose(found["energy_of_mean"], -scipy.special.logsumexp(mean, axis=1), rtol=1e-5)
    # What it has beyond the members' own energy is their divergence from their normalised geometric mean.
    together, apart = scipy.special.softmax(mean, axis=1), logits.double().softmax(dim=2).numpy()
    divergence = scipy.special.rel_entr(together, apart).sum(axis=2).mean(axis=0)
    np.testing.assert_allclose(found["energy_of_mean"] - found["energy"], divergence, atol=1e-5)
    assert divergence.min() > 1e-4
    shifted = Predictions("x", predictions.log_probs)  # which knows no logits
    assert not {"energy", "energy_of_mean"} & scores_of(shifted).keys()
    with pytest.raises(ValueError, match=r"energy.* needs logits"):
        judge(Predictions("x", predictions.log_probs, images.labels), [], score="energy")


@pytest.mark.parametrize("how", ["body", "function"])
def test_scores_of_features_are_means_over_members(how):
    members = [linear(seed=0), linear(seed=1)]
    (x, y), (known, labels), far = table(), table(70, 2), 9 * table(30, 1)[0]
    features = how if how == "body" else (lambda member, batch: member.body(batch))
    found = evaluate(ge.Ensemble(members), (x, y), {"far": far}, features=features, reference=(known, labels))
    with torch.no_grad():
        own, reference = ([m.body(torch.from_numpy(part)).numpy() for m in members] for part in (far, known))
    each = [ge.metrics.knn_distance(*pair, 50) for pair in zip(own, reference, strict=True)]
    np.testing.assert_allclose(found.ood[0].every_score["knn"], sum(each) / 2, rtol=1e-5)
    each = [ge.metrics.mahalanobis_distance(*pair, labels) for pair in zip(own, reference, strict=True)]
    np.testing.assert_allclose(found.ood[0].every_score["mahalanobis"], sum(each) / 2, rtol=1e-3)
    assert found.by("knn").ood[0].auc == found.ood[0].by_score["knn"].auc
    asked = {"features": features, "reference": (known, labels), "score": "knn"}
    assert evaluate(ge.Ensemble(members), (x, y), {"far": far}, **asked) == found.by("knn")
    without = evaluate(ge.Ensemble(members), (x, y), {"far": far})
    assert without.ood[0].auc == found.ood[0].auc
    assert set(found.known_scores) - set(without.known_scores) == {"knn", "mahalanobis"}


def test_features_of_convolutions_are_averaged_over_pixels(image_set):
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(1, 6, 3), torch.nn.ReLU(inplace=True), torch.nn.Flatten(), torch.nn.Linear(24, 3)
    member, images = torch.nn.Sequential(*layers), image_set(labelled=True)
    found = ge.benchmark.predict(ge.Ensemble([member]), images, features="0", batch_size=16)
    with torch.no_grad():
        expected = member[0](torch.from_numpy(images.images) / 255).mean(dim=(2, 3))
    np.testing.assert_allclose(found.features[0], expected, rtol=1e-5, atol=1e-6)
    without = ge.benchmark.predict(ge.Ensemble([member]), images, batch_size=16).log_probs
    np.testing.assert_array_equal(found.log_probs, without)


class Silent(torch.nn.Module):
    def forward(self, x):
        raise AssertionError("nothing is to be predicted")


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"score": "enrgy"}, ValueError, "score must be one of .* did you mean 'energy'"),
        ({"score": "knn"}, ValueError, "score='knn' needs features="),
        ({"features": "last"}, ValueError, "features and reference go together"),
        ({"features": "laast", "reference": table()}, ValueError, "features .* has no 'laast'; did you mean 'last'"),
        ({"features": 3, "reference": table()}, TypeError, "features must be a layer's name or a function"),
        ({"features": "last", "reference": table(49)}, ValueError, "reference must hold at least 50 examples, got 49"),
        ({"ood": {"far": np.ones((4, 3))}}, ValueError, r"inputs of far are \(3,\) and those of in-domain are \(2,\)"),
        ({"ood": {"far": "noise"}}, TypeError, r"ood\['far'\]"),
        ({"ood": np.ones((4, 2))}, TypeError, "ood must be a dict of sets by name"),
        ({"ood": "mnist"}, TypeError, "ood='mnist' names a preset"),
        ({"in_domain": np.ones((4, 2))}, TypeError, "in_domain"),
    ],
)
def test_bad_input_is_refused_before_anything_is_predicted(changes, error, named):
    ensemble = ge.Ensemble([torch.nn.Sequential(OrderedDict(first=Silent(), last=torch.nn.Linear(2, 2)))])
    given = {"in_domain": table(), "ood": {"far": np.ones((4, 2), np.float32)}, **changes}
    with pytest.raises(error, match=named):
        evaluate(ensemble, given.pop("in_domain"), given.pop("ood"), **given)
