"""Folders that version 0.1 wrote of networks with BatchNorm are read: tests/fixtures/format-1-batchnorm.

Version 0.1 wrote them, once, by tests/fixtures/write_format_batchnorm.py, which the history has at b94d70a. Images are
given by a formula in whole numbers, the same on every machine, for a run knows its data by their bytes.
"""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import greedy_ensembles as ge

FOLDER = Path(__file__).parent / "fixtures" / "format-1-batchnorm"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


def make_model():
    """Return a network of 99 parameters with BatchNorm, for images of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def images(count, classes, start=0):
    """Return images and labels: each class is brighter in a part of its own, over a pattern in sixteenths."""
    i = torch.arange(start, start + count)
    row, column = torch.arange(8)[:, None], torch.arange(8)
    pattern = (31 * (i[:, None, None] * 64 + row * 8 + column) ** 2 + 17 * i[:, None, None]) % 61 - 30
    labels = i % classes
    bright = row // 3 == labels[:, None, None]
    return ((pattern + 20 * bright).float() / 16)[:, None], labels


def pixels(x):
    """Return the images as whole numbers of 8 bits."""
    return (48 * x + 100).to(torch.uint8)


DATA = images(48, 3)
INPUTS = images(6, 3, start=100)[0]
RECIPE = ge.Recipe(
    epochs=3,
    batch_size=12,
    weighting_batch_size=8,
    weighting_statistics="running",
    weighting_samples=20,
    optimizer="sgd",
    lr=0.1,
    momentum=0.9,
    nesterov=False,
    weight_decay=1e-4,
    schedule="anneal",
    lr_scale=0.01,
    warmup_epochs=0,
    normalize=((0.25,), (1.25,)),
    precision="float32",
    deterministic=False,
)
#: Of the runs that say everything.
EXPLICIT = {
    "size": 2,
    "method": "greedy",
    "strength": 1.0,
    "weighting": ge.weighting.Gaussian(
        mean=torch.full((1, 8, 8), 0.25), std=torch.full((1, 8, 8), 1.25), scale=5.0, overflow="none"
    ),
    "distance": "probabilities",
    "recipe": RECIPE,
    "seed": 88,  # no member has two epochs that are best
    "validation": 0.25,
    "device": "cpu",
    "progress": False,
}


def inputs_of(run):
    """Return what a run is asked about: images of the type that it was trained on."""
    return pixels(INPUTS) if run == "defaults" else INPUTS


def facts(run):
    """Return what a run says of itself and its members."""
    return {
        "size": run.size,
        "finished": run.finished,
        "members": len(run.members),
        "epochs": [[record["epoch"] for record in history] for history in run.histories],
        "validation_accuracies": [[record["validation_accuracy"] for record in history] for history in run.histories],
        "selected_epochs": [member["selected_epoch"] for member in run.members],
        **{"method": {"Deep Ensembles": "deep"}.get(run.method, run.method), "strength": run.strength},
        **{name: run.configuration[name] for name in ("distance", "schedule", "validation")},
    }


def assert_probabilities(ensemble, inputs, expected):
    torch.testing.assert_close(ensemble.predict_proba(inputs), torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", EXPECTED["saved"])
def test_a_saved_ensemble_predicts_what_it_did(name):
    factory = make_model if name == "ensemble" else partial(ge.models.PreResNet, 8, classes=2, channels=1)
    ensemble = ge.Ensemble.load(FOLDER / name, factory)
    assert_probabilities(ensemble, INPUTS, EXPECTED["saved"][name])


@pytest.mark.parametrize("name", EXPECTED["runs"])
def test_a_run_predicts_what_it_did_and_knows_what_it_was(name):
    factory = None if name == "preresnet8-run" else make_model  # a network out of `ge.models` is known by its name
    run, expected = ge.load_run(FOLDER / name, factory), dict(EXPECTED["runs"][name])
    assert_probabilities(run.ensemble, inputs_of(name), expected.pop("probabilities"))
    assert facts(run) == expected


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_the_same_call_returns_a_finished_run_as_it_is(schedule, tmp_path):
    name = "run" if schedule == "sequential" else schedule
    shutil.copytree(FOLDER / name, tmp_path / "run")
    ensemble = ge.fit(make_model, DATA, schedule=schedule, run_dir=tmp_path / "run", **EXPLICIT)
    assert_probabilities(ensemble, INPUTS, EXPECTED["runs"][name]["probabilities"])


def test_an_unfinished_run_is_refused_since_epochs_are_selected_by_another_rule(tmp_path):
    shutil.copytree(FOLDER / "unfinished", tmp_path / "run")
    options = {**EXPLICIT, "schedule": "sequential", "run_dir": tmp_path / "run"}
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ge.FolderError, match=r"begun by version 0\.1"):
        ge.fit(make_model, DATA, **options)
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_an_unfinished_run_without_held_out_examples_ends_as_it_did(schedule, tmp_path):
    shutil.copytree(FOLDER / f"whole-{schedule}", tmp_path / "run")
    options = {**EXPLICIT, "validation": 0.0, "schedule": schedule, "run_dir": tmp_path / "run"}
    ensemble = ge.fit(make_model, DATA, **options)
    expected = json.loads((FOLDER / "expected-whole.json").read_text())[schedule]
    assert_probabilities(ensemble, INPUTS, expected)


def test_a_finished_run_can_be_extended_and_interrupted(tmp_path):
    shutil.copytree(FOLDER / "run", tmp_path / "run")
    options = {**EXPLICIT, "schedule": "sequential", "run_dir": tmp_path / "run", "size": 3}

    def stop(epoch):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ge.fit(make_model, DATA, callbacks=[stop], **options)
    ensemble = ge.fit(make_model, DATA, **options)
    assert len(ensemble) == 3
    assert_probabilities(ensemble[:2], INPUTS, EXPECTED["runs"]["run"]["probabilities"])
