import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.benchmark import RunFacts
from greedy_ensembles.benchmark.runs import check_strength_alone_differs, group, other_differences
from greedy_ensembles.runs.configuration import describe_weighting


@pytest.fixture
def run(information):
    def make(source="run", **options):
        return RunFacts(source, information(**options))

    return make


def test_runs_that_differ_in_their_seed_alone_are_repetitions(run):
    runs = [run(seed=5, strength=0.1), run(seed=0), run(seed=0, strength=0.1), run(seed=5), run(strength=3.0)]
    groups = group(runs)
    assert list(groups) == ["Deep Ensembles", "greedy, lambda_M = 0.1", "greedy, lambda_M = 3"]
    assert [[member.seed for member in repetitions] for repetitions in groups.values()] == [[0, 5], [0, 5], [0]]


def test_a_method_is_called_by_its_label(run):
    mine = {"class": "mine.Mine", "label": "mine", "strength": 2.0, "width": 0.5}
    groups = group([run(), run(method=mine), run(method={**mine, "width": 1.0})])
    assert list(groups) == [
        "Deep Ensembles",
        "mine, lambda_M = 2, method.width 0.5",
        "mine, lambda_M = 2, method.width 1.0",
    ]
    assert [repetitions[0].is_baseline for repetitions in groups.values()] == [True, False, False]


def test_runs_of_version_0_1_have_the_same_names(run):
    old = [run(method="deep", strength=None), run(strength=0.1, seed=5)]
    old[1].information["configuration"].update(method="greedy", strength=0.1)
    assert [facts.method for facts in old] == ["Deep Ensembles", "greedy, lambda_M = 0.1"]
    assert [facts.is_baseline for facts in old] == [True, False]


@pytest.mark.parametrize(
    ("one", "other", "labels"),
    [
        ({"depth": 8}, {"depth": 20}, ["Deep Ensembles, PreResNet20", "Deep Ensembles, PreResNet8"]),
        ({"size": 5}, {"size": 11}, ["Deep Ensembles, M = 5", "Deep Ensembles, M = 11"]),
        ({}, {"recipe": {"epochs": 2}}, ["Deep Ensembles, recipe.epochs 20", "Deep Ensembles, recipe.epochs 2"]),
        ({}, {"data": "ab" * 32}, ["Deep Ensembles, data 00000000", "Deep Ensembles, data abababab"]),
        ({"size": 5}, {"size": 11, "strength": 1.0}, ["Deep Ensembles, M = 5", "greedy, lambda_M = 1, M = 11"]),
        (
            {"depth": 8},
            {"depth": 20, "strength": 1.0},
            ["greedy, lambda_M = 1, PreResNet20", "Deep Ensembles, PreResNet8"],
        ),
        (  # another architecture comes with another recipe, which is not worth a mention
            {"depth": 8},
            {"depth": 20, "recipe": {"epochs": 2}},
            ["Deep Ensembles, PreResNet20", "Deep Ensembles, PreResNet8"],
        ),
        (
            {"strength": 1.0, "weighting": {"class": "Gaussian", "scale": 5.0, "overflow": "clip"}},
            {"strength": 1.0},
            ["greedy, lambda_M = 1, weighting.overflow clip", "greedy, lambda_M = 1, weighting.overflow wrap"],
        ),
    ],
)
def test_labels_say_what_tells_configurations_apart(run, one, other, labels):
    assert list(group([run(**one), run(**other)])) == labels


def test_no_two_configurations_have_one_label(run, information):
    wide = {**information(), "model": {**information()["model"], "keywords": {"blocks_per_stage": 3}}}
    groups = group([run(), RunFacts("wide", wide)])
    assert list(groups) == [
        "Deep Ensembles, factory.keywords.blocks_per_stage null",
        "Deep Ensembles, factory.keywords.blocks_per_stage 3",
    ]
    shapes = [run("a", model={"weight": [3, 4]}), run("b", model={"weight": [3, 5]})]
    assert list(group(shapes)) == ["Deep Ensembles, in a", "Deep Ensembles, in b"]


def test_seeds_that_share_members_are_refused(run):
    with pytest.raises(ValueError, match=r"one \(seed 3\).* other \(seed 7\).* seeds .*5 apart"):
        group([run("other", seed=7), run("one", seed=3)])
    with pytest.raises(ValueError, match="one and other are the same run"):
        group([run("one"), run("other")])
    assert len(group([run(seed=0), run(seed=5)])) == 1
    assert len(group([run(seed=0), run(seed=1, strength=1.0)])) == 2  # no standard error is over these two


def test_what_else_differs_between_methods_is_said(run):
    groups = group([run(), run(strength=1.0, recipe={"epochs": 2})])
    assert other_differences(groups) == [
        "the runs differ in recipe.epochs, too: 20 (Deep Ensembles), 2 (greedy, lambda_M = 1)"
    ]
    assert other_differences(group([run(), run(strength=1.0), run(strength=2.0, size=7)])) == []
    shapes = {"model": {"weight": [3, 4]}}, {"model": {"r": [2, 4], "s": [2, 3], "weight": [3, 4]}}  # as a method has
    assert other_differences(group([run(**shapes[0]), run(strength=1.0, **shapes[1])])) == [
        "the runs differ in model, too: 12 parameters in 1 tensors (Deep Ensembles), "
        "26 parameters in 3 tensors (greedy, lambda_M = 1)"
    ]
    assert other_differences(group([run(), run(strength=1.0, depth=20, recipe={"epochs": 2})])) == []


