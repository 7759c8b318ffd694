"""Weights cast together, against autocast, which casts each by itself."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.training import working_copies
from greedy_ensembles.training.sgd import can_update
from greedy_ensembles.training.working_copies import WorkingCopies, _like


def network():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)
    )


def train(model, copied, steps=3, **options):
    settings = {"lr": torch.tensor(0.1), "momentum": 0.9, "weight_decay": 0.01, **options}
    optimizer = torch.optim.SGD(model.parameters(), **settings)
    copies = WorkingCopies(model, optimizer) if copied else None
    draw = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x, y = torch.randn(8, 1, 4, 4, generator=draw), torch.randint(0, 3, (8,), generator=draw)
        optimizer.zero_grad()
        if copies is not None:
            copies.refresh()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            logits = (model if copies is None else copies.call)(x)
        cross_entropy(logits.float(), y).backward()
        (optimizer if copies is None else copies).step()
    return optimizer


def test_it_is_autocast_bit_for_bit():
    torch.manual_seed(0)
    ours = network()
    theirs = copy.deepcopy(ours)
    train(ours, copied=True)
    train(theirs, copied=False)
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_steps_of_large_weights_are_the_optimizers(monkeypatch, nesterov, layout):
    monkeypatch.setattr(working_copies, "LARGE", 30)  # of which network() has two
    torch.manual_seed(0)
    ours = network().to(memory_format=layout)
    theirs = copy.deepcopy(ours)
    states = [train(net, copied, nesterov=nesterov).state for net, copied in ((ours, True), (theirs, False))]
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=name)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        found, expected = (state[p]["momentum_buffer"] for state, p in zip(states, (a, b), strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7, msg=name)
        assert (a.grad is None) == (name in ("0.weight", "4.weight")), name  # what was not the optimizer's to do


def test_weights_that_were_changed_from_outside_are_cast_anew(monkeypatch):
    monkeypatch.setattr(working_copies, "LARGE", 30)
    model = network()
    copies = WorkingCopies(model, torch.optim.SGD(model.parameters(), momentum=0.9))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    copies.refresh()
    stale = [name for name, value in copies._copies.items() if not torch.equal(value, as_half(model, name))]
    assert stale == ["0.weight", "4.weight"]
    copies.refresh_all()
    assert all(torch.equal(value, as_half(model, name)) for name, value in copies._copies.items())


def test_gradients_get_the_order_of_the_weights():
    weight = torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(2, 3, 5, 5).bfloat16()
    found = _like(weight, gradient)
    assert torch.equal(found, gradient)
    assert found.dtype == gradient.dtype
    assert found.stride() == weight.stride() != gradient.stride()
    assert _like(gradient, gradient) is gradient


def as_half(model, name):
    return model.get_parameter(name).bfloat16()


def test_the_steps_of_other_optimizers_are_their_own(monkeypatch):
    monkeypatch.setattr(working_copies, "LARGE", 1)
    model = network()
    sgd = partial(torch.optim.SGD, list(model.parameters()), lr=0.1)
    assert can_update(sgd(momentum=0.9))
    others = [sgd(), sgd(momentum=0.9, dampening=0.5), sgd(momentum=0.9, maximize=True)]
    for optimizer in (*others, torch.optim.AdamW(model.parameters())):
        assert not can_update(optimizer)
        assert all(one.group is None for one in WorkingCopies(model, optimizer)._copied)


def test_without_copies_of_the_gradients_nothing_would_learn():
    """Gradients land on the copies: a version that forgot to hand them back would leave the weights as they are."""
    torch.manual_seed(0)
    model = network()
    before = copy.deepcopy(model.state_dict())
    train(model, copied=True, steps=1)
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert not torch.equal(model[6].weight, before["6.weight"])


def test_frozen_and_shared_weights():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    model[2].weight = model[0].weight
    copies = WorkingCopies(model, torch.optim.SGD([model[0].weight]))
    assert list(copies._copies) == ["0.weight"]
    with torch.autocast("cpu", torch.bfloat16):
        assert copies.call(torch.ones(1, 2)).shape == (1, 2)


def test_our_networks_have_every_convolution_copied():
    model = ge.models.PreResNet(20)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(WorkingCopies(model, torch.optim.SGD(model.parameters()))._copies) == len(layers)
