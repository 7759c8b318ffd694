"""What a recipe has for fine-tuning: groups of parameters, mixed targets, accumulated gradients."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import greedy_ensembles as ge
from greedy_ensembles.generators import SHUFFLE, generator, seed_generators
from greedy_ensembles.training.recipe import make_optimizer, takes_targets

STEPS = {"epochs": 2, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0}


def network():
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def mixup(x, y):
    share = 0.25 + 0.5 * torch.rand(()).double()  # drawn from the member's own generator
    return share * x + (1 - share) * x.flip(0), share * one_hot(y, 2) + (1 - share) * one_hot(y.flip(0), 2)


def fit(x, y, make_model=network, **changes):
    options = {"size": 2, "strength": 10.0, "weighting": ge.weighting.Gaussian.from_data(x), "validation": 0, **changes}
    return ge.fit(make_model, (x, y), progress=False, device="cpu", **options)


def own_loop(x, y, batch, accumulate=1, augment=lambda x, y: (x, y), make_model=network):
    """Train as `ge.fit` should, with a coupler and nothing else of the package's training."""
    coupler = ge.Coupler(ge.weighting.Gaussian.from_data(x), 2, 10.0, samples=len(x), batch_size=batch)
    members = []
    for k in range(2):
        seed_generators(k)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(2):
            batches = torch.randperm(len(x), generator=generator(SHUFFLE, k, epoch)).split(batch)
            for first in range(0, len(batches), accumulate):
                group = batches[first : first + accumulate]
                optimizer.zero_grad()
                for rows in group:
                    inputs, targets = augment(x[rows], y[rows])
                    with coupler.step(model):
                        logits = model(inputs)
                    ((cross_entropy(logits, targets) + coupler.term(model)) / len(group)).backward()
                optimizer.step()
        coupler.add(model)
        members.append(model)
    return members


def assert_same(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for name, value in other.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("accumulate", [2, 4])  # of six batches: three updates an epoch, or one of four and one of two
def test_gradients_are_averaged_over_batches(blobs, accumulate):
    x, y = blobs[0][:48].double(), blobs[1][:48]
    fitted = fit(x, y, recipe=ge.Recipe(**STEPS, batch_size=8, accumulate=accumulate))
    assert_same(fitted, own_loop(x, y, 8, accumulate))


def test_accumulated_batches_are_one_large_batch(blobs):
    x, y = blobs[0][:48].double(), blobs[1][:48]
    options = {"method": "deep", "weighting": None, "schedule": "concurrent"}
    fields = {**STEPS, "momentum": 0.9, "clip": 0.1, "ema": 0.9}
    small = fit(x, y, recipe=ge.Recipe(**fields, batch_size=8, accumulate=3), **options)
    assert_same(small, fit(x, y, recipe=ge.Recipe(**fields, batch_size=24), **options))


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_an_augmentation_of_inputs_and_labels_returns_soft_targets(blobs, schedule):
    x, y = blobs[0][:48].double(), blobs[1][:48]
    fitted = fit(x, y, recipe=ge.Recipe(**STEPS, batch_size=16, augment=mixup), schedule=schedule)
    expected = own_loop(x, y, 16, augment=mixup)
    assert_same(fitted[:1], expected[:1])
    if schedule == "sequential":
        assert_same(fitted, expected)


def test_heads_are_given_mixed_features(blobs):
    x, y = blobs[0][:48].double(), blobs[1][:48]
    backbone = nn.Sequential(nn.Linear(2, 6), nn.Tanh()).double()
    recipe = ge.Recipe(**STEPS, batch_size=16, augment=mixup)
    fitted = fit(x, y, ge.models.heads(backbone, lambda: nn.Linear(6, 2).double()), recipe=recipe)

    def joined():
        return nn.Sequential(*backbone.requires_grad_(False), nn.Linear(6, 2).double())

    expected = own_loop(x, y, 16, augment=mixup, make_model=joined)
    assert_same([member.head for member in fitted], [member[2] for member in expected])


def test_which_augmentations_take_targets():
    class Module(nn.Module):
        def forward(self, x, y):
            return x, y

    class OfInputs:
        def __call__(self, x, strength=2):
            return x

    assert [takes_targets(one) for one in (mixup, Module(), OfInputs(), nn.Identity(), len)] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_an_optimizer_of_the_model_has_groups_by_name(blobs):
    x, y = blobs[0].double(), blobs[1]

    def slow_first(model):
        first = {"params": model[0].parameters(), "lr": 0.0}
        return torch.optim.SGD([first, {"params": model[2].parameters()}], lr=0.1)

    groups = make_optimizer(ge.Recipe(optimizer=slow_first), network()).param_groups
    assert [group["lr"] for group in groups] == [0, 0.1]
    fitted = fit(x, y, recipe=ge.Recipe(epochs=1, optimizer=slow_first))
    for k, member in enumerate(fitted):
        seed_generators(k)
        new = network()
        assert torch.equal(member[0].weight, new[0].weight)
        assert not torch.equal(member[2].weight, new[2].weight)


def test_what_will_not_do_is_named(blobs):
    x, y = blobs[0].double(), blobs[1]
    with pytest.raises(ValueError, match="accumulate"):
        ge.Recipe(accumulate=0)
    for wrong in (lambda x, y: x, lambda x, y: (x, y[:1]), lambda x, y: (x, None)):
        with pytest.raises(ValueError, match="augment"):
            fit(x, y, recipe=ge.Recipe(augment=wrong))
    elsewhere = network()
    with pytest.raises(ValueError, match="optimizer"):
        fit(x, y, recipe=ge.Recipe(optimizer=lambda model: torch.optim.SGD(elsewhere.parameters(), lr=0.1)))


def test_an_augmentation_is_tried_on_the_targets_that_it_will_get(blobs):
    x, y = blobs
    given = []

    def keep(x, y):  # as code for labels (n,) has it; examples with weights have targets (n, classes)
        given.append(y.shape)
        return x, one_hot(y, 2).double()

    options = {"size": 2, "recipe": ge.Recipe(**STEPS, augment=keep), "progress": False, "device": "cpu"}
    with pytest.raises(ValueError, match=r"augment must .* targets \(3, 2\) of torch.float64"):
        ge.fit(network, (x, y, torch.ones(len(x))), **options)
    assert len(given) == 1
