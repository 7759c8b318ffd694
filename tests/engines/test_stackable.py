"""Whether members can train as one, and each reason why not."""

from dataclasses import replace

import pytest
import torch
from tests.engines.groups import Group, build
from torch import nn
from torch.utils.data import Dataset

import greedy_ensembles as ge
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.engines.stacked import POINTWISE, StackedEngine, layers, why_not_stacked
from greedy_ensembles.training.algorithm import make_engine


def reason(data, model, **changes):
    """Return why members are not stacked, after seeing that the engine is the one that follows from it."""
    group = Group(build(model, data, **{"size": 2, "method": "deep", **changes}))
    why = why_not_stacked(group.members, group.step)
    assert type(make_engine(group.members, group.step, group.plan())) is (PlainEngine if why else StackedEngine)
    return why


def nested():
    inner = nn.Sequential(nn.Linear(2, 8), nn.LayerNorm(8), nn.GELU())
    return nn.Sequential(nn.Flatten(), inner, nn.Identity(), nn.Linear(8, 2, bias=False))


@pytest.mark.parametrize("kind", POINTWISE)
def test_networks_of_linear_and_pointwise_layers_can(blobs, kind):
    assert reason(blobs, lambda: nn.Sequential(nn.Linear(2, 8), kind(), nn.Linear(8, 2))) is None


def test_nested_containers_subclasses_of_them_and_frozen_parameters_can(blobs, make_model):
    def partly_frozen():
        model = make_model()
        model[0].weight.requires_grad_(False)
        return model

    assert reason(blobs, nested) is None
    assert reason(blobs, make_model) is None  # ge.models.MLP
    assert reason(blobs, partly_frozen) is None
    assert reason((blobs[0].double(), blobs[1]), lambda: nested().double()) is None
    assert reason(blobs, lambda: nn.Linear(2, 2)) is None


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (lambda: nn.Dropout(0.0), "1 is a Dropout"),
        (lambda: nn.BatchNorm1d(8), "1 is a BatchNorm1d"),
        (lambda: nn.RReLU(), "1 is a RReLU"),  # pointwise, but random in training
        (lambda: nn.PReLU(), "1 is a PReLU"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.1)), "1.1 is a Dropout"),
    ],
)
def test_layers_that_are_not_known_to_do_the_same_every_time_cannot(blobs, layer, name):
    assert reason(blobs, lambda: nn.Sequential(nn.Linear(2, 8), layer(), nn.Linear(8, 2))) == name


class OwnForward(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + 1


class OwnLinear(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def hooked(kind):
    model = ge.models.MLP(2, hidden=(8,))
    if kind == "forward":
        model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    elif kind == "before":
        model.register_forward_pre_hook(lambda module, inputs: None)
    elif kind == "gradient":
        model[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1))
    elif kind == "accumulated":
        model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


def tied():
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    return model


def with_stray_parameter():
    model = ge.models.MLP(2, hidden=(8,))
    model.register_parameter("stray", nn.Parameter(torch.ones(1)))
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: OwnForward(nn.Linear(2, 2)), "the model is a OwnForward"),
        (lambda: nn.Sequential(OwnLinear(2, 2)), "0 is a OwnLinear"),
        (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))), "0 is a ParametrizedLinear"),
        (lambda: hooked("forward"), "the model has hooks"),
        (lambda: hooked("before"), "the model has hooks"),
        (lambda: hooked("gradient"), "the model has hooks"),
        (lambda: hooked("accumulated"), "the model has hooks"),
        (tied, "layers share parameters"),
        (tied_weights, "layers share parameters"),
        (with_stray_parameter, "the model has parameters outside its layers"),
        (lambda: ge.models.MLP(2, hidden=(500, 500)), "253002 parameters a member"),
    ],
)
def test_models_that_do_more_than_their_layers_or_are_large_cannot(blobs, model, why):
    assert reason(blobs, model).startswith(why)


def test_members_that_differ_cannot(blobs):
    widths, slopes, frozen = iter(range(4, 100)), iter(range(1, 100)), iter([False, False, True, False, True])

    def other_width():
        return ge.models.MLP(2, hidden=(next(widths),))

    def other_slope():
        return nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(next(slopes) / 100))

    def other_frozen():
        model = nn.Linear(2, 2)
        model.bias.requires_grad_(not next(frozen))
        return model

    for model in (other_width, other_slope, other_frozen):
        assert reason(blobs, model) == "members differ in structure"


def test_members_that_share_a_frozen_part_cannot(blobs):
    backbone = nn.Linear(2, 8).requires_grad_(False)
    assert reason(blobs, lambda: nn.Sequential(backbone, nn.Linear(8, 2))) == "members share parameters"


def test_half_precision_cannot(blobs):
    why = reason(blobs, lambda: ge.models.MLP(2, hidden=(4,)).to(torch.bfloat16))
    assert why == "parameters are not all float32, or all float64"


class Items(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], int(self.y[index])


def test_what_the_recipe_and_the_data_forbid(blobs, make_model):
    recipes = {
        "precision is bf16": ge.Recipe(precision="bf16"),
        "the optimizer is the user's own": ge.Recipe(optimizer=lambda p: torch.optim.SGD(p, 0.1)),
        "the loss is the user's own": ge.Recipe(loss=lambda logits, y: nn.functional.cross_entropy(logits, y)),
        "the recipe augments": ge.Recipe(augment=lambda batch: batch),
        "weights are averaged": ge.Recipe(ema=0.9),
    }
    for why, recipe in recipes.items():
        assert reason(blobs, make_model, recipe=recipe) == why
    assert "Dataset" in reason(Items(*blobs), make_model)
    assert reason(blobs, make_model, size=1) == "one member has no others to be stacked with"


def test_what_is_not_on_the_cpu_or_mixes_rows_cannot(blobs, make_model):
    group = Group(build(make_model, blobs, size=2))
    assert why_not_stacked(group.members, group.step) is None
    elsewhere = replace(group.step, execution=Execution(torch.device("cuda")))
    assert "not the CPU" in why_not_stacked(group.members, elsewhere)
    assert "share a pass" in why_not_stacked(group.members, replace(group.step, one_pass=False))


def test_layers_come_in_the_order_of_the_pass_and_as_often_as_they_are_used():
    assert [name for name, _ in layers(nested())] == ["0", "1.0", "1.1", "1.2", "2", "3"]
    assert [type(layer) for _, layer in layers(tied())] == [nn.Linear, nn.ReLU, nn.Linear]
