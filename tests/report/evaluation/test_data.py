import csv
import dataclasses
import json
import math

import pytest

from greedy_ensembles.benchmark import Comparison, Method
from greedy_ensembles.report.evaluation import to_csv, to_json, write_tables


def test_csv_has_one_figure_a_line(comparison):
    rows = list(csv.DictReader(to_csv(comparison).splitlines()))
    # Two methods: five in-domain figures, three on each of two sets, three for each of three means; one set is missing.
    assert len(rows) == 2 * (5 + 3 * 2 + 3 * 3) + 1
    (area,) = (r for r in rows if (r["set"], r["method"], r["metric"]) == ("fashion_mnist", "Deep Ensembles", "auc"))
    assert float(area["mean"]) == pytest.approx(0.6)
    assert float(area["paper"]) == 0.87
    assert float(area["difference"]) == pytest.approx(-0.27)
    counts = [area[name] for name in ("in_domain_images", "images", "paper_images", "seeds")]
    assert counts == ["100", "9000", "10000", "2"]
    assert (area["kind"], area["note"]) == ("natural", "50 % of it & no more")
    assert (area["networks"], area["score"], area["notes"]) == (
        "PreResNet8, 5 members",
        "mutual_information",
        "trained on a part",
    )
    assert {row["score"] for row in rows if row["kind"] == "in-domain"} == {""}
    (hole,) = (r for r in rows if r["set"] == "dtd")
    assert (hole["kind"], hole["mean"], hole["images"]) == ("missing", "", "")


def test_json_has_every_seed(comparison):
    content = json.loads(to_json(comparison))
    deep, mine = content["methods"]
    assert [each["in_domain"]["accuracy"] for each in deep["evaluations"]] == pytest.approx([0.9, 0.92])
    assert [each["ood"][0]["auc"] for each in deep["evaluations"]] == pytest.approx([0.8, 0.82])
    assert (deep["seeds"], deep["sources"]) == ([0, 5], ["runs/a_0", "runs/a_5"])
    assert deep["setting"]["architecture"] == mine["architecture"] == "PreResNet8"
    assert mine["setting"] is None
    assert "scores" not in to_json(comparison)
    assert "content" in deep["evaluations"][0]["ood"][0]
    assert content["ood"][0]["figures"]["auc"]["standard_error"] == pytest.approx(0.01)
    assert (content["missing"], content["notes"], content["score"]) == (
        ["dtd"],
        ["trained on a part"],
        "mutual_information",
    )


def test_infinity_is_json_all_the_same(comparison):
    first = comparison.first
    infinite = dataclasses.replace(first, in_domain=dataclasses.replace(first.in_domain, nll=math.inf))
    content = json.loads(to_json(Comparison((Method("x", (infinite,)),))), parse_constant=pytest.fail)
    assert content["in_domain"][0]["figures"]["nll"]["mean"] == "inf"


def test_files(comparison, tmp_path):
    paths = write_tables(comparison, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["evaluation.csv", "evaluation.json", "evaluation.tex"]
    assert paths[0].read_text() == to_csv(comparison)
    assert json.loads(paths[1].read_text())["score"] == "mutual_information"
