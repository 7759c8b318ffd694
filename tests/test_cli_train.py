"""`greedy-ensembles train`, on a tiny MNIST in the published format."""

import json
import re

import numpy as np
import pytest
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.method import METHODS

#: Options of methods whose members meet; some need all of them to train together.
MEETING = ["--weighting", "clip", "--schedule", "concurrent"]


@pytest.fixture
def root(tmp_path, write_mnist):
    write_mnist(tmp_path / "data" / "mnist", "train", 60, 0)
    return tmp_path / "data"


@pytest.fixture
def train(invoke, root, tmp_path):
    def run(*options, dataset="mnist", model="PreResNet8", out="run"):
        fixed = ["--size", "2", "--root", root, "--out", tmp_path / out, "--device", "cpu", "--quiet"]
        short = ["--set", "epochs=1", "--validation", "0.2"]
        named = [] if model is None else ["--model", model]
        arguments = ["train", dataset, *named, *fixed, *short, *options]
        return invoke(*arguments)

    return run


def test_a_run_knows_its_recipe_data_and_model(train, tmp_path):
    done = train("--strength", "0.1", "--set", "lr=0.05", "--seed", "3", "--paper")
    assert done.exit_code == 0, done.output
    assert "partial: 60 of 60,000 images" in done.output
    run = ge.load_run(tmp_path / "run")
    low, high = sorted(member["validation_accuracy"] for member in run.members)
    assert f"2 members in {tmp_path / 'run'}, each right on {low:.0%} to {high:.0%} of" in done.output
    assert run.information["data"]["name"] == "mnist"
    assert run.information["data"]["images"] == 60
    assert "partial" in run.information["data"]["note"]
    recipe = run.configuration["recipe"]
    assert (recipe["lr"], recipe["batch_size"], recipe["weight_decay"], recipe["epochs"]) == (0.05, 256, 1e-5, 1)
    assert (run.configuration["method"]["strength"], run.configuration["seed"]) == (0.1, 3)
    assert run.configuration["weighting"]["overflow"] == "wrap"
    assert recipe["weighting_statistics"] == "running"
    assert type(run.ensemble[0]).__name__ == "PreResNet"  # without being told the model again


def test_p_star_and_statistics_are_those_of_fit_unless_the_papers_are_asked_for(train, root, tmp_path):
    assert train("--strength", "1").exit_code == 0
    ours = ge.load_run(tmp_path / "run").configuration
    data = ge.data.load("mnist", "train", root)
    recipe = ge.Recipe(epochs=1, batch_size=60)
    options = {"size": 2, "recipe": recipe, "validation": 0.2, "run_dir": tmp_path / "f", "device": "cpu"}
    ge.fit(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), data, **options)
    default = ge.load_run(tmp_path / "f").configuration
    assert ours["weighting"] == default["weighting"]
    assert ours["recipe"]["weighting_statistics"] == default["recipe"]["weighting_statistics"] == "batch"
    done = train("--strength", "1", "--paper", "--set", "weighting_statistics=batch", out="other")
    assert done.exit_code == 0, done.output
    assert ge.load_run(tmp_path / "other").configuration["recipe"]["weighting_statistics"] == "batch"


def test_three_equal_channels(train, tmp_path):
    done = train("--strength", "1", "--paper", "--three-channels")
    assert done.exit_code == 0, done.output
    run = ge.load_run(tmp_path / "run")
    assert run.information["data"]["shape"] == [3, 28, 28]
    assert run.configuration["recipe"]["normalize"] == [[0.1307], [0.3081]]


@pytest.mark.parametrize(
    ("weighting", "kind", "overflow"),
    [
        ("clip", "Gaussian", "clip"),
        ("none", "Gaussian", "none"),
        ("uniform", "Uniform", None),
        ("mnist", "FromData", None),
    ],
)
def test_weightings_by_name(train, tmp_path, weighting, kind, overflow):
    done = train("--strength", "1", "--weighting", weighting)
    assert done.exit_code == 0, done.output
    described = json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]["weighting"]
    assert described["class"] == kind
    assert described.get("overflow") == overflow


def test_the_default_is_that_of_fit_and_a_run_can_be_extended(train, tmp_path):
    assert train(*MEETING).exit_code == 0
    assert train(*MEETING, "--size", "3").exit_code == 0
    run = ge.load_run(tmp_path / "run")
    assert (run.method, run.strength, len(run.ensemble)) == ("greedy", 1.0, 3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_name_here(train, tmp_path, method, monkeypatch):
    """With p* and, where none is named, the strength of `ge.fit` where its members meet."""
    layers = "nn.Flatten(), nn.Linear(784, 8), nn.Dropout(0.2), nn.Linear(8, 10)"
    (tmp_path / f"with_{method}.py").write_text(
        f"from torch import nn\ndef make():\n    return nn.Sequential({layers})\n"
    )
    monkeypatch.chdir(tmp_path)
    alone = METHODS[method].sees == "none"
    done = train("--method", method, "--set", "epochs=2", *([] if alone else MEETING), model=f"with_{method}:make")
    assert done.exit_code == 0, done.output
    configuration = json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]
    assert configuration["method"]["label"] == METHODS[method].label
    assert (configuration["weighting"] is None) == alone
    assert configuration["method"].get("strength") == (None if alone else 1.0)


