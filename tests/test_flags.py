import csv
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.cli.predict import judge_inputs, to_csv
from greedy_ensembles.flags import Calibration, best_temperature, threshold_at

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


def test_a_share_needs_as_many_scores_as_make_one_of_n_plus_one_no_larger():
    for percent in range(1, 100):
        least = -(-100 // percent) - 1
        assert threshold_at(np.arange(float(least)), percent / 100) > 0
        with pytest.raises(ValueError, match=f"needs {least} in-domain inputs"):
            threshold_at(np.arange(least - 1.0), percent / 100)


def test_equal_scores_are_not_flagged():
    assert not (np.zeros(50) >= threshold_at(np.zeros(50), 0.05)).any()


@pytest.mark.parametrize(
    ("scores", "fpr", "message"),
    [
        (np.zeros(18), 0.05, "needs 19 in-domain inputs or more to be found from, got 18"),
        (np.array([0.0, np.nan]), 0.5, "finite"),
        (np.zeros((2, 2)), 0.5, r"shape \(n,\)"),
    ],
)
def test_bad_input_is_refused(scores, fpr, message):
    with pytest.raises(ValueError, match=message):
        threshold_at(scores, fpr)


class Fixed(nn.Module):
    """A member that says the same of everything."""

    def __init__(self, *probs):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probs).log())

    def forward(self, x):
        assert x.ndim == 2
        return self.logits.expand(len(x), -1)


def test_figures_are_those_of_the_definitions():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1), Fixed(0.3, 0.7)])
    columns = judge_inputs(ensemble, np.zeros((5, 2), np.float32), batch_size=2)

    def entropy(*probs):
        return -sum(p * math.log(p) for p in probs)

    aleatoric = (entropy(0.9, 0.1) + entropy(0.3, 0.7)) / 2
    assert columns["class"] == [0] * 5
    assert columns["probability"] == pytest.approx([0.6] * 5, abs=1e-6)
    assert columns["total"] == pytest.approx([entropy(0.6, 0.4)] * 5, abs=1e-6)
    assert columns["aleatoric"] == pytest.approx([aleatoric] * 5, abs=1e-6)
    assert columns["mutual_information"] == pytest.approx([entropy(0.6, 0.4) - aleatoric] * 5, abs=1e-6)


def test_more_inputs_than_are_predicted_at_once_keep_their_order():
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3), nn.Linear(2, 3)])
    x = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    assert judge_inputs(ensemble, x)["mutual_information"] == pytest.approx(
        ensemble.uncertainty(x).epistemic.numpy(), abs=1e-6
    )


def test_the_table_has_names_and_flags():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1), Fixed(0.3, 0.7)])
    (exact,) = judge_inputs(ensemble, np.zeros((1, 2), np.float32))["mutual_information"]

    def row(classes=None, threshold=None):
        ensemble.calibration = None if threshold is None else Calibration(threshold, 0.05, 19)
        columns = judge_inputs(ensemble, np.zeros((1, 2), np.float32), classes)
        (found,) = csv.DictReader(to_csv(('a,"b".png',), columns).splitlines())
        return found

    assert row(("cat", "dog"), exact)["flagged"] == "yes"  # at the threshold is out of distribution
    assert row(threshold=math.nextafter(exact, 1))["flagged"] == "no"
    plain = row(("cat", "dog"))
    assert plain["input"] == 'a,"b".png'
    assert plain["class"] == "cat"
    assert float(plain["mutual_information"]) == pytest.approx(exact, rel=1e-5)
    assert "flagged" not in plain
    assert row(("cat", "dog", "bird"))["class"] == "0"  # names of other classes are worse than none


def test_a_spreadsheet_runs_nothing_out_of_the_names_of_files_and_classes():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1)])
    names = ("=cmd|' /C calc'!A0.png", "+1.png", "-1.png", "@SUM(A1).png", "plain.png")
    columns = judge_inputs(ensemble, np.zeros((5, 2), np.float32), ("=1+1", "b"))
    rows = list(csv.DictReader(to_csv(names, columns).splitlines()))
    assert [row["input"] for row in rows] == [*(f"'{name}" for name in names[:4]), "plain.png"]
    assert {row["class"] for row in rows} == {"'=1+1"}


