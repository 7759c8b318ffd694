"""`greedy-ensembles select`, on a tiny MNIST in the published format and networks that are trained in a moment."""

import json

import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.training.validate import split

RUNS = {
    "deep-0": ["--method", "deep"],
    "deep-2": ["--method", "deep", "--seed", 2],
    "one-0": ["--strength", 1],
    "one-2": ["--strength", 1, "--seed", 2],
    "nine-0": ["--strength", 9],
    "nine-2": ["--strength", 9, "--seed", 2],
    "long-0": ["--strength", 3, "--set", "epochs=2"],
    "long-2": ["--strength", 3, "--seed", 2, "--set", "epochs=2"],
}
SIX = list(RUNS)[:6]


@pytest.fixture(scope="module")
def home(make_home):
    """Runs of several strengths on the first 60 images."""
    return make_home("linear_model", {name: ["--images", 60, *more] for name, more in RUNS.items()}, examples=80)


@pytest.fixture
def select(invoke, home, monkeypatch):
    monkeypatch.chdir(home)
    fixed = ["--root", home / "data", "--device", "cpu", "--model", "linear_model:make"]
    return lambda *arguments: invoke("select", *fixed, *arguments)


def test_the_curve_on_what_was_held_out(select, home, tmp_path):
    done = select(*SIX, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "mnist, held out, 12 examples for each seed" in done.output
    assert "the first 60 images of 80" in " ".join(done.output.split())
    assert "warning" not in done.output
    content = json.loads((tmp_path / "selection.json").read_text())
    assert [trial["strength"] for trial in content["trials"]] == [1.0, 9.0]
    assert [(run["source"], run["seed"]) for run in content["runs"]] == [(name, int(name[-1])) for name in SIX]
    assert (tmp_path / "ablation.png").stat().st_size > 10_000
    # One epoch on 48 images teaches nothing, and of that no harm can be seen.
    assert content["deep"]["accuracy"]["mean"] < 0.2
    assert (content["chosen"], content["harmless"]) == (None, [])
    assert "Nothing is chosen: Deep Ensembles are right on" in " ".join(done.output.split())
    # Deep Ensembles by hand, on the indices that the training's own function gives; other images have another NLL.
    from linear_model import make

    data, likelihoods = ge.data.load("mnist", "train", home / "data"), []
    for seed in (0, 2):
        ensemble = ge.load_run(home / f"deep-{seed}", make).ensemble
        _, held = split(torch.from_numpy(data.labels[:60]), 0.2, seed)
        probs = ensemble.predict_proba(data.images[held.numpy()]).mean(0)
        likelihoods.append(float(ge.metrics.negative_log_likelihood(probs, data.labels[held.numpy()])))
    assert content["deep"]["nll"]["mean"] == pytest.approx(np.mean(likelihoods), rel=1e-5)


def test_on_the_test_set_with_a_warning(select, tmp_path):
    done = select(*SIX, "--on", "test", "--by", "nll", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "mnist, 40 examples for each seed" in done.output
    assert "harms nll" in done.output
    assert "\nwarning: lambda_M was chosen on test examples" in done.stderr
    for name in ("selection.csv", "selection.json"):  # which are read without what was on the screen
        assert "no test of the choice" in (tmp_path / name).read_text()
        assert "trained on mnist: " in (tmp_path / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SIX, "long-0", "long-2"], "recipe.epochs is 1 in one-0 and 2 in long-0"),
        (["deep-0", "deep-2"], "none of any lambda_M"),
        (SIX[2:], "none of Deep Ensembles"),
        ([*SIX[:4], "nine-0"], "nine-0 is the only run of its kind"),
        ([*SIX, "--by", "brier"], "--by must be one of"),
        ([*SIX, "--split", "train"], "--split must be one of"),
        ([*SIX, "--on", "rey"], "--on must be one of 'processes', 'ray'"),
        ([*SIX, "--split", "test", "--on", "127.0.0.1:9"], "--on 127.0.0.1:9 does not answer"),
        (["nowhere"], "nowhere does not exist"),
        ([*SIX, "--root", "elsewhere"], "data download mnist"),
    ],
)
def test_mistakes_are_one_line(select, arguments, message):
    done = select(*arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
