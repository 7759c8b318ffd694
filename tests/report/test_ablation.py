import csv
import io
import json
import math
from itertools import pairwise

import numpy as np
import pytest
from rich.console import Console

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain
from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.benchmark.selection import Trial, choose
from greedy_ensembles.report import ablation as report
from greedy_ensembles.report.ablation import draw_ablation
from greedy_ensembles.report.figure import write_figure

STRENGTHS = [0.1, 0.5, 0.8, 1.0, 1.5, 3.0, 10.0]


def trial(strength, seeds=5):
    shift, error = 0.001 * (strength or 0), (lambda value: value if seeds > 1 else None)
    return Trial(
        strength,
        Estimate(0.8 - shift, error(0.002), seeds),
        Estimate(0.7 + shift, error(0.003), seeds),
        Estimate(0.01 + shift, error(0.004), seeds),
    )


def all_trials(seeds=5):
    return [trial(strength, seeds) for strength in [3.0, None, *(s for s in STRENGTHS if s != 3.0)]]


def points(axis):
    return axis.containers[0][0].get_data()


def named_ticks(axis):
    axis.figure.canvas.draw()
    return {tick.get_text(): x for tick, x in zip(axis.get_xticklabels(), axis.get_xticks(), strict=True)}


def test_points_are_in_order_and_in_their_units():
    figure = draw_ablation(all_trials(), "CIFAR-10", "greedy")
    assert figure.get_suptitle() == "CIFAR-10"
    shifts = 0.001 * np.array(STRENGTHS)
    expected = {"accuracy (%)": 100 * (0.8 - shifts), "NLL (nats)": 0.7 + shifts, "ACE (%)": 100 * (0.01 + shifts)}
    assert [axis.get_ylabel() for axis in figure.axes] == list(expected)
    for axis, values in zip(figure.axes, expected.values(), strict=True):
        x, y = points(axis)
        assert x.tolist() == STRENGTHS
        assert y == pytest.approx(values)
        assert axis.get_xlabel() == r"$\lambda_M$"


def test_bars_and_band_are_one_standard_error():
    for axis, (mean, error) in zip(
        draw_ablation(all_trials(), "CIFAR-10", "greedy").axes, [(80, 0.2), (0.7, 0.003), (1, 0.4)], strict=True
    ):
        bar = axis.containers[0][2][0].get_segments()[0]
        assert bar[1, 1] - bar[0, 1] == pytest.approx(2 * error)
        (band,) = axis.patches
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((mean - error, mean + error))
        (level,) = (line for line in axis.lines if line.get_label() == "Deep Ensembles")
        assert level.get_ydata() == pytest.approx([mean, mean])


