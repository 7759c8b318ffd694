import json
import math

import pytest

import greedy_ensembles as ge
from greedy_ensembles.benchmark.stored_runs import facts_of
from greedy_ensembles.report.page.trained import trained_run, trained_table


@pytest.fixture
def run(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=3, strength=1.0, run_dir=tmp_path / "run", **quick)
    return ge.load_run(tmp_path / "run", make_model)


def test_a_chart_for_each_figure_and_a_line_for_each_member(run):
    shown = trained_run("greedy", run)
    loss, diversity, accuracy = shown.charts
    assert [chart.title for chart in shown.charts] == ["Loss", "Diversity term", "Validation accuracy"]
    assert [series.name for series in loss.series] == ["member 1", "member 2", "member 3"]
    assert [series.name for series in diversity.series] == ["member 2", "member 3"]  # the first has none
    assert [series.style for series in diversity.series] == [1, 2]  # and the others keep their styles
    assert len(accuracy.series) == 3
    last = run.histories[-1][-1]
    assert f"{last['loss']:.3g}." in loss.alt
    assert f"{last['diversity']:.3g}." in diversity.alt


def test_the_configuration_is_whole_but_for_shapes_and_hashes(run):
    shown = json.loads(trained_run("greedy", run).configuration)
    assert shown["strength"] == 1.0
    assert shown["recipe"]["epochs"] == 3
    assert shown["versions"]["greedy_ensembles"] == ge.__version__
    assert isinstance(shown["model"], str)  # the factory, and not the shapes


def test_deep_ensembles_and_runs_without_validation_have_fewer_charts(blobs, quick, make_model, tmp_path):
    ge.fit(make_model, blobs, size=2, method="deep", validation=0, run_dir=tmp_path / "deep", **quick)
    run = ge.load_run(tmp_path / "deep", make_model)
    assert [chart.title for chart in trained_run("deep", run).charts] == ["Loss"]
    (row,) = trained_table([("deep", run, facts_of(run))]).rows
    assert row["validation accuracy"].sort_key == row["validation accuracy"].text == ""


def test_the_table_has_what_was_asked_and_what_came_of_it(run):
    table = trained_table([("greedy, lambda_M = 1", run, facts_of(run))])
    (line,) = table.lines()
    cells = dict(zip((column.title for column in table.columns), line.cells, strict=True))
    mean = sum(member["validation_accuracy"] for member in run.members) / 3
    assert cells["validation accuracy"] == f"{mean:.2%}"
    assert (cells["M"], cells["lambda_M"], cells["seed"], cells["epochs"]) == ("3", "1", "0", "3")


def test_histories_from_other_people_may_hold_anything(run):
    run.histories[0] = [{"epoch": 1, "loss": "<script>"}, {"epoch": True, "loss": 1.0}, {"epoch": 2, "loss": math.nan}]
    run.histories[1] = ["nothing", {"epoch": 1, "loss": 0.5, "diversity": None}]
    run.histories[2] = []
    (chart,) = trained_run("odd", run).charts
    assert [series.name for series in chart.series] == ["member 2"]
