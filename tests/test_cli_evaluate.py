"""`greedy-ensembles evaluate`, on a tiny MNIST in the published format and networks that are trained in a moment."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

import greedy_ensembles as ge

MODEL = """
from torch import nn

calls = []

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, x):
        calls.append(len(x))
        return self.layer(x.flatten(1))

def make():
    return Counting()
"""


DEEP = ["--method", "deep"]
RUNS = {
    "deep-0": DEEP,
    "deep-2": [*DEEP, "--seed", 2],
    "greedy-0": ["--strength", 1],
    "near": [*DEEP, "--seed", 1],
    "long": [*DEEP, "--set", "epochs=2"],
}


@pytest.fixture(scope="module")
def home(make_home):
    return make_home("tiny_model", RUNS, MODEL)


@pytest.fixture
def evaluate(invoke, home, monkeypatch):
    monkeypatch.chdir(home)

    def run(*arguments, ood="noise.npy", model="tiny_model:make"):
        sets = [] if ood is None else ["--ood", ood]
        own = [] if model is None else ["--model", model]
        return invoke("evaluate", "--root", home / "data", "--device", "cpu", *sets, *own, *arguments)

    return run


def test_tables_have_methods_counts_and_notes(evaluate, tmp_path):
    done = evaluate("deep-0", "deep-2", "greedy-0", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    rows = [re.split(r"  +", line.strip())[:4] for line in done.output.splitlines()]
    assert ["noise.npy", "30", "Deep Ensembles", "2"] in rows
    assert any(row[:2] == ["greedy, lambda_M = 1", "1"] for row in rows)
    assert "mnist (a), 40 images, in-domain" in done.output
    assert "partial: 40 of 10,000 images" in " ".join(done.output.split())
    assert "trained on mnist: partial: 60 of 60,000 images" in " ".join(done.output.split())
    content = json.loads((tmp_path / "evaluation.json").read_text())
    assert [method["sources"] for method in content["methods"]] == [["deep-0", "deep-2"], ["greedy-0"]]
    rows = list(csv.DictReader((tmp_path / "evaluation.csv").read_text().splitlines()))
    assert {row["in_domain_images"] for row in rows} == {"40"}
    assert r"\bottomrule" in (tmp_path / "evaluation.tex").read_text()


def test_figures_are_those_of_the_api(evaluate, home, tmp_path):
    assert evaluate("deep-0", "--out", tmp_path, "--score", "predictive_entropy").exit_code == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())["methods"][0]["evaluations"][0]
    import tiny_model

    ensemble = ge.load_run(home / "deep-0", tiny_model.make).ensemble
    test = ge.data.load("mnist", "test", home / "data")
    ood = {"noise.npy": ge.data.read(home / "noise.npy")}
    expected = ge.benchmark.evaluate(ensemble, test, ood, score="predictive_entropy")
    assert found["in_domain"]["accuracy"] == expected.in_domain.accuracy
    assert found["ood"][0]["auc"] == expected.ood[0].auc


def test_a_second_time_nothing_is_computed(evaluate):
    import tiny_model

    assert evaluate("long").exit_code == 0
    before = len(tiny_model.calls)
    again = evaluate("long", "--score", "max_probability")
    assert again.exit_code == 0
    assert len(tiny_model.calls) == before
    assert re.search(r"used .*long/predictions;.* --fresh", again.output)
    fresh = evaluate("long", "--score", "max_probability", "--fresh")
    assert fresh.exit_code == 0
    assert len(tiny_model.calls) > before
    assert "--fresh" not in fresh.output


def test_the_preset_is_the_default_and_missing_sets_are_holes(evaluate):
    done = evaluate("deep-0", ood=None)
    assert done.exit_code == 0, done.output
    assert "25,000" in done.output
    assert "missing: dtd, fashion_mnist, omniglot" in done.output
    assert "mean of 3 of 6 sets" in done.output


def test_several_sets_with_and_without_commas(evaluate):
    done = evaluate("deep-0", "--ood", "uniform,gaussian", "--ood", "noise.npy", ood="blobs")
    assert done.exit_code == 0, done.output
    assert "mean of 4 sets" in done.output


def test_packed_predictions_give_the_same_table_without_weights_or_data(invoke, evaluate, tmp_path):
    file = tmp_path / "packed.npz"
    first = evaluate("deep-0", "--save-predictions", file)
    assert first.exit_code == 0, first.output
    assert str(file) in first.output
    again = invoke("evaluate", file, "--root", tmp_path / "nothing")
    assert again.exit_code == 0, again.output
    table = first.stdout.partition("Wrote")[0]
    number = re.compile(r"\d+\.\d+")
    assert number.sub("#", again.stdout) == number.sub("#", table)
    figures = [[float(text) for text in number.findall(output)] for output in (again.stdout, table)]
    (alone,) = re.findall(r"members alone are right on (.*)", again.stdout)
    assert len(figures[0]) == 5 + 4 + len(number.findall(alone))
    assert len(number.findall(alone)) == (2 if " to " in alone else 1)
    assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-3)
    both = evaluate(file, "greedy-0")
    assert both.exit_code == 0, both.output
    assert "greedy, lambda_M = 1" in both.output
    chosen = invoke("evaluate", file, "--ood", "uniform")
    assert chosen.exit_code == 1
    assert "ood" in chosen.output
    assert "'noise.npy'" in chosen.output


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["deep-0", "near"], {}, "seeds at least 2 apart"),
        (["deep-0", "deep-0"], {}, "deep-0 is named twice"),
        (["nowhere"], {}, "nowhere does not exist"),
        (["."], {}, "holds no run (there is no run.json in it); there are runs in it: deep-0, "),
        (["deep-0", "--on", "nowhere"], {}, "there is no file or folder nowhere"),
        (["deep-0"], {"model": None}, "trained with a model of your own"),
        (["deep-0"], {"model": "os:getcwd"}, "--model os:getcwd must be a function that returns a torch.nn.Module"),
        (["deep-0"], {"model": "os:sep"}, "must be a function that returns a torch.nn.Module, got '/'"),
        (["deep-0"], {"ood": "cifar10c"}, "cifar10c has no test split"),
        (["deep-0"], {"ood": "unifrom"}, "did you mean 'uniform'"),
        (["deep-0"], {"ood": "svhn"}, "data download svhn"),
        (["deep-0"], {"ood": "mnist"}, "is the in-domain set"),
        (["deep-0"], {"ood": " , "}, "--ood names no set"),
        (["deep-0", "--out", "noise.npy"], {}, "--out must be a folder, but noise.npy is a file"),
        (["deep-0", "--score", "entropy"], {}, "--score must be one of"),
        (
            ["deep-0", "--score", "knn"],
            {},
            "--score knn needs features, which Python alone takes: ge.benchmark.evaluate",
        ),
        (["deep-0", "greedy-0", "--save-predictions", "x.npz"], {}, "one run at a time, got 2"),
        (["deep-0", "--save-predictions", "x.zip"], {}, ".npz files, got x.zip"),
        (["missing.npz"], {}, "missing.npz does not exist"),
        (["deep-0", "--batch-size", "0"], {}, "--batch-size must be at least 1"),
        (["deep-0", "--device", "gpu"], {}, "did you mean 'cuda'"),
    ],
)
def test_mistakes_are_one_line(evaluate, arguments, options, message):
    done = evaluate(*arguments, **options)
    assert done.exit_code == 1
    assert message in done.output
    assert "Traceback" not in done.output


def test_packed_predictions_on_other_images_are_refused(evaluate, home, tmp_path):
    (home / "photos").mkdir()
    np.save(home / "photos" / "a.npy", np.zeros((30, 28, 28), np.uint8))
    assert evaluate("deep-0", "--save-predictions", tmp_path / "x.npz", ood="photos/a.npy").exit_code == 0
    assert evaluate("greedy-0", tmp_path / "x.npz", ood="photos/a.npy").exit_code == 0
    np.save(home / "photos" / "a.npy", np.ones((30, 28, 28), np.uint8))
    done = evaluate("greedy-0", tmp_path / "x.npz", ood="photos/a.npy")
    assert done.exit_code == 1
    assert re.search(r"photos/a\.npy differ .*Deep Ensembles .*greedy, lambda_M = 1", done.output)


@pytest.mark.filterwarnings("always::UserWarning")
def test_one_member_gets_a_warning_and_a_note(train_run, evaluate, home, tmp_path):
    train_run(home, "alone", "--size", 1, model="tiny_model:make")
    done = evaluate("alone", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "\nwarning: mutual information of one member is 0" in done.stderr
    assert "mutual information of one member is 0" in " ".join(done.stdout.split())
    assert "(1 member)" not in done.stdout  # the architecture stands before it
    assert "1 member)" in done.stdout
    assert "and 1 picture into" in done.stdout
    assert "mutual information of one member is 0" in (tmp_path / "evaluation.csv").read_text()


def test_an_interruption_says_what_is_kept(evaluate, monkeypatch, tmp_path):
    import tiny_model

    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny_model.Counting, "forward", interrupt)
    np.save(tmp_path / "new.npy", np.zeros((3, 28, 28), np.uint8))
    done = evaluate("deep-0", ood=tmp_path / "new.npy")
    assert done.exit_code == 130
    *_, last = done.output.splitlines()  # after lines of progress
    assert re.match(r"Interrupted\. .*predicted is kept: the same command", last)


def test_an_unfinished_run_is_refused(evaluate, home, tmp_path):
    shutil.copytree(home / "deep-0", tmp_path / "half")
    shutil.rmtree(tmp_path / "half" / "members" / "02")
    done = evaluate(tmp_path / "half")
    assert done.exit_code == 1
    assert "has 1 of 2 members; train the others first" in done.output


@pytest.mark.filterwarnings("always::UserWarning")
def test_damaged_predictions_are_a_warning_in_one_line(evaluate, home):
    evaluate("greedy-0")
    for file in (home / "greedy-0" / "predictions").iterdir():
        file.write_bytes(b"")
    done = evaluate("greedy-0")
    assert done.exit_code == 0, done.output
    assert "\nwarning: predictions are computed again: " in done.stderr
    assert "UserWarning" not in done.stderr