def test_differences_in_the_last_digit_do_not_fill_the_axis():
    """Nor are large ones cut off."""
    near = {strength: Estimate(0.9 + 1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    level = [Trial(strength, value, value, value) for strength, value in near.items()]
    figure = draw_ablation(level, "CIFAR-10", "greedy", others={"AUC": near})
    spans = [np.ptp(axis.get_ylim()) for axis in figure.axes]
    assert spans == pytest.approx([0.5, 0.01, 0.1, 0.02])
    for axis in draw_ablation(all_trials(), "CIFAR-10", "greedy").axes:
        low, high = axis.get_ylim()
        assert low <= points(axis)[1].min()
        assert points(axis)[1].max() <= high


def test_axes_do_not_go_where_there_can_be_no_figures():
    best = {strength: Estimate(1 - 1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    none = {strength: Estimate(1e-5 * number, None, 1) for number, strength in enumerate((None, 1.0, 3.0))}
    trials = [Trial(strength, best[strength], none[strength], none[strength]) for strength in best]
    accuracy, nll, ace, auc = draw_ablation(trials, "MNIST", "greedy", others={"AUC": best}).axes
    for axis, (low, high) in ((accuracy, (99.5, 100)), (nll, (0, 0.01)), (ace, (0, 0.1)), (auc, (0.98, 1))):
        margin = 0.01 * (high - low)  # which points at the end need
        assert axis.get_ylim() == pytest.approx((low, high), abs=margin)


def test_the_chosen_strength_is_marked_and_named():
    figure = draw_ablation(all_trials(), "CIFAR-10", "greedy", chosen=0.8)
    for axis in figure.axes:
        (mark,) = (line for line in axis.lines if "chosen" in line.get_label())
        x, y = points(axis)
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (0.8, y[x.tolist().index(0.8)])
    assert "0.8" in named_ticks(figure.axes[0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "greedy",
        "Deep Ensembles",
        r"chosen: $\lambda_M$ = 0.8",
    ]


def test_strengths_are_spaced_by_ratio_and_labels_do_not_meet():
    figure = draw_ablation(all_trials(), "CIFAR-10", "greedy", chosen=1.0)
    for axis in figure.axes:
        assert axis.get_xscale() == "log"
        ticks = named_ticks(axis)
        assert {"0.1", "1", "10"} <= set(ticks)
        assert set(ticks.values()) | set(axis.get_xticks(minor=True)) == set(STRENGTHS)
        boxes = [label.get_window_extent() for label in axis.get_xticklabels()]
        assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize("strengths", [[0.0, 0.1, 1.0, 10.0], [0.0], [0.0, 5.0]])
def test_zero_has_a_place(strengths):
    figure = draw_ablation([trial(strength) for strength in strengths], "CIFAR-10", "greedy")
    axis = figure.axes[0]
    assert axis.get_xscale() == "symlog"
    assert list(named_ticks(axis).values()) == strengths
    places = axis.transData.transform([(strength, 80) for strength in strengths])[:, 0]
    assert (np.diff(places) > 20).all()
    assert np.isfinite(places).all()


def test_other_figures_stand_below():
    areas = {strength: Estimate(0.9 if strength is None else strength / 20, 0.01, 5) for strength in [None, *STRENGTHS]}
    figure = draw_ablation(all_trials(), "CIFAR-10", "greedy", others={"AUC, natural": areas, "AUC, synthetic": areas})
    assert [axis.get_ylabel() for axis in figure.axes[3:]] == ["AUC, natural", "AUC, synthetic"]
    for axis in figure.axes[3:]:
        x, y = points(axis)
        assert (x.tolist(), y) == (STRENGTHS, pytest.approx(np.array(STRENGTHS) / 20))
        (level,) = (line for line in axis.lines if line.get_label() == "Deep Ensembles")
        assert level.get_ydata() == pytest.approx([0.9, 0.9])
    figure.canvas.draw()
    tops = [axis.get_position().y1 for axis in figure.axes]
    assert max(tops[3:]) < min(axis.get_position().y0 for axis in figure.axes[:3])


def test_without_deep_ensembles(tmp_path):
    figure = draw_ablation([trial(1.0)], "CIFAR-10", "greedy", chosen=1)
    assert not figure.axes[0].patches
    write_figure(figure, tmp_path / "ablation.png")
    assert (tmp_path / "ablation.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_trial():
    good = Estimate(0.5, None, 1)
    with pytest.raises(ValueError, match=r"accuracy .*from 0 to 1, not per cent.*got 95\.4"):
        Trial(1.0, Estimate(95.4, None, 1), good, good)
    with pytest.raises(ValueError, match="strength must be finite and at least 0, got nan"):
        Trial(float("nan"), good, good, good)


@pytest.fixture
def measured_on():
    return InDomain("mnist, held out", 200, "100 % [odd]", 0.9, 0.3, 0.2, 0.01, 0.02, np.zeros(2))


@pytest.fixture
def chosen():
    def make(*accuracies, by="accuracy"):
        figures = zip((None, 0.1, 3.0, 5.0), accuracies, strict=False)
        rest = Estimate(0.25, 0.001, 3), Estimate(0.0123, 0.0004, 3)
        return choose([Trial(strength, Estimate(mean, 0.005, 3), *rest) for strength, mean in figures], by)

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
    assert "mnist, held out, 200 examples for each seed" in text
    assert "mnist, held out: 100 % [odd]" in text
    assert "Chosen: lambda_M = 0.1" in text


def test_an_infinite_likelihood_is_json_and_a_picture_all_the_same(measured_on, tmp_path):
    good = Estimate(0.5, 0.01, 2)
    trials = [Trial(None, good, good, good), Trial(1.0, good, Estimate(math.inf, None, 2), good)]
    paths = report.write(choose(trials), measured_on, [], tmp_path)
    content = json.loads(paths[1].read_text(), parse_constant=pytest.fail)
    assert content["trials"][0]["nll"]["mean"] == "inf"


def test_files(chosen, measured_on, tmp_path):
    model = {"partial": "PreResNet", "args": [8], "keywords": {}}
    method = {"label": "greedy", "strength": 0.1}
    asked = {
        "method": method,
        "seed": 5,
        "weighting": None,
        "schedule": "sequential",
        "recipe": {},
        "distance": "logits",
    }
    known = {"size": 2, "configuration": asked, "model": model, "data": None}
    paths = report.write(chosen(0.9, 0.91, 0.85), measured_on, [RunFacts("runs/a", known)], tmp_path / "new")
    assert [path.name for path in paths] == ["selection.csv", "selection.json", "ablation.png"]
    assert all(path.stat().st_size > 100 for path in paths)
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert [(row["lambda_M"], row["harms"]) for row in rows if row["metric"] == "accuracy"] == [
        ("", ""),
        ("0.1", "no"),
        ("3.0", "yes"),
    ]
    assert {(row["set"], row["images"], row["note"], row["seeds"], row["by"]) for row in rows} == {
        ("mnist, held out", "200", "100 % [odd]", "3", "accuracy")
    }
    content = json.loads(paths[1].read_text())
    assert (content["chosen"], content["by"], content["measured_on"]["images"]) == (0.1, "accuracy", 200)
    assert content["runs"] == [{"source": "runs/a", "strength": 0.1, "seed": 5, "size": 2}]
    assert content["trials"][1]["accuracy"] == {"mean": 0.85, "standard_error": 0.005, "seeds": 3}
