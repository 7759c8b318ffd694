"""Cells read by eye in the paper's tables, and those that it does not have."""

import pytest

from greedy_ensembles.benchmark.paper import Cell, Setting, _cells, cell, image_count, mean_cell, table
from greedy_ensembles.benchmark.presets import PRESETS


@pytest.mark.parametrize(
    ("setting", "ood", "metric", "expected"),
    [
        (("PreResNet164", "cifar10", 11, "deep"), "bernoulli", "auc", (0.98, 0.01)),
        (("PreResNet164", "cifar10", 11, "greedy", 3.0), "bernoulli", "fpr95", (0.00, None)),
        (("PreResNet164", "cifar100", 11, "deep"), "dtd", "ap", (0.61, 0.01)),
        (("PreResNet164", "cifar100", 11, "greedy", 5.0), "cifar10", "fpr95", (0.67, 0.02)),
        (("PreResNet164", "svhn", 11, "greedy", 1.0), "blobs", "ap", (0.98, None)),
        (("PreResNet8", "mnist", 3, "deep"), "bernoulli", "auc", (0.09, 0.05)),
        (("PreResNet8", "mnist", 15, "greedy", 0.1), "omniglot", "fpr95", (0.05, None)),
        (("PreResNet20", "cifar10", 11, "deep"), "places365", "auc", (0.92, None)),
        (("PreResNet20", "cifar100", 11, "greedy", 0.5), "svhn", "auc", (0.84, 0.01)),  # lambda_M is not stated
        (("PreResNet164", "cifar10", 5, "greedy", 1.0), "lsun", "ap", (0.93, None)),
        (("PreResNet164", "cifar100", 3, "deep"), "svhn", "auc", (0.78, 0.02)),
    ],
)
def test_ood_cells(setting, ood, metric, expected):
    assert cell(Setting(*setting), metric, ood) == Cell(*expected)


@pytest.mark.parametrize(
    ("setting", "metric", "mean", "error"),
    [
        (("PreResNet164", "cifar10", 11, "deep"), "accuracy", 0.9570, 0.0002),
        (("VGG16BN", "cifar100", 11, "greedy", 5.0), "nll", 0.8910, 0.0033),
        (("WideResNet28x10", "svhn", 11, "greedy", 1.0), "ace", 0.0046, 0.0001),
        (("PreResNet8", "mnist", 7, "greedy", 0.1), "ece", 0.0028, None),
        (("PreResNet164", "cifar100", 7, "greedy", 2.0), "nll", 0.7809, 0.0141),
    ],
)
def test_in_domain_cells_on_our_scale(setting, metric, mean, error):
    found = cell(Setting(*setting), metric)
    assert found == (pytest.approx(mean), error if error is None else pytest.approx(error))


@pytest.mark.parametrize(
    ("setting", "ood", "metric"),
    [
        (("PreResNet164", "cifar10", 11, "greedy", 5.0), "bernoulli", "auc"),  # it chose 3
        (("PreResNet164", "cifar10", 10, "deep"), "bernoulli", "auc"),  # M = 11, 3, 5, 7
        (("PreResNet164", "cifar10", 5, "deep"), "lsun", "fpr95"),  # the table of small ensembles has no FPR95
        (("PreResNet164", "cifar10", 5, "deep"), "dtd", "auc"),  # nor other sets than SVHN and LSUN
        (("PreResNet20", "svhn", 11, "deep"), "dtd", "auc"),
        (("PreResNet20", "cifar10", 11, "deep"), "", "accuracy"),
        (("PreResNet8", "mnist", 5, "deep"), "blobs", "auc"),
        (("PreResNet8", "mnist", 5, "greedy", 1.0), "dtd", "auc"),  # lambda_M = 0.1
        (("PreResNet8", "mnist", 5, "deep"), "", "ace"),  # headed ECE
        (("PreResNet164", "cifar10", 11, "deep"), "", "brier"),
        (("mine.make", "cifar10", 11, "deep"), "dtd", "auc"),
    ],
)
def test_there_is_no_such_cell(setting, ood, metric):
    assert cell(Setting(*setting), metric, ood) is None


def test_without_a_setting_there_is_no_cell():
    assert cell(None, "auc", "dtd") is None
    assert mean_cell(None, "auc", ["dtd"]) is None


def test_every_figure_of_the_tables_is_found_once():
    """Three figures a row of the OOD tables, and of the in-domain ones; seven a row of that of small ensembles."""
    per_set = sum(len(table(name)) for name in ("ood_c10", "ood_c100", "ood_svhn", "ood_mnist", "ood_preresnet20"))
    in_domain = len(table("in_domain")) + len(table("in_domain_mnist"))
    exposed = sum(row["method"] == "greedy+outlier_exposure" for row in table("ood_outlier_exposure"))
    assert len(_cells()) == 3 * (per_set + exposed + in_domain) + 7 * len(table("small_ensembles"))


def test_outlier_exposure_has_cells_of_its_own_beside_those_that_it_repeats():
    exposed = Setting("PreResNet164", "cifar100", 11, "greedy, lambda_M = 1, p* = cifar10", 1.0)
    assert cell(exposed, "auc", "blobs").mean == 0.96
    again = {(row["ood"], row["method"]): row for row in table("ood_c100") if row["architecture"] == "PreResNet164"}
    for row in table("ood_outlier_exposure"):
        if row["method"] != "greedy+outlier_exposure":
            assert {key: again[row["ood"], row["method"]][key] for key in row} == row


def test_means_are_over_the_sets_asked_for():
    setting = Setting("PreResNet164", "cifar10", 11, "deep")
    assert mean_cell(setting, "auc", ["bernoulli", "cifar100"]) == Cell(pytest.approx((0.98 + 0.90) / 2), None)
    assert mean_cell(setting, "auc", ["bernoulli", "./mine"]) is None
    assert mean_cell(setting, "auc", []) is None


def test_means_over_all_ten_are_those_of_the_papers_first_table():
    """Within what rounding ten cells and their mean to two decimals can do."""
    names = {"C10": "cifar10", "C100": "cifar100", "SVHN": "svhn"}
    strengths = {
        (row["architecture"], row["dataset"]): row["lambda_m"] for row in table("in_domain") if row["lambda_m"]
    }
    for row in table("table1_ood_average"):
        greedy = row["method"] == "greedy"
        strength = float(strengths[row["architecture"], row["dataset"]]) if greedy else None
        dataset = names[row["dataset"]]
        setting = Setting(row["architecture"], dataset, 11, "greedy" if greedy else "deep", strength)
        for metric in ("auc", "ap", "fpr95"):
            found = mean_cell(setting, metric, PRESETS[dataset])
            assert found is not None
            assert found.mean == pytest.approx(float(row[metric]), abs=0.0101), (row, metric)


def test_counts():
    assert [image_count(name) for name in ("svhn", "dtd", "places365", "omniglot", "./mine")] == [
        *(73_257, 5_640, 10_000, 13_181),
        None,
    ]
