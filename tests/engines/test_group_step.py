"""The step that a GPU records, run here one operation after another, against the plain engine; and its check."""

import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.engines.groups import Group, assert_close, build
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines.captured import (
    CHECKED,
    GroupStep,
    _host_generators,
    _part,
    _preserved,
    _state,
    take_on_copies,
    why_not_captured,
)
from greedy_ensembles.engines.graphs import CannotCapture, DeviceGenerators, check_replayed, make_capturable
from greedy_ensembles.engines.plain import PlainEngine

CPU = torch.device("cpu")


def network():  # no bias in front of BatchNorm: its gradient is rounding alone, which AdamW would blow up
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


def group(make_model=network, in_bank=0, size=3, method="greedy", **changes):
    x = torch.randint(0, 256, (50, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fixed = {"epochs": 3, "batch_size": 16, "weighting_batch_size": 5, "normalize": (0.5, 0.25)}
    recipe = ge.Recipe(**{**fixed, **changes})
    return Group(build(make_model, (x, torch.arange(50) % 3), size=size, method=method, recipe=recipe), in_bank)


def made(of, plan):
    totals = torch.zeros(2, len(of.members), dtype=torch.float64)
    return GroupStep(of.members, of.step, totals, plan, DeviceGenerators(of.members, CPU)), totals


def train_by_group_step(of):
    """What the captured engine does in an epoch, without a GPU: tables for the full batches, and for the rest."""
    make_capturable(of.members, CPU)
    plan, both = of.plan(), 0
    for part in (slice(3), slice(3, 4)):
        step, totals = made(of, _part(plan, part))
        for _ in plan.rates[part]:
            step.run()
        both = both + totals
    for member in of.members:
        member.epoch += 1
    return both


@pytest.mark.parametrize("method", ["deep", "greedy", "repulsive"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"nesterov": True, "warmup_epochs": 2}, {"optimizer": "adamw", "lr": 0.01}, {"clip": 0.5, "ema": 0.9}],
)
@pytest.mark.parametrize("in_bank", [0, 2])
def test_it_trains_as_the_plain_engine_does(method, changes, in_bank):
    ours, theirs = (group(method=method, in_bank=in_bank, size=in_bank + 3, **changes) for _ in range(2))
    engine = PlainEngine(theirs.members, theirs.step)
    for _ in range(2):
        totals = train_by_group_step(ours)
        ((losses, _),) = theirs.train(engine)
        for k, expected in enumerate(losses):
            assert totals[0, k].item() / 50 == pytest.approx(expected.loss, rel=1e-4)
            if expected.term is not None:
                assert totals[1, k].item() / 4 == pytest.approx(expected.term, rel=1e-4, abs=1e-6)
        assert_close(ours.values(), theirs.values(), rtol=1e-3, atol=1e-5)
    rates = [float(of.members[0].optimizer.param_groups[0]["lr"]) for of in (ours, theirs)]
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize("method", ["greedy", "repulsive"])
def test_two_that_share_the_members_take_the_steps_of_one(method):
    """The halves of a step, with what both processes have to say in between."""
    whole, *parts = (group(method=method, size=5) for _ in range(3))
    for of, own in zip(parts, (slice(0, 3), slice(3, 5)), strict=True):
        of.members = of.members[own]
        of.step = replace(of.step, exchange=SimpleNamespace(own=own))
    plan = _part(whole.plan(), slice(3))
    together, expected = made(whole, plan)
    steps = [made(of, plan._replace(examples=[batch[of.step.exchange.own] for batch in plan.examples])) for of in parts]
    for of in (whole, *parts):
        make_capturable(of.members, CPU)
    for _ in plan.rates:
        together.run()
        for step, _ in steps:
            step.begin()
        said = torch.cat([step._live for step, _ in steps])
        for step, _ in steps:
            step.exchange = lambda own, said=said: said
            step.meet()
            step.end()
    for of, k in ((parts[0], 0), (parts[1], 3)):
        for number, member in enumerate(of.members, start=k):
            found, right = (one.model.state_dict() for one in (member, whole.members[number]))
            assert_close(found, right, rtol=0, atol=0)
    assert torch.equal(torch.cat([totals for _, totals in steps], dim=1), expected)


def test_learning_rates_change_where_they_lie():
    """A recording reads them there."""
    of = group(method="deep", size=2)
    make_capturable(of.members, CPU)
    own = [member.optimizer.param_groups[0]["lr"] for member in of.members]
    plan = _part(of.plan(), slice(3))._replace(rates=[0.25, 0.5, 1.0])
    step, _ = made(of, plan)
    for factor in plan.rates:
        step.run()
        assert all(member.optimizer.param_groups[0]["lr"] is rate for member, rate in zip(of.members, own, strict=True))
        assert own[0].item() == pytest.approx(factor * 0.1)


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adamw"}, {"ema": 0.9}])
@pytest.mark.parametrize("broken", [True, False])
def test_members_are_left_as_they_were_found(changes, broken):
    """Also by a step that broke off, which has made some of the optimizer's moments."""
    ours, theirs = (group(size=2, lr=0.01, **changes) for _ in range(2))
    make_capturable(ours.members, CPU)
    step, _ = made(ours, _part(ours.plan(), slice(3)))
    with pytest.raises(MemoryError) if broken else nullcontext(), _preserved(ours.members, CPU):
        step.run()
        if broken:
            raise MemoryError
    for ours_, theirs_ in zip(ours.members, theirs.members, strict=True):
        assert_close(ours_.model.state_dict(), theirs_.model.state_dict(), rtol=0, atol=0)
    for of in (ours, theirs):
        of.train(PlainEngine(of.members, of.step))
    assert_close(ours.values(), theirs.values(), rtol=1e-6, atol=1e-7)


class Counting(nn.Module):
    """What it returns depends on how often it was called, which no recording of a call shows."""

    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, nn.Linear(16, 3)

    def forward(self, x):
        self.calls += 1
        return self.last(x.flatten(1)) * (1 + self.calls % 3)


class CountingLoss:
    def __init__(self):
        self.calls = 0

    def __call__(self, logits, targets):
        self.calls += 1
        return nn.functional.cross_entropy(logits, targets) * self.calls


class Averaging(nn.Module):
    """Every call puts a new tensor in the place of one; a recording would read the old one for ever."""

    def __init__(self):
        super().__init__()
        self.average, self.last = torch.zeros(()), nn.Linear(16, 3)

    def forward(self, x):
        self.average = 0.9 * self.average + x.detach().mean()
        return self.last(x.flatten(1) - self.average)


def remembered(of):
    """All that these models and losses remember in Python, as of now; and a function that puts it back."""
    owners = [vars(part) for member in of.members for part in (member.model, of.step.loss) if hasattr(part, "__dict__")]
    kept = [{k: v for k, v in owner.items() if k in ("calls", "average")} for owner in owners]
    return lambda: [owner.update(values) for owner, values in zip(owners, kept, strict=True)]


def named(kinds):
    return {str(number): value for number, value in enumerate(value for kind in kinds for value in kind)}


def replayed(of, plan):
    """Return weights after steps in which Python does what it did in the first: what a recording replays."""
    step, _ = made(of, plan)
    as_recorded = remembered(of)
    for _ in plan.rates[:CHECKED]:
        as_recorded()
        step.run()
    return _state(of.members)


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ({}, False),
        ({"optimizer": "adamw", "lr": 0.01}, False),
        ({"make_model": Counting}, True),
        ({"make_model": Averaging}, True),
        ({"loss": CountingLoss()}, True),
    ],
)
def test_a_replay_in_which_python_stands_still_is_told_from_plain_steps(options, differs):
    of = group(**options)
    make_capturable(of.members, CPU)
    plan = _part(of.plan(), slice(3))
    start = [[value.clone() for value in kind] for kind in _state(of.members)]
    plain, again = (take_on_copies(of.members, of.step, plan) for _ in range(2))
    assert_close(named(plain), named(again), rtol=0, atol=0)  # also where calls are counted
    assert_close(named(start), named(_state(of.members)), rtol=0, atol=0)
    with pytest.raises(CannotCapture, match="differ from plain ones") if differs else nullcontext():
        check_replayed(start, plain, again, replayed(of, plan))


