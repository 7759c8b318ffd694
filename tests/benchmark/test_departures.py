import pytest

from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.departures import departures
from greedy_ensembles.training import Recipe
from greedy_ensembles.training.configuration import describe


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
    expected = "trained otherwise than in the paper: epochs 2 instead of 20, lr 0.05 instead of 0.1"
    assert told(recipe={"epochs": 2, "lr": 0.05}) == expected
    assert "normalize None instead of [[0.1307], [0.3081]]" in told(recipe={"normalize": None})


def test_schedules_matter_to_those_who_see_each_other(told):
    assert told(schedule="concurrent") == ""
    assert "schedule concurrent instead of sequential" in told(strength=0.1, schedule="concurrent")
    assert "schedule concurrent in groups of 2 instead" in told(strength=0.1, schedule="concurrent", at_once=2)
    assert "schedule concurrent instead" in told(strength=0.1, schedule="concurrent", at_once=5)


def test_a_grown_ensemble(told):
    assert told(extended=[3]) == "trained otherwise than in the paper: grown from fewer members"


def test_a_network_that_the_paper_has_otherwise(told):
    deep = {"dataset": "cifar10", "model": "PreResNet164", "depth": 164, "size": 11}
    assert told(**deep) == "the paper's PreResNet164 has blocks_per_stage=27, so its figures are not beside these"


def test_a_strength_that_the_paper_does_not_name(told):
    twenty = {"dataset": "cifar10", "model": "PreResNet20", "depth": 20, "size": 11}
    assert told(**twenty, strength=3.0) == "the paper does not say which lambda_M it took here"
    assert told(**twenty) == ""


def test_what_the_paper_did_not_train(information):
    assert departures(RunFacts("x", information(depth=14))) == ""
    assert departures(RunFacts("x", information(dataset="fashion_mnist"))) == ""
