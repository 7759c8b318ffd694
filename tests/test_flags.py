import csv
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.cli.predict import to_csv
from greedy_ensembles.flags import Calibration, ImageForm, find_threshold, judge_inputs, read_calibration, threshold_at

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


def test_equal_scores_are_not_flagged():
    assert not (np.zeros(50) >= threshold_at(np.zeros(50), 0.05)).any()


@pytest.mark.parametrize(
    ("scores", "fpr", "message"),
    [
        (np.zeros(18), 0.05, "needs 19 in-domain inputs or more to be found from, got 18"),
        (np.zeros(50), 0.0, "fpr must be finite and above 0"),
        (np.zeros(50), 1.0, "fpr must be below 1"),
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
    verdicts = judge_inputs(ensemble, np.zeros((5, 2), np.float32), batch_size=2)

    def entropy(*probs):
        return -sum(p * math.log(p) for p in probs)

    aleatoric = (entropy(0.9, 0.1) + entropy(0.3, 0.7)) / 2
    assert verdicts.classes.tolist() == [0] * 5
    assert verdicts.probability == pytest.approx([0.6] * 5, abs=1e-6)
    assert verdicts.total == pytest.approx([entropy(0.6, 0.4)] * 5, abs=1e-6)
    assert verdicts.aleatoric == pytest.approx([aleatoric] * 5, abs=1e-6)
    assert verdicts.epistemic == pytest.approx([entropy(0.6, 0.4) - aleatoric] * 5, abs=1e-6)
    assert verdicts.epistemic.dtype == np.float64


def test_more_inputs_than_are_predicted_at_once_keep_their_order():
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3), nn.Linear(2, 3)])
    x = np.random.default_rng(0).normal(size=(5000, 2)).astype(np.float32)
    assert judge_inputs(ensemble, x).epistemic == pytest.approx(ensemble.uncertainty(x).epistemic.numpy(), abs=1e-6)


def test_the_table_has_names_and_flags():
    ensemble = ge.Ensemble.from_members([Fixed(0.9, 0.1), Fixed(0.3, 0.7)])
    verdicts = judge_inputs(ensemble, np.zeros((1, 2), np.float32))
    exact = float(verdicts.epistemic[0])

    def row(**options):
        (found,) = csv.DictReader(to_csv(('a,"b".png',), verdicts, **options).splitlines())
        return found

    assert row(classes=("cat", "dog"), threshold=exact)["flagged"] == "yes"  # at the threshold is out of distribution
    assert row(threshold=math.nextafter(exact, 1))["flagged"] == "no"
    plain = row(classes=("cat", "dog"))
    assert plain["input"] == 'a,"b".png'
    assert plain["class"] == "cat"
    assert float(plain["mutual_information"]) == pytest.approx(exact, rel=1e-5)
    assert "flagged" not in plain
    assert row(classes=("cat", "dog", "bird"))["class"] == "0"  # names of other classes are worse than none


def test_inputs_of_another_shape_are_refused_in_one_line():
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3)])
    with pytest.raises(ValueError, match=r"cannot take inputs of shape \(4,\) and type float32") as caught:
        judge_inputs(ensemble, np.zeros((1, 4), np.float32))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        judge_inputs(ensemble, np.zeros((1, 2), np.float32), batch_size=0)


def test_a_member_that_breaks_down_is_an_error():
    broken = nn.Linear(2, 3)
    nn.init.constant_(broken.weight, math.nan)
    with pytest.raises(ArithmeticError, match="NaN"):
        judge_inputs(ge.Ensemble.from_members([broken]), np.zeros((1, 2), np.float32))


def test_the_threshold_of_an_ensemble_is_that_of_its_mutual_information():
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([nn.Linear(2, 3), nn.Linear(2, 3)])
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    scores = np.sort(ge.metrics.mutual_information(ensemble.predict_proba(torch.from_numpy(x)).double()).numpy())
    found = find_threshold(ensemble, x, 0.1)
    assert found > scores[36]  # ceil(0.9 * 41) = 37 of them are below
    assert found <= scores[37]


def test_one_member_has_nothing_to_be_flagged_by():
    with pytest.raises(ValueError, match="one member, whose mutual information is 0 on every input"):
        find_threshold(ge.Ensemble.from_members([nn.Linear(2, 3)]), np.zeros((50, 2), np.float32))


WRITTEN = """{
  "format": 1,
  "threshold": 0.25,
  "fpr": 0.05,
  "inputs": 45,
  "source": "mnist, held out",
  "weights": "a checksum",
  "form": {"shape": [1, 28, 28], "classes": ["0", "1"]},
  "sha256": "5c8129468154f1d42ea0f8fc95dcaee551f10dae2c30be4cc500952d1764077b"
}"""  # as version 0.1 did


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    (tmp_path / "calibration.json").write_text(WRITTEN)
    found = read_calibration(tmp_path, "a checksum")
    assert found == Calibration(0.25, 0.05, 45, "mnist, held out", "a checksum", ImageForm((1, 28, 28), ("0", "1")))
    assert read_calibration(tmp_path, "another") is None
    (tmp_path / "copy").mkdir()
    assert read_calibration(tmp_path / "copy", "a checksum") is None
    found.write(tmp_path / "copy")
    assert read_calibration(tmp_path / "copy", "a checksum") == found


HUGE = {"form": {"shape": [3, 10**6, 10**6], "classes": None}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "low"}, r"calibration\.json is damaged"),
        ({"form": None}, "damaged"),
        ({"form": {"shape": [1], "classes": None}}, "damaged"),
        ({"extra": 1}, "damaged"),
        (HUGE, "damaged"),
        ({"format": 2}, "calibrate anew"),
    ],
)
def test_files_that_were_never_written_here_are_refused(tmp_path, change, message):
    file = tmp_path / "calibration.json"
    file.write_text(WRITTEN)
    ge.storage.write_json(file, {**ge.storage.read_json(file), **change})
    with pytest.raises(ge.FolderError, match=message):
        read_calibration(tmp_path, "a checksum")


def test_an_empty_file_is_no_calibration(tmp_path):
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(ge.FolderError, match="damaged"):
        read_calibration(tmp_path, "a checksum")


def test_forms_that_no_picture_could_be_given_are_refused():
    cases = {(2, 8, 8): "channels", (3, 8, 4): "square", (3, 0, 0): "1 to", (1, 9999, 9999): "1 to"}
    for shape, message in cases.items():
        with pytest.raises(ValueError, match=message):
            ImageForm(shape)
    assert ImageForm.of_images(np.zeros((2, 3, 8, 4), np.uint8)) == ImageForm(None)
