"""Thresholds of runs and saved ensembles, on a tiny MNIST in the published format."""

import json
from functools import partial

import numpy as np
import pytest
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.held_out import held_out
from greedy_ensembles.screening import Form, Inputs, calibrate, form_of, judge, open_subject, read_calibration

HUGE = {"form": {"shape": [3, 10**6, 10**6], "classes": None}}


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@pytest.fixture
def train(tmp_path, write_mnist, quick):
    write_mnist(tmp_path / "data" / "mnist", "train", 200, 0)
    images = ge.data.load("mnist", "train", tmp_path / "data")

    def run(data=images, size=2, validation=0.2, make_model=linear):
        options = {**quick, "recipe": ge.Recipe(epochs=1, batch_size=32)}
        ge.fit(make_model, data, size=size, method="deep", validation=validation, run_dir=tmp_path / "run", **options)
        return open_subject(tmp_path / "run", make_model)

    return run


def test_the_threshold_is_that_of_the_images_that_the_run_held_out(train, tmp_path):
    subject = train()
    found = calibrate(subject, 0.1, root=tmp_path / "data")
    every = ge.data.load("mnist", "train", tmp_path / "data")
    scores = judge(subject.ensemble, held_out(subject.facts, every).images).epistemic
    assert (found.inputs, found.source) == (40, "mnist, held out")
    assert (scores >= found.threshold).sum() == 40 - 37  # ceil(0.9 * 41) of them are below
    assert max(score for score in scores if score < found.threshold) == np.sort(scores)[36]
    assert read_calibration(subject) == found
    assert found.form == Form((1, 28, 28), tuple("0123456789"))


def test_an_extended_run_must_be_calibrated_anew(train, tmp_path):
    before = train()
    calibrate(before, 0.1, root=tmp_path / "data")
    assert read_calibration(before) is not None
    after = train(size=3)
    assert after.weights != before.weights
    assert read_calibration(after) is None


def test_one_member_has_nothing_to_be_flagged_by(train, tmp_path):
    with pytest.raises(ValueError, match="run has one member, whose mutual information is 0 on every input"):
        calibrate(train(size=1), 0.1, root=tmp_path / "data")
    assert not (tmp_path / "run" / "calibration.json").exists()


def test_the_form_comes_from_the_run_or_else_from_the_data_set_if_that_is_there(train, tmp_path, monkeypatch):
    subject = train()
    assert form_of(subject, tmp_path / "data") == Form((1, 28, 28), tuple("0123456789"))
    assert form_of(subject, tmp_path / "elsewhere") == Form((1, 28, 28))  # as run.json has it
    subject.ensemble.inputs = None  # as in runs of older versions
    assert form_of(subject, tmp_path / "elsewhere") == Form((1, 28, 28))
    monkeypatch.setattr(RunFacts, "image_shape", None)  # of still older ones
    assert form_of(subject, tmp_path / "data").shape == (1, 28, 28)
    assert form_of(subject, tmp_path / "elsewhere") == Form()


def test_the_form_is_that_of_the_run_where_images_were_resized(train, quick, tmp_path):
    train()  # which writes the data
    small = ge.data.load("mnist", "train", tmp_path / "data", size=8)
    make_model = partial(ge.models.PreResNet, 8, channels=1)  # takes any size, and would not complain
    options = {**quick, "recipe": ge.Recipe(epochs=1), "validation": 0, "run_dir": tmp_path / "small"}
    ge.fit(make_model, small, size=1, strength=1.0, **options)
    subject = open_subject(tmp_path / "small")
    assert form_of(subject, tmp_path / "data") == Form((1, 8, 8), tuple("0123456789"))
    assert form_of(subject, tmp_path / "elsewhere") == Form((1, 8, 8))


def test_runs_on_arrays_and_saved_ensembles_take_inputs_of_your_own(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=2, method="deep", run_dir=tmp_path / "run", **quick).save(tmp_path / "saved")
    values = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    inputs = Inputs(tuple(map(str, range(30))), values)
    run, saved = open_subject(tmp_path / "run", make_model), open_subject(tmp_path / "saved", make_model)
    for subject in (run, saved):
        with pytest.raises(ValueError, match=r"does not name a data set .* --on"):
            calibrate(subject)
        calibrate(subject, 0.1, inputs)
    first, second = read_calibration(run), read_calibration(saved)
    assert first is not None
    assert first == second  # the same weights, wherever they lie
    assert first.form == Form()


def test_images_of_your_own_tell_the_form(train, tmp_path):
    subject = train()
    values = np.random.default_rng(0).integers(0, 256, (30, 1, 28, 28)).astype(np.uint8)
    found = calibrate(subject, 0.1, Inputs(tuple(map(str, range(30))), values), root=tmp_path / "nowhere")
    assert found.form == Form((1, 28, 28), None)


def test_a_run_that_held_nothing_out_is_refused(train, tmp_path):
    with pytest.raises(ValueError, match=r"held out no validation images; .* --on"):
        calibrate(train(validation=0), root=tmp_path / "data")


def test_a_data_set_of_your_own_has_no_name_to_be_found_by(train, tmp_path):
    images = ge.data.load("mnist", "train", tmp_path / "data").replace(name="mine")
    subject = train(images)
    assert form_of(subject, tmp_path / "data") == Form((1, 28, 28))
    with pytest.raises(ValueError, match="does not name a data set"):
        calibrate(subject, root=tmp_path / "data")


@pytest.mark.parametrize(
    "change", [{"threshold": "low"}, {"form": None}, {"form": {"shape": [1], "classes": None}}, {"extra": 1}, HUGE]
)
def test_files_that_were_never_written_here_are_refused(train, tmp_path, change):
    subject = train()
    calibrate(subject, 0.1, root=tmp_path / "data")
    file = tmp_path / "run" / "calibration.json"
    content = {**ge.storage.read_json(file), **change}
    ge.storage.write_json(file, content)
    with pytest.raises(ge.FolderError, match=r"calibration\.json is damaged"):
        read_calibration(subject)
    ge.storage.write_json(file, {**content, "format": 2})
    with pytest.raises(ge.FolderError, match="calibrate anew"):
        read_calibration(subject)
    file.write_text(json.dumps({}))
    with pytest.raises(ge.FolderError, match="damaged"):
        read_calibration(subject)


def test_folders_that_are_neither_are_refused(tmp_path):
    with pytest.raises(ge.FolderError, match="neither a run"):
        open_subject(tmp_path)
    ge.Ensemble.from_members([linear()]).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="saved ensemble, which does not name its model"):
        open_subject(tmp_path / "saved")


def test_a_model_of_ours_need_not_be_named(train, tmp_path):
    make_model = partial(ge.models.PreResNet, 8, classes=10, channels=1)
    train(make_model=make_model)
    assert len(open_subject(tmp_path / "run").ensemble) == 2