@pytest.mark.parametrize(
    ("again", "replay", "refused"),
    [
        (1.0, 1.0, False),
        (1.0, 1.0009, False),  # rounding: less than a thousandth of the weight's own change
        (1.0, 1.0011, True),
        (1.01, 1.099, False),  # less than ten times the difference of two plain repetitions
        (1.01, 1.101, True),
        (1.0, float("nan"), True),
        (1.0, float("inf"), True),
    ],
)
def test_how_much_a_replay_may_differ(again, replay, refused):
    states = [[[torch.tensor([0.5, value]), torch.empty(0)], []] for value in (0.0, 1.0, again, replay)]
    with pytest.raises(CannotCapture) if refused else nullcontext():
        check_replayed(*states)


def test_training_that_diverges_at_once_is_not_the_recordings_fault():
    states = [[[torch.tensor([value])], []] for value in (0.0, float("nan"), float("nan"), float("nan"))]
    check_replayed(*states)


def test_statistics_that_move_much_do_not_hide_weights_that_stand_still():
    states = [
        [[torch.tensor([w])], [torch.tensor([s])]] for w, s in ((0.0, 0.0), (1e-3, 10.0), (1e-3, 10.0), (0.0, 10.0))
    ]
    with pytest.raises(CannotCapture):
        check_replayed(*states)


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), np.random.rand, random.random])
def test_draws_on_the_host_are_noticed(draw):
    """A recording would repeat the first of them for ever."""
    before = _host_generators()
    assert _host_generators() == before
    draw()
    assert _host_generators() != before


def test_a_model_that_cannot_be_copied_is_not_captured():
    class Unique(nn.Linear):
        def __deepcopy__(self, memo):
            raise TypeError("there is but one")

    of = group(lambda: nn.Sequential(nn.Flatten(), Unique(16, 3)), method="deep")
    with pytest.raises(CannotCapture, match="TypeError: there is but one"):
        take_on_copies(of.members, of.step, of.plan())


def test_what_selects_epochs_need_not_be_copied():
    class Score:
        def __call__(self, probs, labels):
            return 0.0

        def __deepcopy__(self, memo):
            raise TypeError("there is but one")

    of = group()
    for member in of.members:
        member.recipe = replace(member.recipe, select_by=Score())
    make_capturable(of.members, CPU)
    take_on_copies(of.members, of.step, of.plan())


def test_what_is_known_to_be_beyond_capturing():
    assert why_not_captured(group().step) is None
    assert "optimizers of one's own" in why_not_captured(group(optimizer=lambda p: torch.optim.SGD(p, 0.1)).step)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_member_goes_on_from_what_such_steps_saved(optimizer):
    """Their learning rates are tensors, those of a new optimizer are numbers."""
    ours, theirs = group(optimizer=optimizer), group(optimizer=optimizer)
    train_by_group_step(ours)
    judged = {"validation_accuracy": None, "validation_score": None}
    for member, other in zip(ours.members, theirs.members, strict=True):
        member.epoch = 0
        member.end_epoch({"loss": 1.0, "seconds": 0.0, **judged})
        other.restore(member.state())
    assert_close(theirs.values(), ours.values(), rtol=0, atol=0)
