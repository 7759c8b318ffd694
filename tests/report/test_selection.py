import csv
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain
from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.benchmark.selection import Trial, select
from greedy_ensembles.report import selection as report


@pytest.fixture
def measured_on():
    return InDomain("mnist, held out", 200, "100 % [odd]", 0.9, 0.3, 0.2, 0.01, 0.02, np.zeros(2))


@pytest.fixture
def chosen():
    def make(*accuracies, by="accuracy"):
        figures = zip((None, 0.1, 3.0, 5.0), accuracies, strict=False)
        rest = Estimate(0.25, 0.001, 3), Estimate(0.0123, 0.0004, 3)
        return select([Trial(strength, Estimate(mean, 0.005, 3), *rest) for strength, mean in figures], by)

    return make


def test_the_whole_curve_is_shown(chosen, measured_on):
    output = io.StringIO()
    report.show(chosen(0.9, 0.91, 0.85, 0.8), measured_on, Console(file=output, width=80))
    text = output.getvalue()
    rows = [line.split() for line in text.splitlines() if "±" in line]
    assert rows[0] == ["Deep", "Ensembles", "3", "90.00±0.50", "25.00±0.10", "1.23±0.04"]
    assert [(row[0], row[2], row[-1]) for row in rows[1:]] == [
        ("0.1", "91.00±0.50", "no"),
        ("3", "85.00±0.50", "yes"),
        ("5", "80.00±0.50", "yes"),
    ]
    assert "mnist, held out, 200 images for each seed" in text
    assert "mnist, held out: 100 % [odd]" in text
    assert "Chosen: lambda_M = 0.1" in text


@pytest.mark.parametrize(
    ("accuracies", "text"),
    [
        ((0.9, 0.9, 0.9, 0.8), "Chosen: lambda_M = 3, the largest that does no harm (its accuracy is as good"),
        ((0.9, 0.9, 0.9, 0.9), "It is the largest that was tried; a larger one may do as well."),
        ((0.9, 0.5, 0.5, 0.5), "No lambda_M that was tried does no harm"),
    ],
)
def test_verdicts(chosen, accuracies, text):
    assert text in report.verdict(chosen(*accuracies))


def test_an_infinite_likelihood_is_json_and_a_picture_all_the_same(measured_on, tmp_path):
    good = Estimate(0.5, 0.01, 2)
    trials = [Trial(None, good, good, good), Trial(1.0, good, Estimate(math.inf, None, 2), good)]
    paths = report.write(select(trials), measured_on, [], tmp_path)
    content = json.loads(paths[1].read_text(), parse_constant=pytest.fail)
    assert content["trials"][0]["nll"]["mean"] == "inf"


def test_files(chosen, measured_on, tmp_path):
    model = {"partial": "PreResNet", "args": [8], "keywords": {}}
    known = {"size": 2, "configuration": {"strength": 0.1, "seed": 5}, "model": model, "data": None}
    paths = report.write(chosen(0.9, 0.91, 0.85), measured_on, [RunFacts("runs/a", known)], tmp_path / "new")
    assert [path.name for path in paths] == ["selection.csv", "selection.json", "ablation.png"]
    assert all(path.stat().st_size > 100 for path in paths)
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert [(row["lambda_M"], row["harmless"]) for row in rows if row["metric"] == "accuracy"] == [
        ("", ""),
        ("0.1", "True"),
        ("3.0", "False"),
    ]
    # Whether others are harmed was not asked, and no column is to look as if it had been.
    assert {row["harmless"] for row in rows if row["metric"] != "accuracy"} == {""}
    assert {(row["set"], row["images"], row["note"], row["seeds"]) for row in rows} == {
        ("mnist, held out", "200", "100 % [odd]", "3")
    }
    content = json.loads(paths[1].read_text())
    assert (content["chosen"], content["by"], content["measured_on"]["images"]) == (0.1, "accuracy", 200)
    assert content["runs"] == [{"source": "runs/a", "strength": 0.1, "seed": 5, "size": 2}]
    assert content["trials"][1]["accuracy"] == {"mean": 0.85, "standard_error": 0.005, "seeds": 3}