def test_inputs_of_another_shape_are_refused_in_one_line():
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3)])
    with pytest.raises(ValueError, match=r"the ensemble cannot take .*\(4,\) .*float32: .+") as caught:
        judge_inputs(ensemble, np.zeros((1, 4), np.float32))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        judge_inputs(ensemble, np.zeros((1, 2), np.float32), batch_size=0)


def test_a_member_that_breaks_down_is_an_error():
    broken = nn.Linear(2, 3)
    nn.init.constant_(broken.weight, math.nan)
    with pytest.raises(ArithmeticError, match="NaN"):
        judge_inputs(ge.Ensemble.from_members([broken]), np.zeros((1, 2), np.float32))


def linear_members(count=3, classes=3):
    torch.manual_seed(0)
    members = [nn.Linear(4, classes) for _ in range(count)]
    for member in members:
        nn.init.normal_(member.weight)
    return ge.Ensemble.from_members(members)


def drawn_labels(probs, generator):
    return torch.multinomial(probs, 1, generator=generator)[:, 0]


@pytest.mark.parametrize("score", ["epistemic", "total"])
def test_the_threshold_of_an_ensemble_is_that_of_its_score(score):
    ensemble = linear_members()
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    found = ensemble.calibrate(x, fpr=0.1, score=score, batch_size=7)
    scores = getattr(ge.Uncertainty.of(ensemble.predict_proba(x, batch_size=7).double()), score)
    below, above = scores.sort().values[36:38]  # ceil(0.9 * 41) = 37 of them are below
    assert below < found.threshold <= above
    assert found.threshold == math.nextafter(below.item(), math.inf)  # in double precision, as flags are
    assert ensemble.flag(x, batch_size=3).tolist() == (scores > (below + above) / 2).tolist()
    assert (found.inputs, found.fpr, found.score, found.temperature) == (40, 0.1, score, None)
    assert found is ensemble.calibration
    assert ensemble[:2].calibration is None  # other members say other things


def rates(of_one, seeds):
    """Return the mean over seeds, and four standard errors of it."""
    found = torch.tensor([of_one(torch.Generator().manual_seed(seed)) for seed in range(seeds)])
    return found.mean().item(), 4 * found.std().item() / seeds**0.5


def test_of_new_inputs_no_more_are_flagged_than_asked_for():
    ensemble = linear_members()

    def flagged(generator):
        ensemble.calibrate(torch.randn(19, 4, generator=generator), fpr=0.1)
        return ensemble.flag(torch.randn(100, 4, generator=generator)).double().mean().item()

    mean, error = rates(flagged, 150)
    assert abs(mean - 2 / 20) < error < 0.03  # exactly 2 of n + 1 are above the 18th of 19, as scores have no ties


def test_new_labels_are_in_sets_as_often_as_asked_for_though_probabilities_are_wrong():
    ensemble = linear_members()
    sizes = []

    def covered(generator):
        x = torch.randn(119, 4, generator=generator)
        y = drawn_labels(ensemble.predict_proba(x).mean(dim=0).pow(0.3), generator)  # far less certain than it thinks
        ensemble.calibrate(x[:19], y[:19])
        sets = ensemble.predict_set(x[19:], alpha=0.2)
        assert (sets.shape, sets.dtype) == ((100, 3), torch.bool)
        sizes.append(sets.sum(dim=1).double().mean())
        return sets[torch.arange(100), y[19:]].double().mean().item()

    mean, error = rates(covered, 150)
    assert abs(mean - 16 / 20) < error < 0.04
    assert 1.2 < np.mean(sizes) < 2.8  # neither all classes nor the most probable one alone


def test_sets_are_those_of_the_definition_with_ties_and_for_any_alpha():
    """Against a loop over classes: of n + 1, its own p among them, more than alpha (n + 1) labels are as improbable."""
    ensemble = ge.Ensemble.from_members([Fixed(0.5, 0.3, 0.2), Fixed(0.5, 0.3, 0.2)])
    labels = [0] * 6 + [1] * 2 + [2]
    x = np.zeros((9, 2), np.float32)
    ensemble.calibrate(x, labels, fpr=0.5)
    probs = ensemble.predict_proba(x[:1]).double().mean(dim=0)[0]
    for tenths in range(1, 10):
        (found,) = ensemble.predict_set(x[:1], alpha=tenths / 10)
        expected = [1 + sum(bool(probs[label] <= probs[k]) for label in labels) > tenths for k in range(3)]
        assert found.tolist() == expected, tenths


