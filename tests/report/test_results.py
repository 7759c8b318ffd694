"""The tables of a comparison."""

import csv
import dataclasses
import io
import json
import math

import pytest
from rich.console import Console

from greedy_ensembles.benchmark import Comparison, Method
from greedy_ensembles.benchmark.evaluation import Detection
from greedy_ensembles.report.results import (
    notes,
    show,
    tables,
    to_json,
    to_json_text,
    to_latex,
    to_markdown,
    write_tables,
)
from greedy_ensembles.report.table import to_csv


def shown(table):
    return [tuple(cells) for _, cells in table.printed()]


def test_figures_within_the_domain(comparison):
    assert shown(tables(comparison)[0]) == [
        (
            *("Deep Ensembles", "2", "91.00±1.00 (99.43±0.01)", "25.00±0.00 (1.65±0.04)"),
            *("20.00±0.00", "1.10±0.00", "2.00±0.00 (0.22±0.01)"),
        ),
        ("mine", "1", "100.00", "25.00", "20.00", "1.10", "2.00"),
    ]


def test_figures_on_ood_sets_with_counts_of_images_and_seeds(comparison):
    lines = shown(tables(comparison)[1])
    first = "0.810±0.010 (0.30±0.22)", "0.700±0.000 (0.62±0.10)", "0.500±0.000 (0.77±0.18)"
    second = "0.600±0.000 (0.87±0.05)", "0.500±0.000 (0.92±0.03)", "0.900±0.000 (0.67±0.24)"
    assert lines[:5] == [
        ("uniform", "25,000", "Deep Ensembles", "2", *first),
        ("", "", "mine", "1", "0.900", "0.700", "0.500"),
        ("fashion_mnist (a)", "9,000 (10,000)", "Deep Ensembles", "2", *second),
        ("", "", "mine", "1", "0.600", "0.500", "0.900"),
        ("dtd", "missing", "", "", "", "", ""),
    ]
    means = [line[0] for line in lines if line[0].startswith("mean")]
    assert means == ["mean of 1 synthetic", "mean of 1 of 2 natural", "mean of 2 of 3 sets"]


def test_what_stands_below(comparison):
    assert [note.partition(":")[0] for note in notes(comparison)] == [
        "in brackets",
        "(a) 50 % of it & no more",
        "missing",
        "±",
        "trained on a part",
    ]
    assert "dtd" in notes(comparison)[2]
    output = io.StringIO()
    show(comparison, Console(file=output, width=120))
    assert all(note in output.getvalue() for note in notes(comparison))
    assert "in brackets" not in to_latex(Comparison(comparison.methods))


def test_titles_have_the_networks_that_all_share_and_the_count_of_images(comparison):
    assert tables(comparison)[0].title == "mnist, 100 images, in-domain (PreResNet8, 5 members)"
    assert "against 100 images of mnist, by mutual information" in tables(comparison)[1].title
    one, other = comparison.methods
    larger = dataclasses.replace(other.evaluations[0], members=11)
    sizes = dataclasses.replace(comparison, methods=(one, dataclasses.replace(other, evaluations=(larger,))))
    assert tables(sizes)[0].title.endswith("(PreResNet8)")
    networks = dataclasses.replace(comparison, methods=(one, dataclasses.replace(other, architecture="VGG16BN")))
    assert tables(networks)[0].title.endswith("(5 members)")


def test_csv_has_one_figure_a_line(comparison):
    text = to_csv(tables(comparison))
    assert text.splitlines()[0] == (
        "set,kind,in_domain_images,images,method,seeds,metric,mean,standard_error,"
        "paper,paper_standard_error,difference,paper_images,note,score,networks,notes"
    )
    rows = list(csv.DictReader(text.splitlines()))
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
    assert list(content["ood"][0]) == ["set", "kind", "images", "paper_images", "note", "method", "figures"]
    assert [len(content[part]) for part in ("in_domain", "ood", "means")] == [2, 5, 6]
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
    content = {"a": [0.1, math.inf], "b": ({"c": -math.inf},), "d": [math.nan, None, True, 3, "x"]}
    found = json.loads(to_json_text(content), parse_constant=pytest.fail)
    assert found == {"a": [0.1, "inf"], "b": [{"c": "-inf"}], "d": ["nan", None, True, 3, "x"]}


