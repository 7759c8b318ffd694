import re

import numpy as np
import pytest

from greedy_ensembles import metrics
from greedy_ensembles.benchmark import Comparison, Estimate, Evaluation, InDomain, Method, OutOfDistribution
from greedy_ensembles.benchmark.comparison import Setting
from greedy_ensembles.paper import published
from greedy_ensembles.report.page.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH
from greedy_ensembles.report.page.evaluated import evaluated
from greedy_ensembles.report.results import tables


def evaluation(shift, seed, sets=("uniform", "gaussian", "dtd")):
    generator = np.random.default_rng(seed)
    inside = generator.exponential(0.1, 80)
    outside = []
    for name in sets:
        scores = generator.exponential(0.1, 40) + shift
        area, precision = metrics.auroc(inside, scores), metrics.average_precision(inside, scores)
        kind = "natural" if name == "dtd" else "synthetic"
        note = "half of it" if name == "dtd" else ""
        outside.append(OutOfDistribution(name, kind, 40, note, float(area), float(precision), 0.5, scores))
    domain = InDomain("mnist", 80, "", 0.9 + shift / 10, 0.3, 0.2, 0.01, 0.02, inside)
    return Evaluation("mutual_information", 3, domain, tuple(outside), ("omniglot",))


@pytest.fixture
def comparison():
    setting = Setting("PreResNet8", "mnist", 3, "deep")
    deep = Method("Deep Ensembles", (evaluation(0.05, 0), evaluation(0.05, 1)), (0, 3), setting, ("a", "b"))
    greedy = Method("greedy, lambda_M = 0.1", (evaluation(0.2, 2),), (0,), None, ("c",))
    return Comparison((deep, greedy), published=published)


def test_the_tables_are_those_of_the_other_formats_with_the_papers_figures(comparison):
    shown = evaluated(comparison, {})
    assert [table.title for table in shown.tables] == [table.title for table in tables(comparison)]
    assert "(a) half of it" in shown.notes
    assert shown.notes[0].startswith("paper: ")
    alone = Comparison(comparison.methods[1:])
    assert not any("paper" in note for note in evaluated(alone, {}).notes)


def polygon_area(path):
    """Return the area below a line from (0, .) to (1, .), in the units of the data, by trapezes."""
    points = np.array([pair.split() for pair in re.findall(r"[\d.]+ [\d.]+", path)], dtype=float)
    x = (points[:, 0] - LEFT) / (WIDTH - LEFT - RIGHT)
    y = (HEIGHT - BOTTOM - points[:, 1]) / (HEIGHT - TOP - BOTTOM)
    return float(np.trapezoid(y, x))


def test_areas_below_the_drawn_curves_are_auc_and_ap(comparison):
    view = evaluated(comparison, {}).sets[0]
    roc, recall = view.charts[:2]
    assert [series.kind for series in roc.series] == ["chance", "line", "line"]
    for number, method in enumerate(comparison.methods):
        inside = np.mean([e.in_domain.scores for e in method.evaluations], axis=0)
        outside = np.mean([e.ood[0].scores for e in method.evaluations], axis=0)
        assert polygon_area(roc.series[number + 1].path) == pytest.approx(metrics.auroc(inside, outside), abs=2e-3)
        precision = metrics.average_precision(inside, outside)
        assert polygon_area(recall.series[number + 1].path) == pytest.approx(precision, abs=2e-3)
        assert f"{method.label} {precision:.3f}" in recall.alt
    assert polygon_area(roc.series[0].path) == pytest.approx(0.5, abs=1e-3)
    assert polygon_area(recall.series[0].path) == pytest.approx(40 / 120, abs=1e-3)


def test_histograms_hold_all_images_on_a_root_scale(comparison):
    histogram = evaluated(comparison, {}).sets[0].charts[2]
    assert [series.kind for series in histogram.series] == ["inside", "area"]
    for series in histogram.series:
        points = np.array([pair.split() for pair in re.findall(r"[\d.]+ [\d.]+", series.path)], dtype=float)
        heights = (HEIGHT - BOTTOM - points[1:-1:2, 1]) / (HEIGHT - TOP - BOTTOM) * 10
        assert np.sum(heights**2) == pytest.approx(100, abs=3)  # the highest 0.1 % may be left out
    assert [text for _, text in histogram.y_ticks] == ["0", "4", "25", "64", "100"]


def test_a_radar_needs_three_sets(comparison):
    assert "uniform" in evaluated(comparison, {}).radar.alt
    few = Comparison((Method("deep", (evaluation(0.1, 0, ("uniform", "dtd")),)),))
    assert evaluated(few, {}).radar is None


def test_images_are_shown_where_they_are_known(comparison):
    images = {"mnist": np.zeros((80, 1, 4, 4), np.uint8), "dtd": np.zeros((40, 1, 4, 4), np.uint8)}
    shown = evaluated(comparison, images)
    assert [len(view.galleries) for view in shown.sets] == [0, 0, 3]
    assert len(shown.in_domain) == 3
    assert "half of it" in shown.sets[2].summary


def test_an_evaluation_without_ood_sets_has_tables_alone():
    inside = Comparison((Method("deep", (evaluation(0.1, 0, ()),)),))
    shown = evaluated(inside, {"mnist": np.zeros((80, 1, 4, 4), np.uint8)})
    assert (shown.sets, shown.radar, shown.in_domain) == ([], None, [])
    assert isinstance(comparison_estimate := inside.in_domain_rows[0].figures["nll"].ours, Estimate)
    assert comparison_estimate.mean == 0.3
