"""Cells read by eye in the paper's tables, those that it does not have, and which runs belong beside them."""

import statistics

import pytest

from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.evaluation import Cell
from greedy_ensembles.benchmark.presets import PRESETS
from greedy_ensembles.benchmark.runs import Setting
from greedy_ensembles.paper.published import _cells, cell, departures, image_count, setting_of, table
from greedy_ensembles.runs.configuration import describe
from greedy_ensembles.training import Recipe


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
            found = statistics.fmean(cell(setting, metric, name).mean for name in PRESETS[dataset])
            assert found == pytest.approx(float(row[metric]), abs=0.0101), (row, metric)


def test_counts():
    assert [image_count(name) for name in ("svhn", "dtd", "places365", "omniglot", "./mine")] == [
        *(73_257, 5_640, 10_000, 13_181),
        None,
    ]


@pytest.fixture
def run(information):
    return lambda **options: RunFacts("x", information(**options))


@pytest.fixture
def told(information):
    def make(*, dataset="mnist", model="PreResNet8", depth=8, strength=None, size=5, **changes):
        kept = {"extended_from": changes.pop("extended", None), "members_at_once": changes.pop("at_once", None)}
        recipe = describe(Recipe.paper(dataset, model, **changes.pop("recipe", {})))
        known = information(dataset=dataset, depth=depth, strength=strength, size=size, recipe=recipe, **changes)
        return departures(RunFacts("x", {**known, **kept}))

    return make


def test_the_papers_own_training_has_none(told):
    assert told() == told(strength=0.1, schedule="sequential") == ""
    assert told(recipe={"deterministic": True, "members_at_once": 3}) == ""  # which change nothing here


def test_fields_of_the_recipe_are_named_with_both_values(told):
    kind, fields = told(recipe={"epochs": 2, "lr": 0.05}).split(": ")
    assert "otherwise than in the paper" in kind
    assert fields == "epochs 2 instead of 20, lr 0.05 instead of 0.1"
    assert "normalize None instead of [[0.1307], [0.3081]]" in told(recipe={"normalize": None})


def test_schedules_matter_to_those_who_see_each_other(told):
    assert told(schedule="concurrent") == ""
    assert "schedule concurrent instead of sequential" in told(strength=0.1, schedule="concurrent")
    assert "schedule concurrent in groups of 2 instead" in told(strength=0.1, schedule="concurrent", at_once=2)
    assert "schedule concurrent instead" in told(strength=0.1, schedule="concurrent", at_once=5)


def test_what_0_1_took_for_the_papers_is_told(information):
    """Its recipes named no schedule of updates, took images as [0, 1], and shifted them by up to 4 pixels."""
    old = {"epochs": 100, "lr": 0.05, "weight_decay": 5e-4, "warmup_epochs": 5, "augment": "flip_crop"}
    model = {"partial": "greedy_ensembles.models.vgg.VGG16BN", "args": [], "keywords": {"classes": 10, "channels": 3}}
    text = departures(RunFacts("x", {**information(dataset="cifar10", recipe=old), "model": model}))
    for part in ("lr_updates step instead of epoch", "augment flip_crop instead", "normalize None instead of [[0.485"):
        assert part in text


def test_mnist_has_three_channels_in_the_paper(information):
    recipe = describe(Recipe.paper("mnist", "PreResNet8"))
    known = information(recipe=recipe)
    one, three = ({**known, "data": {**known["data"], "shape": [n, 28, 28]}} for n in (1, 3))
    assert departures(RunFacts("x", three)) == ""
    assert "images of 1 channel instead of three equal ones" in departures(RunFacts("x", one))


def test_a_grown_ensemble(told):
    assert told(extended=[3]).endswith(": grown from fewer members")


def test_a_network_that_the_paper_has_otherwise(told):
    deep = {"dataset": "cifar10", "model": "PreResNet164", "depth": 164, "size": 11}
    (note,) = told(**deep).split("; ")
    assert "the paper's PreResNet164 has blocks_per_stage=27" in note
    assert "figures are not beside" in note


def test_the_textbooks_wide_resnet_is_not_the_papers(information):
    recipe = describe(Recipe.paper("cifar10", "WideResNet28x10"))
    model = {"partial": "greedy_ensembles.models.wide_resnet.WideResNet28x10", "args": [], "keywords": {"classes": 10}}
    known = {**information(dataset="cifar10", size=11, recipe=recipe), "model": model}
    assert setting_of(RunFacts("x", known)) is None
    assert "WideResNet28x10 has published=True" in departures(RunFacts("x", known))
    theirs = {**known, "model": {**model, "keywords": {"classes": 10, "published": True}}}
    assert setting_of(RunFacts("x", theirs)) == Setting("WideResNet28x10", "cifar10", 11, "deep")
    assert departures(RunFacts("x", theirs)) == ""


def test_a_strength_that_the_paper_does_not_name(told):
    twenty = {"dataset": "cifar10", "model": "PreResNet20", "depth": 20, "size": 11}
    assert told(**twenty, strength=3.0) == "the paper does not say which lambda_M it took here"
    assert told(**twenty) == ""


def test_what_the_paper_did_not_train(information):
    assert departures(RunFacts("x", information(depth=14))) == ""
    assert departures(RunFacts("x", information(dataset="fashion_mnist"))) == ""


def test_the_place_in_the_papers_tables(run):
    assert setting_of(run(depth=20, dataset="cifar10", size=11)) == Setting("PreResNet20", "cifar10", 11, "deep")
    assert setting_of(run(strength=0.1)) == Setting("PreResNet8", "mnist", 5, "greedy", 0.1)
    clipped = {"class": "Gaussian", "scale": 5.0, "overflow": "clip"}
    assert setting_of(run(strength=0.1, weighting=clipped)) is None
    assert setting_of(run(strength=0.1, weighting={"class": "FromData"})) is None
    assert setting_of(run(strength=0.1, distance="logits")) is None
    assert setting_of(run(earlier="0" * 64)) is None


@pytest.mark.parametrize(
    ("model", "same"),
    [
        ({"partial": "greedy_ensembles.models.preresnet.PreResNet", "keywords": {"classes": 10, "channels": 1}}, True),
        ({"partial": "greedy_ensembles.models.preresnet.PreResNet", "keywords": {"blocks_per_stage": 3}}, False),
        ({"partial": "mine.PreResNet", "keywords": {}}, False),
        ("mine.PreResNet8", False),
    ],
)
def test_a_network_of_the_same_name_is_not_the_papers(information, model, same):
    model = {**model, "args": [8]} if isinstance(model, dict) else model
    facts = RunFacts("x", {**information(), "model": model})
    assert (setting_of(facts) is not None) == same


def test_the_papers_preresnet164_is_the_published_codes(run, information):
    """Which has 27 blocks a stage, and not the 18 of its name."""
    by_name = information(depth=164, dataset="cifar10", size=11)
    published = {**by_name, "model": {**by_name["model"], "keywords": {"classes": 10, "blocks_per_stage": 27}}}
    assert setting_of(RunFacts("x", published)) == Setting("PreResNet164", "cifar10", 11, "deep")
    assert setting_of(RunFacts("x", by_name)) is None