def test_markdown_has_a_table_for_each_ood_figure(comparison):
    text = to_markdown(comparison)
    assert "| Deep Ensembles | 2 | 91.00±1.00 (99.43±0.01) | 25.00±0.00 (1.65±0.04) | 20.00±0.00 |" in text
    blocks = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 4
    for block in blocks:
        assert len({line.count("|") for line in block.splitlines()}) == 1
    assert blocks[1].splitlines()[2:] == [
        "| uniform, 25,000 images | synthetic | 0.810±0.010 (0.30±0.22) | 0.900 |",
        "| fashion_mnist, 9,000 images (a) | natural | 0.600±0.000 (0.87±0.05) | 0.600 |",
        "| dtd | missing |  |  |",
        "| mean of 1 synthetic | mean | 0.810±0.010 (0.30±0.22) | 0.900 |",
        "| mean of 1 of 2 natural | mean | 0.600±0.000 (0.87±0.05) | 0.600 |",
        "| mean of 2 of 3 sets | mean | 0.705±0.005 (0.58) | 0.750 |",
    ]
    assert all(f"- {note}" in text for note in notes(comparison)[1:])
    assert " In brackets: the paper's figures, " in text


def test_means_by_every_score_stand_below_the_sets(comparison):
    """A mean over sets is taken for each seed first; there is none of a score that some set of a kind lacks."""
    areas = {"mutual_information": (0.8, 0.6), "predictive_entropy": (0.7, 0.5), "energy": (0.4, 0.9)}

    def scored(evaluation, shift):
        sets = [
            dataclasses.replace(
                one, by_score={name: Detection(pair[number] + shift, 0.5, 0.5) for name, pair in areas.items()}
            )
            for number, one in enumerate(evaluation.ood)
        ]
        partly = dataclasses.replace(sets[1], by_score=sets[1].by_score | {"knn": Detection(0.1, 0.5, 0.5)})
        return dataclasses.replace(evaluation, ood=(sets[0], partly))

    methods = [
        dataclasses.replace(
            method, evaluations=tuple(scored(one, 0.02 * seed) for seed, one in enumerate(method.evaluations))
        )
        for method in comparison.methods
    ]
    text = to_markdown(dataclasses.replace(comparison, methods=tuple(methods)))
    table = next(block for block in text.split("\n\n") if block.startswith("|  | score |"))
    assert [line for line in table.splitlines() if "knn" in line] == [
        "| mean of 1 of 2 natural | knn | 0.100±0.000 | 0.100 |"  # the synthetic set has no features
    ]
    assert [line for line in table.splitlines() if "energy" in line] == [
        "| mean of 1 synthetic | energy | 0.410±0.010 | 0.400 |",
        "| mean of 1 of 2 natural | energy | 0.910±0.010 | 0.900 |",
        "| mean of 2 of 3 sets | energy | 0.660±0.010 | 0.650 |",
    ]


def test_synthetic_sets_come_before_natural_ones_in_markdown(comparison):
    def turned(evaluation):
        return dataclasses.replace(evaluation, ood=evaluation.ood[::-1])

    methods = [
        dataclasses.replace(method, evaluations=tuple(map(turned, method.evaluations))) for method in comparison.methods
    ]
    text = to_markdown(dataclasses.replace(comparison, methods=tuple(methods)))
    assert text.index("| uniform") < text.index("| fashion_mnist")


def test_a_note_on_the_in_domain_set_has_a_mark(comparison):
    def noted(evaluation):
        return dataclasses.replace(evaluation, in_domain=dataclasses.replace(evaluation.in_domain, note="half"))

    methods = [
        dataclasses.replace(method, evaluations=tuple(map(noted, method.evaluations))) for method in comparison.methods
    ]
    changed = dataclasses.replace(comparison, methods=tuple(methods))
    assert tables(changed)[0].title.startswith("mnist (a), 100 images")
    assert "mnist, 100 images (a)." in to_markdown(changed)
    assert notes(changed)[1:3] == ["(a) half", "(b) 50 % of it & no more"]


def test_files(comparison, tmp_path):
    paths = write_tables(comparison, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["evaluation.csv", "evaluation.json", "evaluation.tex"]
    assert len(list(csv.DictReader(paths[0].read_text().splitlines()))) == 41
    assert json.loads(paths[1].read_text())["score"] == "mutual_information"
    assert paths[2].read_text().count(r"\begin{table}") == 2
