import dataclasses
import itertools
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines.plain import set_learning_rate
from greedy_ensembles.training.recipe import learning_rate_factor, make_optimizer


@pytest.mark.parametrize(
    ("epoch", "factor"),
    [(0, 0.1), (2.5, 0.55), (5, 1), (30, 1), (50, 1), (70, (1 + 0.01) / 2), (90, 0.01), (95, 0.01), (100, 0.01)],
)
def test_the_papers_curve_at_its_corners(epoch, factor):
    assert learning_rate_factor(ge.Recipe(epochs=100, warmup_epochs=5, lr_scale=0.01), epoch) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("epoch", "factor"), [(0, 1), (29.99, 1), (30, 0.5), (59.99, 0.5), (60, 0.25), (90, 0.125), (149, 0.125)]
)
def test_milestones_halve_from_their_epoch_on(epoch, factor):
    recipe = ge.Recipe(epochs=150, schedule="milestones", milestones=(30, 60, 90), gamma=0.5)
    assert learning_rate_factor(recipe, epoch) == pytest.approx(factor)


def test_constant_is_constant_but_for_the_warmup():
    recipe = ge.Recipe(schedule="constant", warmup_epochs=10)
    assert [learning_rate_factor(recipe, epoch) for epoch in (0, 10, 99)] == pytest.approx([0.1, 1, 1])


def test_the_papers_learning_rate_changes_once_an_epoch():
    recipe = ge.Recipe.paper("cifar10", "VGG16BN")
    steps = [learning_rate_factor(recipe, step / 7) for step in range(700)]
    by_epoch = [steps[7 * epoch : 7 * epoch + 7] for epoch in range(100)]
    assert all(len(set(epoch)) == 1 for epoch in by_epoch)
    factors = [epoch[0] for epoch in by_epoch]
    assert factors[:7] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9, 1, 1])
    assert factors[50:53] == pytest.approx([1, 1 - 0.99 / 40, 1 - 2 * 0.99 / 40])
    assert factors[89:92] == pytest.approx([0.01 + 0.99 / 40, 0.01, 0.01])


@given(st.integers(2, 300), st.floats(1e-4, 1), st.data())
def test_the_papers_curve_has_no_jumps_and_falls_after_the_warmup(epochs, lr_scale, data):
    recipe = ge.Recipe(epochs=epochs, lr_scale=lr_scale, warmup_epochs=data.draw(st.integers(0, epochs // 2)))
    times = torch.linspace(0, epochs, 2001).tolist()
    factors = [learning_rate_factor(recipe, t) for t in times]
    slope = max(0.9 * epochs / max(recipe.warmup_epochs, 1), 1 / 0.4) / 2000
    assert all(abs(b - a) <= slope * 1.01 for a, b in pairwise(factors))
    after = [f for t, f in zip(times, factors, strict=True) if t >= recipe.warmup_epochs]
    assert after == sorted(after, reverse=True)
    assert factors[-1] == pytest.approx(lr_scale)


def test_sgd_steps_as_written_down_by_hand():
    """Two steps of Nesterov momentum with weight decay on one parameter, with the learning rate halved in between."""
    model = nn.Linear(1, 1, bias=False).double()
    weight = model.weight.item()
    recipe = ge.Recipe(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    optimizer = make_optimizer(recipe, model)
    velocity = 0.0
    for factor, gradient in ((1.0, 3.0), (0.5, -2.0)):
        set_learning_rate(optimizer, factor)
        model.weight.grad = torch.full((1, 1), gradient, dtype=torch.float64)
        optimizer.step()
        decayed = gradient + 0.01 * weight
        velocity = 0.9 * velocity + decayed
        weight -= 0.1 * factor * (decayed + 0.9 * velocity)
        assert model.weight.item() == pytest.approx(weight, rel=1e-12)


def test_optimizers_by_name_and_by_callable():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    adamw = make_optimizer(ge.Recipe(optimizer="adamw", lr=1e-3, weight_decay=0.05), model)
    assert isinstance(adamw, torch.optim.AdamW)
    assert (adamw.param_groups[0]["lr"], adamw.param_groups[0]["weight_decay"]) == (1e-3, 0.05)
    own = make_optimizer(ge.Recipe(optimizer=lambda parameters: torch.optim.RMSprop(parameters, lr=0.03)), model)
    assert isinstance(own, torch.optim.RMSprop)
    assert [p is model.weight for p in own.param_groups[0]["params"]] == [True]  # what is frozen does not learn
    set_learning_rate(own, 0.5)
    assert own.param_groups[0]["lr"] == pytest.approx(0.015)
    with pytest.raises(TypeError, match=r"must make a torch\.optim\.Optimizer, got int"):
        make_optimizer(ge.Recipe(optimizer=lambda parameters: 3), model)


def test_the_papers_rows():
    """Table 8; and what the authors' code does beside it."""
    rows = {
        "PreResNet20": (0.1, True, 1e-4, 0.01),
        "PreResNet164": (0.1, True, 1e-4, 0.01),
        "VGG16BN": (0.05, False, 5e-4, 0.01),
        "WideResNet28x10": (0.1, False, 5e-4, 0.001),
    }
    every = {"optimizer": "sgd", "momentum": 0.9, "schedule": "anneal", "lr_updates": "epoch"}
    every |= {"weighting_statistics": "running", "weighting_batch_size": None}
    images = {**every, "epochs": 100, "batch_size": 128, "warmup_epochs": 5, "augment": "flip_crop_paper"}
    images["normalize"] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for (model, row), dataset in itertools.product(rows.items(), ("cifar10", "cifar100", "svhn")):
        own = dict(zip(("lr", "nesterov", "weight_decay", "lr_scale"), row, strict=True))
        assert ge.Recipe.paper(dataset, model) == ge.Recipe(**images, **own)
    digits = {**every, "batch_size": 256, "lr": 0.1, "weight_decay": 1e-5, "lr_scale": 1e-4, "warmup_epochs": 0}
    digits |= {"nesterov": False, "augment": None, "normalize": (0.1307, 0.3081)}
    for epochs, changes in ((20, {}), (2, {"epochs": 2})):
        assert ge.Recipe.paper("mnist", "PreResNet8", **changes) == ge.Recipe(epochs=epochs, **digits)
    for epochs, warmup in ((3, 0), (8, 2), (19, 4), (24, 5)):  # a quarter of them, down to whole ones
        assert ge.Recipe.paper("svhn", "VGG16BN", epochs=epochs).warmup_epochs == warmup
    with pytest.raises(ValueError, match=r"dataset must be one of .* did you mean 'cifar10'"):
        ge.Recipe.paper("cifar-10", "VGG16BN")
    with pytest.raises(ValueError, match=r"model must be one of .* did you mean 'VGG16BN'"):
        ge.Recipe.paper("cifar10", "VGG16")
    with pytest.raises(ValueError, match=r"field of Recipe .*got 'epoch'; .*mean 'epochs'"):
        ge.Recipe.paper("cifar10", "VGG16BN", epoch=3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"warmup_epochs": 101}, "warmup_epochs is 101, more than the 100 epochs"),
        ({"milestones": (3,)}, "milestones need schedule='milestones', but schedule is 'anneal'"),
        ({"milestones": (-3,), "schedule": "milestones"}, "milestones must be at least 0"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum above 0"),
    ],
)
def test_fields_that_do_not_go_together_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        ge.Recipe(**fields)


def test_a_recipe_cannot_be_changed_but_replaced():
    recipe = ge.Recipe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipe.lr = 1.0
    assert dataclasses.replace(recipe, lr=1.0).lr == 1.0