def test_a_model_of_ones_own(train, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
    )
    monkeypatch.chdir(tmp_path)
    done = train(model="mine:make")
    assert done.exit_code == 0, done.output
    assert "its recipe of PreResNet8 on mnist is used" in done.output
    (tmp_path / "ready.py").write_text("from torch import nn\nmodel = nn.Linear(784, 10)\n")
    done = train(model="ready:model")
    assert done.exit_code == 1
    assert re.search(r"--model ready:model .*function .*new model for each member", done.output)


@pytest.mark.parametrize(
    ("options", "keywords", "message"),
    [
        (["--set", "epoch=1"], {}, "a recipe has no such field"),
        (["--set", "epochs"], {}, "FIELD=VALUE"),
        (["--set", "lr=fast"], {}, "lr must be a number, got 'fast'"),
        (["--set", "schedule=concurrent"], {}, "a recipe's schedule is that of its learning rate"),
        ([], {"model": "PresNet8"}, "did you mean 'PreResNet8'"),
        ([], {"model": "mine.make"}, "(a network of your own: --model package:function)"),
        ([], {"model": "PreResNet21"}, "depth of a PreResNet in basic blocks must be 6n+2, got 21; the nearest is 20"),
        (["--set", "precision=fp32"], {}, "did you mean 'float32'?"),
        ([], {"model": "no_such_module:make"}, "cannot be imported: ModuleNotFoundError: No module named"),
        ([], {"model": "mine:"}, "--model must be package:function"),
        ([], {"model": "math:sqrt"}, "--model math:sqrt cannot be called: TypeError: "),
        ([], {"model": "math:pi"}, "must be a function that returns a torch.nn.Module"),
        (
            [],
            {"dataset": "omniglot"},
            "omniglot is a set of OOD images and has nothing to train on; these have: mnist, ",
        ),
        ([], {"out": "file/run"}, "--out must be a folder, but "),
        ([], {"dataset": "mnst"}, "did you mean mnist"),
        ([], {"dataset": "cifar10"}, "data download cifar10"),
        ([], {"model": None}, "such as PreResNet8 (the paper's for MNIST)"),
        (["--weighting", "0"], {}, "one of wrap, clip, none, uniform, scramble, half or a data set, got '0'\n"),
        (["--weighting", "scrable"], {}, "did you mean 'scramble'?"),
        (["--weighting", "cifar"], {}, "did you mean 'cifar10'?"),
        (["--images", "61"], {}, "between 1 and the 60"),
        (["--method", "deep", "--weighting", "clip"], {}, "--weighting is for members that meet, not --method deep"),
        (["--method", "gredy"], {}, "--method must be one of"),
        (["--method", "deep", "--strength", "1"], {}, "--strength is for members that meet, not --method deep"),
        (["--schedule", "parallel"], {}, "schedule must be one of"),
    ],
)
def test_mistakes_are_one_line(train, tmp_path, options, keywords, message):
    (tmp_path / "file").write_text("")
    done = train(*options, **keywords)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output
    assert "recipe of" not in done.output or "model" not in keywords  # nothing is said of a model that is none
    assert not (tmp_path / "run").exists()


def test_a_model_of_ones_own_that_will_not_do_is_told_in_one_line(train, tmp_path, monkeypatch):
    (tmp_path / "of_mine.py").write_text(
        "from torch import nn\n"
        "class Pair(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x.flatten(1))\n"
        "        return y, y\n"
        "def make():\n"
        "    return Pair(784, 10)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = train(model="of_mine:make")
    assert done.exit_code == 1
    assert "got tuple" in done.output
    assert "Traceback" not in done.output


def test_fewer_epochs_shorten_the_warm_up_that_was_not_asked_for():
    assert ge.Recipe.paper("cifar10", "VGG16BN", epochs=3).warmup_epochs == 0
    assert ge.Recipe.paper("cifar10", "VGG16BN", epochs=10).warmup_epochs == 2
    assert ge.Recipe.paper("cifar10", "VGG16BN", epochs=np.int64(10)).warmup_epochs == 2
    assert ge.Recipe.paper("cifar10", "VGG16BN", epochs=200).warmup_epochs == 5
    with pytest.raises(ValueError, match="warmup_epochs"):
        ge.Recipe.paper("cifar10", "VGG16BN", epochs=3, warmup_epochs=5)


def test_an_interruption_says_how_to_go_on(train, tmp_path, monkeypatch):
    (tmp_path / "tired.py").write_text(
        "from torch import nn\n"
        "class Tired(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        if self.training and len(x) > 40:\n"
        "            raise KeyboardInterrupt  # as if the user had had enough\n"
        "        return super().forward(x.flatten(1))\n"
        "def make():\n"
        "    return Tired(784, 10)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = train(model="tired:make")
    assert done.exit_code == 130
    assert "goes on" in done.output.splitlines()[-1]
