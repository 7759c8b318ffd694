"""Weights cast together, against autocast, which casts each by itself."""

import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.training.working_copies import WorkingCopies


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def train(model, copies, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x, y = torch.randn(8, 1, 4, 4, generator=draw), torch.randint(0, 3, (8,), generator=draw)
        optimizer.zero_grad()
        if copies is not None:
            copies.refresh()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            logits = (model if copies is None else copies.call)(x)
        cross_entropy(logits.float(), y).backward()
        if copies is not None:
            copies.hand_back()
        optimizer.step()


def test_it_is_autocast_bit_for_bit():
    torch.manual_seed(0)
    ours = network()
    theirs = copy.deepcopy(ours)
    train(ours, WorkingCopies(ours))
    train(theirs, None)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_without_copies_of_the_gradients_nothing_would_learn():
    """Gradients land on the copies: a version that forgot to hand them back would leave the weights as they are."""
    torch.manual_seed(0)
    model = network()
    before = copy.deepcopy(model.state_dict())
    train(model, WorkingCopies(model), steps=1)
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[6].weight, before["6.weight"])


def test_frozen_and_shared_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    model[2].weight = model[0].weight
    copies = WorkingCopies(model)
    assert list(copies._copies) == ["0.weight"]
    with torch.autocast("cpu", torch.bfloat16):
        assert copies.call(torch.ones(1, 2)).shape == (1, 2)


def test_our_networks_have_every_convolution_copied():
    model = ge.models.PreResNet(20)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(WorkingCopies(model)._copies) == len(layers)