def test_the_temperature_is_the_one_with_the_largest_likelihood():
    ensemble = linear_members()
    generator = torch.Generator().manual_seed(0)
    x, new = torch.randn(2, 3000, 4, generator=generator)
    powers = [ensemble.predict_proba(part).double().mean(dim=0).pow(1 / 2.5) for part in (x, new)]
    true = [power / power.sum(dim=1, keepdim=True) for power in powers]
    y, y_new = (drawn_labels(probs, generator) for probs in true)
    found = ensemble.calibrate(x, y)
    assert found.temperature == pytest.approx(2.5, rel=0.1)
    mean = ensemble.predict_proba(x).double().mean(dim=0)

    def loss(temperature):
        powers = mean ** (1 / temperature)
        return ge.metrics.negative_log_likelihood(powers / powers.sum(dim=1, keepdim=True), y).item()

    assert loss(found.temperature) < min(loss(found.temperature * 0.999), loss(found.temperature * 1.001))
    calibrated = ensemble.predict_calibrated(new, batch_size=1000)
    torch.testing.assert_close(calibrated.double(), true[1], rtol=0, atol=0.05)
    plain = ensemble.predict_proba(new).mean(dim=0)
    after, before = (ge.metrics.negative_log_likelihood(probs, y_new) for probs in (calibrated, plain))
    assert after < before
    assert torch.equal(calibrated.argmax(dim=1), plain.argmax(dim=1))


def test_temperatures_without_a_best_one():
    mean = torch.tensor([[0.6, 0.4], [0.9, 0.1], [0.5, 0.5]])
    assert best_temperature(mean, torch.tensor([0, 0, 1])) == 1.0  # all right: nothing says how sure to be
    assert best_temperature(mean, torch.tensor([1, 1, 1])) == 100.0  # worse than equal probabilities
    assert best_temperature(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])) > 50  # no infinities


def test_what_cannot_be_calibrated_or_used_is_refused():
    one, ensemble, x = linear_members(1), linear_members(), torch.zeros(50, 4)
    with pytest.raises(ValueError, match=r"one member, .*mutual information is 0 .*score='total'"):
        one.calibrate(x)
    assert one.calibrate(x, score="total").score == "total"
    with pytest.raises(ValueError, match="not calibrated: call calibrate"):
        ensemble.flag(x)
    with pytest.raises(ValueError, match=r"fpr = 0\.01 needs 99 in-domain inputs or more"):
        ensemble.calibrate(x, fpr=0.01)
    with pytest.raises(ValueError, match="did you mean 'epistemic'"):
        ensemble.calibrate(x, score="epistemc")
    for y, got in (
        (torch.zeros(49, dtype=torch.long), r"int64 of shape \(49,\)"),
        (torch.zeros(50), r"float32 of shape \(50,\)"),
        (torch.zeros(50, 3, dtype=torch.long), r"int64 of shape \(50, 3\)"),
    ):
        with pytest.raises(ValueError, match=rf"y must hold a class index .*50 inputs .*got {got}"):
            ensemble.calibrate(x, y)
    with pytest.raises(ValueError, match="y must be from 0 to 2, got some from 0 to 3"):
        ensemble.calibrate(x, torch.arange(50) % 4)
    assert ensemble.calibration is None
    assert ensemble.calibrate(x).fpr == 0.05
    for predict in (ensemble.predict_set, ensemble.predict_calibrated):
        with pytest.raises(ValueError, match="y was not given to calibrate"):
            predict(x)
    ensemble.calibrate(x, torch.zeros(50, dtype=torch.long))
    for alpha, message in ((0.01, r"alpha = 0\.01 needs 99 in-domain inputs"), (1.0, "alpha must be below 1")):
        with pytest.raises(ValueError, match=message):
            ensemble.predict_set(x, alpha)


def test_labels_beside_a_loader_that_shuffles_are_refused():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(6))
    y = (x[:, 0] > 0).long()
    ensemble = ge.Ensemble.from_members([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    shuffled, in_order = (DataLoader(TensorDataset(x, y), batch_size=7, shuffle=shuffle) for shuffle in (True, False))
    with pytest.raises(ValueError, match="RandomSampler, in whose order y does not come"):
        ensemble.calibrate(shuffled, y)
    assert ensemble.calibrate(in_order, y) == ensemble.calibrate(x, y)
    assert ensemble.calibrate(shuffled).threshold == pytest.approx(ensemble.calibrate(x).threshold)
