import json
import math
import re

import pytest

import greedy_ensembles as ge
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.report.page import render
from greedy_ensembles.report.page.build import build_page, dataset_of, trained_run, trained_table
from greedy_ensembles.report.planes import KnownPoints


@pytest.fixture
def train(blobs, quick, make_model, tmp_path):
    def run(name, data=blobs, **options):
        options = {"method": "deep", **options} if "strength" not in options else options
        ge.fit(make_model, data, size=2, run_dir=tmp_path / name, **{**quick, **options})
        return ge.load_run(tmp_path / name, make_model)

    return run


def test_a_part_for_each_data_set_and_runs_in_the_order_of_tables(train, blobs):
    x, y = blobs
    runs = [train("greedy", strength=1.0), train("other", (x + 1, y)), train("deep", seed=4), train("first", seed=0)]
    first, second = build_page(runs)
    assert [first.name, second.name] == [dataset_of(runs[0]), dataset_of(runs[1])]
    assert f"<title>{first.name} and {second.name} " in render([first, second])
    assert [row["method"].value for row in first.trained.rows] == [
        "Deep Ensembles",
        "Deep Ensembles",
        "greedy, lambda_M = 1",
    ]
    assert [row["seed"].text for row in first.trained.rows] == ["0", "4", "0"]
    assert [chart.title for chart, _ in first.maps] == [
        "Deep Ensembles, seed 0",
        "Deep Ensembles, seed 4",
        "greedy, lambda_M = 1",
    ]


def test_known_points_give_the_part_its_name(train, blobs):
    x, y = (part.numpy() for part in blobs)
    asked = []
    (part,) = build_page([train("deep")], points=lambda run: asked.append(run) or KnownPoints("clouds", x, y))
    assert part.name == "clouds"
    assert len(asked) == 1


def test_a_run_whose_model_is_not_known_has_curves_and_no_map(train, tmp_path):
    train("deep")
    (part,) = build_page([ge.load_run(tmp_path / "deep")])
    assert not part.maps
    assert len(part.runs[0].charts) == 2
    (note,) = part.notes
    assert "trained with a model of your own" in note


def test_a_damaged_run_is_refused(train, tmp_path):
    train("deep")
    (tmp_path / "deep" / "members" / "01" / "weights.safetensors").write_bytes(b"")
    with pytest.raises(ge.FolderError, match="damaged"):
        build_page([ge.load_run(tmp_path / "deep", lambda: ge.models.MLP(2, hidden=(8,)))])


def test_an_unfinished_run_is_shown_as_such(train, blobs, make_model, quick, tmp_path):
    run = train("run")
    run.members.pop()
    run.histories.pop()
    run.information["size"] = 2
    (part,) = build_page([run])
    assert part.trained.rows[0]["M"].text == "1 of 2"
    assert len(part.runs[0].members) == 1


def test_runs_that_share_members_or_none_at_all_are_refused(train):
    with pytest.raises(ValueError, match="seeds at least 2 apart"):
        build_page([train("one", seed=0), train("two", seed=1)])
    with pytest.raises(ValueError, match="at least one run"):
        build_page([])


@pytest.fixture
def trained(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=3, strength=1.0, run_dir=tmp_path / "run", **quick)
    return ge.load_run(tmp_path / "run", make_model)


def lines(chart):
    """The series of a chart, each with the number of its colour."""
    return {name: int(colour) for name, colour in re.findall(r'data-series="([^"]*)".*?var\(--c(\d)\)', chart.svg)}


def test_a_chart_for_each_figure_and_a_line_for_each_member(trained):
    shown = trained_run("greedy", trained)
    loss, diversity, accuracy = shown.charts
    assert [chart.title for chart in shown.charts] == ["Loss", "Diversity term", "Validation accuracy"]
    assert lines(loss) == {"member 1": 0, "member 2": 1, "member 3": 2}
    assert lines(diversity) == {"member 2": 1, "member 3": 2}  # the first has none, and the others keep their colours
    assert lines(accuracy) == lines(loss)
    last = trained.histories[-1][-1]
    assert f"{last['loss']:.3g}." in loss.alt
    assert f"{last['diversity']:.3g}." in diversity.alt


def test_the_configuration_is_whole_but_for_shapes_and_hashes(trained):
    shown = json.loads(trained_run("greedy", trained).configuration)
    assert shown["method"]["strength"] == 1.0
    assert shown["recipe"]["epochs"] == 3
    assert shown["versions"]["greedy_ensembles"] == ge.__version__
    assert isinstance(shown["model"], str)  # the factory, and not the shapes


def test_deep_ensembles_and_runs_without_validation_have_fewer_charts(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=2, method="deep", validation=0, run_dir=tmp_path / "deep", **quick)
    run = ge.load_run(tmp_path / "deep", make_model)
    assert [chart.title for chart in trained_run("deep", run).charts] == ["Loss"]
    (row,) = trained_table([("deep", run, facts_of(run))]).rows
    assert row["validation accuracy"].sort_key == row["validation accuracy"].text == ""


def test_the_table_has_what_was_asked_and_what_came_of_it(trained):
    table = trained_table([("greedy, lambda_M = 1", trained, facts_of(trained))])
    ((_, shown),) = table.printed()
    cells = dict(zip((column.title for column in table.columns), shown, strict=True))
    mean = sum(member["validation_accuracy"] for member in trained.members) / 3
    held_out = trained.information["validation_examples"]
    (part,) = build_page([trained])
    assert part.finding.cells() == [["greedy, lambda_M = 1", f"{100 * mean:.2f}"]]
    assert cells["validation accuracy"] == f"{mean:.2%} of {held_out}"
    assert (mean * 3 * held_out) == pytest.approx(round(mean * 3 * held_out), abs=1e-4)  # whole examples
    assert (cells["M"], cells["lambda_M"], cells["seed"], cells["epochs"]) == ("3", "1", "0", "3")


def test_histories_from_other_people_may_hold_anything(trained):
    odd = (
        {"epoch": 1, "loss": "<script>"},
        {"epoch": True, "loss": 1.0},
        {"epoch": 2, "loss": math.nan},
        {"epoch": 1, "loss": 10**400},
    )
    trained.histories[0] = list(odd)
    trained.histories[1] = ["nothing", {"epoch": 1, "loss": 0.5, "diversity": None}]
    trained.histories[2] = []
    (chart,) = trained_run("odd", trained).charts
    assert lines(chart) == {"member 2": 1}
