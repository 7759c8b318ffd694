import base64
import dataclasses
import io

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score, roc_auc_score

from greedy_ensembles import metrics
from greedy_ensembles.benchmark import Comparison, Evaluation, InDomain, Method, OutOfDistribution
from greedy_ensembles.benchmark.runs import Setting
from greedy_ensembles.paper import published
from greedy_ensembles.report.page.build import evaluated, finding, galleries
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
    assert shown.notes[0].startswith("in brackets: ")
    alone = Comparison(comparison.methods[1:])
    assert not any("paper" in note for note in evaluated(alone, {}).notes)


def test_the_finding_keeps_natural_and_synthetic_sets_apart(comparison):
    def means(method, kind):
        return [np.mean([each.auc for each in one.ood if each.kind == kind]) for one in method.evaluations]

    deep, greedy = comparison.methods
    table = finding(comparison)
    for kind, count in (("Natural", "1 set"), ("Synthetic", "2 sets")):
        area = f"{means(greedy, kind.lower())[0]:.3f}"
        lead = f"{kind} OOD inputs are detected best by greedy, lambda_M = 0.1: mean AUC "
        assert f"{lead}{area} over {count}" in table.title
    headings = ["method", "seeds", "AUC, natural ↑", "FPR95, natural ↓", "AUC, synthetic ↑", "FPR95, synthetic ↓"]
    assert [column.title for column in table.shown] == [*headings, "accuracy (%) ↑"]
    apart = [
        f"{np.mean(two):.3f}±{np.std(two, ddof=1) / np.sqrt(2):.3f}"
        for two in (means(deep, "natural"), means(deep, "synthetic"))
    ]
    alone = [f"{means(greedy, kind)[0]:.3f}" for kind in ("natural", "synthetic")]
    assert table.cells() == [
        ["greedy, lambda_M = 0.1", "1", alone[0], "0.500", alone[1], "0.500", "92.00"],
        ["Deep Ensembles", "2", apart[0], "0.500±0.000", apart[1], "0.500±0.000", "90.50±0.00"],
    ]
    assert [table.best(column) for column in table.shown] == [set(), set(), {0}, set(), {0}, set(), {0}]
    assert table.notes[1:] == ["With one seed, a difference may be chance."]
    assert finding(Comparison(comparison.methods[::-1])) == table


def test_noise_that_is_detected_better_does_not_hide_natural_inputs_that_are_detected_worse():
    def method(name, natural, noise):
        one = evaluation(0.0, 0, ("uniform", "gaussian", "dtd"))
        ood = [dataclasses.replace(each, auc=natural if each.kind == "natural" else noise) for each in one.ood]
        return Method(name, (dataclasses.replace(one, ood=tuple(ood)),))

    table = finding(Comparison((method("pushed apart", 0.4, 1.0), method("plain", 0.6, 0.5))))
    assert "Natural OOD inputs are detected best by plain: mean AUC 0.600 over 1 set" in table.title
    assert "Synthetic OOD inputs are detected best by pushed apart: mean AUC 1.000 over 2 sets" in table.title
    assert [cells[0] for cells in table.cells()] == ["plain", "pushed apart"]


def test_a_finding_of_one_method_or_on_one_set(comparison):
    alone = finding(Comparison(comparison.methods[1:]))
    assert (len(alone.rows), len(alone.notes)) == (1, 1)
    assert " are detected by greedy, lambda_M = 0.1: mean AUC " in alone.title
    one = evaluation(0.1, 0, ("dtd",))
    table = finding(Comparison((Method("a", (one,)), Method("b", (one,)))))
    area = f"{one.ood[0].auc:.3f}"
    assert table.title.endswith(f" by a and b: mean AUC {area} and {area} over 1 set")
    assert table.cells()[0][:3] == ["a", "1", f"{one.ood[0].auc:.3f}"]


def test_methods_within_standard_errors_are_equally_good():
    def method(name, *shifts):
        return Method(name, tuple(evaluation(shift, seed, ("dtd",)) for seed, shift in enumerate(shifts)))

    near, far, wide = method("near", 0.50, 0.52), method("far", 2.0, 2.02), method("wide", 0.2, 0.8)
    equal = finding(Comparison((near, wide)))
    assert " by near and wide: " in equal.title.replace("wide and near", "near and wide")
    assert len(equal.notes) == 2
    best = finding(Comparison((near, far, wide)))
    assert " best by far: " in best.title
    assert len(best.notes) == 1


