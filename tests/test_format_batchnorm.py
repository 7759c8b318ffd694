"""Folders that version 0.1 wrote of networks with BatchNorm are read: tests/fixtures/format-1-batchnorm."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch

import greedy_ensembles as ge

WRITER = runpy.run_path(str(Path(__file__).parent / "fixtures" / "write_format_batchnorm.py"))
FOLDER, INPUTS = WRITER["FOLDER"], WRITER["INPUTS"]
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
FACTORIES = {"ensemble": WRITER["make_model"], "preresnet8": WRITER["make_preresnet"]}


def assert_probabilities(ensemble, inputs, expected, tolerance=1e-6):
    torch.testing.assert_close(ensemble.predict_proba(inputs), torch.tensor(expected), rtol=0, atol=tolerance)


def load(name):
    """Return a run; that of a network out of `ge.models` says itself what it is."""
    return ge.load_run(FOLDER / name, None if name == "preresnet8-run" else WRITER["make_model"])


@pytest.mark.parametrize("name", EXPECTED["saved"])
def test_a_saved_ensemble_predicts_what_it_did(name):
    ensemble = ge.Ensemble.load(FOLDER / name, FACTORIES[name])
    assert_probabilities(ensemble, INPUTS, EXPECTED["saved"][name])


@pytest.mark.parametrize("name", EXPECTED["runs"])
def test_a_run_predicts_what_it_did_and_knows_what_it_was(name):
    run, expected = load(name), dict(EXPECTED["runs"][name])
    assert_probabilities(run.ensemble, WRITER["inputs_of"](name), expected.pop("probabilities"))
    assert WRITER["facts"](run) == expected


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_the_same_call_returns_a_finished_run_as_it_is(schedule, tmp_path):
    name = {"sequential": "run", "concurrent": "concurrent"}[schedule]
    shutil.copytree(FOLDER / name, tmp_path / "run")
    ensemble = ge.fit(
        WRITER["make_model"], WRITER["DATA"], schedule=schedule, run_dir=tmp_path / "run", **WRITER["EXPLICIT"]
    )
    assert_probabilities(ensemble, INPUTS, EXPECTED["runs"][name]["probabilities"])


def test_an_unfinished_run_is_refused_since_epochs_are_selected_by_another_rule(tmp_path):
    shutil.copytree(FOLDER / "unfinished", tmp_path / "run")
    options = {**WRITER["EXPLICIT"], "schedule": "sequential", "run_dir": tmp_path / "run"}
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ge.FolderError, match=r"begun by version 0\.1"):
        ge.fit(WRITER["make_model"], WRITER["DATA"], **options)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_an_unfinished_run_without_held_out_examples_ends_as_it_did(schedule, tmp_path):
    shutil.copytree(FOLDER / f"whole-{schedule}", tmp_path / "run")
    options = {**WRITER["EXPLICIT"], "validation": 0.0, "schedule": schedule, "run_dir": tmp_path / "run"}
    ensemble = ge.fit(WRITER["make_model"], WRITER["DATA"], **options)
    expected = json.loads((FOLDER / "expected-whole.json").read_text())[schedule]
    assert_probabilities(ensemble, INPUTS, expected)


def test_a_finished_run_can_be_extended_and_interrupted(tmp_path):
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    options = {**WRITER["EXPLICIT"], "schedule": "sequential", "run_dir": tmp_path / "run", "size": 3}

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ge.fit(WRITER["make_model"], WRITER["DATA"], callbacks=[stop], **options)
    ensemble = ge.fit(WRITER["make_model"], WRITER["DATA"], **options)
    assert len(ensemble) == 3
    assert_probabilities(ensemble[:2], INPUTS, EXPECTED["runs"]["run"]["probabilities"])