def test_a_run_that_was_extended_is_no_repetition_of_one_that_was_not(run, information):
    extended = RunFacts("extended", {**information(seed=5), "extended_from": [3]})
    assert len(group([run(), extended])) == 2


def test_models_of_ones_own_have_the_name_of_their_factory(information):
    assert RunFacts("x", {**information(), "model": "mine.make"}).architecture == "mine.make"
    several = {"partial": "mine.Net", "args": [164, 10], "keywords": {}}
    assert RunFacts("x", {**information(), "model": several}).architecture == "Net(164, 10)"
    of_two = {"partial": "greedy_ensembles.models.mlp.MLP", "args": [2], "keywords": {"classes": 3}}
    assert RunFacts("x", {**information(), "model": of_two}).architecture == "MLP(2)"  # and not MLP2, a name of depth
    plain = {"partial": "greedy_ensembles.models.vgg.VGG16BN", "args": [], "keywords": {}}
    assert RunFacts("x", {**information(), "model": plain}).architecture == "VGG16BN"


@pytest.mark.parametrize(
    ("weighting", "shape"),
    [
        (ge.weighting.Gaussian(torch.zeros(3, 1, 1), torch.ones(3, 16, 16)), (3, 16, 16)),
        (ge.weighting.Gaussian(torch.zeros(1, 8, 8), torch.ones(1, 8, 8)), (1, 8, 8)),
        (ge.weighting.FromData(torch.zeros(5, 3, 4, 4)), (3, 4, 4)),
        (ge.weighting.Uniform(0.0, 1.0, (1, 4, 4)), (1, 4, 4)),
        (ge.weighting.Gaussian(torch.zeros(20), torch.ones(20)), None),
        (ge.weighting.Gaussian(0.0, 1.0), None),
        (None, None),
    ],
)
def test_the_shape_of_images_is_that_of_p_star(information, weighting, shape):
    assert RunFacts("x", information(weighting=describe_weighting(weighting))).image_shape == shape


@pytest.mark.parametrize(
    "weighting",
    [
        {"mean": {"shape": [3, 100_000, 100_000]}},
        {"mean": {"shape": "3x32x32"}},
        {"mean": {"shape": [3, -8, -8]}},
        {"mean": {"shape": [3, 8, 8]}, "std": {"shape": [3, 9, 9]}},
        {"mean": {}},
        {"x": [1, 2]},
        {"shape": ["3", "8", "8"]},
        {"shape": [7, 8, 8]},
    ],
)
def test_a_shape_that_somebody_made_up_is_no_shape(information, weighting):
    assert RunFacts("x", information(weighting=weighting)).image_shape is None


def test_what_cannot_be_known_is_refused(information):
    with pytest.raises(ValueError, match=r"file\.npz does not say which run"):
        RunFacts("file.npz", {})
    with pytest.raises(ValueError, match="trained on arrays"):
        _ = RunFacts("x", {**information(), "data": None}).dataset


@pytest.fixture
def runs(information):
    def make(*options):
        return list(group([RunFacts(f"run {k}", information(**each)) for k, each in enumerate(options)]).values())

    return make


def pair(**options):
    return {"seed": 0, **options}, {"seed": 5, **options}


def test_lambda_and_seed_may_differ(runs):
    check_strength_alone_differs(runs(*pair(), *pair(strength=1.0), *pair(strength=3.0), {"seed": 10}))


def test_deep_ensembles_may_differ_in_what_they_never_draw(runs):
    ours = {"recipe": {"weighting_batch_size": 128, "weighting_statistics": "running", "weighting_samples": 9}}
    check_strength_alone_differs(runs(*pair(), *pair(strength=1.0, **ours), *pair(strength=3.0, **ours)))
    with pytest.raises(ValueError, match=r"recipe\.weighting_batch_size is 128 in run 2 and"):
        check_strength_alone_differs(runs(*pair(), *pair(strength=1.0, **ours), *pair(strength=3.0)))


SNAPSHOT = {"class": "Snapshot", "label": "Snapshot ensemble"}
CLIPPED = {"class": "Gaussian", "scale": 5.0, "overflow": "clip"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*pair(), *pair(strength=1.0, recipe={"epochs": 2})], "recipe.epochs is 20 in run 0 and 2 in run 2"),
        ([*pair(), *pair(strength=1.0), *pair(strength=3.0, weighting=CLIPPED)], "weighting.overflow is wrap in run 2"),
        ([*pair(), *pair(strength=1.0), *pair(strength=3.0, distance="logits")], "distance is probabilities in run 2"),
        ([*pair(), *pair(strength=1.0, size=4)], "size is 4|size is 5"),
        ([*pair(), *pair(strength=1.0, depth=20)], "factory.args is"),
        ([*pair(), *pair(strength=1.0, data="ab" * 32)], "data is 0000"),
        ([*pair(), *pair(recipe={"epochs": 2}), *pair(strength=1.0)], "recipe.epochs"),
        ([*pair(strength=1.0)], "none of Deep Ensembles"),
        ([*pair(method=SNAPSHOT), *pair(strength=1.0)], "none of Deep Ensembles"),
        ([*pair(), *pair(strength=1.0), *pair(method=SNAPSHOT)], "run 4 is of Snapshot.*, which has no lambda_M"),
        ([*pair()], "none of any lambda_M"),
        ([*pair(), {"strength": 1.0}], "run 2 is the only run of its kind; .* at least 5 apart"),
    ],
)
def test_other_differences_and_single_seeds_are_refused(runs, options, message):
    with pytest.raises(ValueError, match=message):
        check_strength_alone_differs(runs(*options))