def test_a_finding_without_ood_sets_is_of_accuracy():
    methods = (Method(name, (evaluation(shift, 0, ()),)) for name, shift in (("a", 0.1), ("b", 0.2)))
    table = finding(Comparison(tuple(methods)))
    assert table.cells() == [["b", "1", "92.00"], ["a", "1", "91.00"]]


def test_curves_of_every_method_with_their_areas_in_words(comparison):
    view = evaluated(comparison, {}).sets[0]
    roc, recall, *histograms = view.charts
    assert [chart.title for chart in histograms] == [
        "Mutual information: Deep Ensembles",
        "Mutual information: greedy, lambda_M = 0.1",
    ]
    for method in comparison.methods:
        inside = np.mean([each.in_domain.scores for each in method.evaluations], axis=0)
        outside = np.mean([each.ood[0].scores for each in method.evaluations], axis=0)
        truth, scores = np.r_[np.zeros(80), np.ones(40)], np.r_[inside, outside]
        assert f"{method.label} {roc_auc_score(truth, scores):.3f}" in roc.alt
        assert f"{method.label} {average_precision_score(truth, scores):.3f}" in recall.alt
        for chart in (roc, recall):
            assert f'data-series="{method.label}"' in chart.svg
    assert 'data-series="greedy, lambda_M = 0.1"' not in histograms[0].svg


def test_images_are_shown_where_they_are_known(comparison):
    images = {"mnist": np.zeros((80, 1, 4, 4), np.uint8), "dtd": np.zeros((40, 1, 4, 4), np.uint8)}
    shown = evaluated(comparison, images)
    assert [len(view.galleries) for view in shown.sets] == [0, 0, 3]
    assert len(shown.in_domain) == 3
    assert "half of it" in shown.sets[2].summary


def test_an_evaluation_without_ood_sets_has_tables_alone():
    inside = Comparison((Method("deep", (evaluation(0.1, 0, ()),)),))
    shown = evaluated(inside, {"mnist": np.zeros((80, 1, 4, 4), np.uint8)})
    assert (shown.sets, shown.in_domain) == ([], {})


def decoded(address):
    prefix, _, content = address.partition(",")
    assert prefix == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_galleries_are_the_extremes_and_a_lot_by_the_last_method_with_the_scores_of_all():
    images = np.random.default_rng(0).integers(0, 256, (30, 3, 4, 4), np.uint8)
    scores = {"one": np.arange(30.0), "other": np.arange(30.0)[::-1]}
    found = galleries(images, "things", scores, "mutual information")
    assert list(found) == [
        "Most certain: the lowest mutual information",
        "Least certain: the highest mutual information",
        "Drawn by lot",
    ]
    for pictures in found.values():
        assert len(pictures) == 8
        for picture in pictures:
            index = int(float(picture.lines[0]))
            assert picture.lines[1] == f"{29 - index:.3f}"
            assert picture.alt == f"Image {index} of things; score: one {index:.3f}, other {29 - index:.3f}"
            assert np.array_equal(decoded(picture.address), images[index].transpose(1, 2, 0))
    by_last = [[float(picture.lines[1]) for picture in pictures] for pictures in found.values()]
    assert by_last[:2] == [list(range(8)), list(range(29, 21, -1))]
    assert by_last[2] == sorted(by_last[2])
    assert not set(by_last[2]) <= {*by_last[0], *by_last[1]}  # the usual is not the extreme


def test_grey_images_and_fewer_than_asked_for():
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 4, 4), np.uint8)
    found = galleries(images, "grey", {"one": np.array([0.3, 0.1, 0.2])}, "score")
    shown = [[picture.lines[0] for picture in pictures] for pictures in found.values()]
    assert shown == [["0.100", "0.200", "0.300"], ["0.300", "0.200", "0.100"], ["0.100", "0.200", "0.300"]]
    assert np.array_equal(decoded(found["Drawn by lot"][0].address), images[1, 0])
