"""The step that a GPU records, run here one operation after another, against the eager engine."""

import copy
import dataclasses
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from greedy_ensembles.training.captured import CapturedEngine, _kept
from greedy_ensembles.training.compilation import _regions, compiled, worth_compiling
from greedy_ensembles.training.eager import EagerEngine, epoch_batches
from greedy_ensembles.training.group_step import GroupStep, make_capturable
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import pose
from greedy_ensembles.training.weighting_set import WeightingSet
from greedy_ensembles.training.working_copies import WorkingCopies
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.training import captured, working_copies
from greedy_ensembles.training.recipe import learning_rate_factor


def network():  # no bias in front of BatchNorm: its gradient is rounding alone, which AdamW would blow up
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)
    )


@pytest.fixture
def problem():
    def make(strength=3.0, size=3, make_model=network, shape=(50, 1, 4, 4), **changes):
        draw = torch.Generator().manual_seed(0)
        x = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
        fixed = {"epochs": 3, "batch_size": 16, "weighting_batch_size": 5, "normalize": (0.5, 0.25)}
        return pose(
            make_model,
            (x, torch.arange(len(x)) % 3),
            size=size,
            method="deep" if strength is None else "greedy",
            strength=strength,
            weighting=None,
            distance="probabilities",
            recipe=ge.Recipe(**{**fixed, **changes}),
            seed=0,
            validation=0.0,
            earlier=None,
            schedule="concurrent",
            device="cpu",
        )

    return make


def train_by_group_step(problem, members, weighting):
    """What the captured engine does in an epoch, without a GPU: a table for the full batches, one for the rest."""
    totals = torch.zeros(2, len(members), dtype=torch.float64)
    make_capturable(members, problem.device)
    batches = [epoch_batches(problem, member) for member in members]
    steps = len(batches[0])
    numbers = range(members[0].epoch * steps, (members[0].epoch + 1) * steps)
    samples = [weighting.indices(step) for step in numbers] if weighting is not None else []
    rates = [learning_rate_factor(problem.recipe, step / steps) for step in numbers]
    for part in (slice(steps - 1), slice(steps - 1, steps)):
        step = GroupStep(members, problem, weighting, totals, len(rates[part]), len(batches[0][part][0]))
        step.load([b[part] for b in batches], samples[part], rates[part])
        for _ in rates[part]:
            step.run()
    return totals


def test_learning_rates_change_where_they_lie(problem):
    """A recording reads them there."""
    posed = problem(strength=None)
    members = [Member(posed, number) for number in (1, 2)]
    make_capturable(members, posed.device)
    own = [member.optimizer.param_groups[0]["lr"] for member in members]
    step = GroupStep(members, posed, None, torch.zeros(2, 2, dtype=torch.float64), 3, 16)
    step.load([epoch_batches(posed, member)[:3] for member in members], [], [0.25, 0.5, 1.0])
    for factor in (0.25, 0.5, 1.0):
        step.run()
        assert all(member.optimizer.param_groups[0]["lr"] is rate for member, rate in zip(members, own, strict=True))
        assert own[0].item() == pytest.approx(factor * posed.recipe.lr)


def test_on_working_copies_it_trains_as_the_eager_engine_does_in_half_precision(problem, monkeypatch):
    """As the captured engine has it: two steps with copies of their own, of full batches and of the rest, in turn."""
    monkeypatch.setattr(working_copies, "LARGE", 100)  # the linear layer's weight is, the convolution's is not
    posed = problem(precision="bf16")
    groups = [[Member(posed, number) for number in (1, 2, 3)] for _ in range(2)]
    weighting = WeightingSet(posed, posed.weighting)
    make_capturable(groups[1], posed.device)
    totals = torch.zeros(2, 3, dtype=torch.float64)
    recorded = []
    for rows, batch_size in ((3, 16), (1, 2)):
        copies = [WorkingCopies(member.model, member.optimizer) for member in groups[1]]
        recorded.append(GroupStep(groups[1], posed, weighting, totals, rows, batch_size, copies=copies))
    for epoch in range(3):
        EagerEngine(groups[0], posed, weighting).train_epoch()
        batches = [epoch_batches(posed, member) for member in groups[1]]
        for step, part in zip(recorded, (slice(3), slice(3, 4)), strict=True):
            numbers = range(4 * epoch, 4 * epoch + 4)[part]
            samples = [weighting.indices(number) for number in numbers]
            rates = [learning_rate_factor(posed.recipe, number / 4) for number in numbers]
            step.load([b[part] for b in batches], samples, rates)
            for _ in rates:
                step.run()
        for theirs, ours in zip(*groups, strict=True):
            for (name, value), other in zip(
                theirs.model.state_dict().items(), ours.model.state_dict().values(), strict=True
            ):
                torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-4, msg=f"{name} in epoch {epoch}")
            theirs.epoch += 1
            ours.epoch += 1


@pytest.mark.parametrize("broken", [True, False])
def test_members_are_left_as_they_were_found_by_a_recording_and_by_one_that_broke_off(problem, monkeypatch, broken):
    """A step that broke off has made some of the optimizer's moments, which the eager engine could not go on from."""
    monkeypatch.setattr(working_copies, "LARGE", 10)
    posed = problem(precision="bf16")
    groups = [[Member(posed, number) for number in (1, 2)] for _ in range(2)]
    weighting = WeightingSet(posed, posed.weighting)
    make_capturable(groups[1], posed.device)
    copies = [WorkingCopies(member.model, member.optimizer) for member in groups[1]]
    step = GroupStep(groups[1], posed, weighting, torch.zeros(2, 2, dtype=torch.float64), 1, 16, copies=copies)
    if broken:
        monkeypatch.setattr(working_copies, "update", Mock(side_effect=[None, MemoryError]))
    with pytest.raises(MemoryError) if broken else nullcontext(), _kept(groups[1], posed):
        step.run()
    for theirs, ours in zip(*groups, strict=True):
        assert all(
            torch.equal(a, b)
            for a, b in zip(theirs.model.state_dict().values(), ours.model.state_dict().values(), strict=True)
        )
        found = [value["momentum_buffer"] for value in ours.optimizer.state.values()]
        assert len(found) == (0 if broken else len(list(ours.model.parameters())))
        assert not any(value.any() for value in found)
    losses = [EagerEngine(group, posed, weighting).train_epoch() for group in groups]
    assert losses[0] == losses[1]


class CountedLoss:
    calls = 0

    def __call__(self, logits, targets):
        self.calls += 1
        return nn.functional.cross_entropy(logits, targets)


@pytest.mark.parametrize("broken", [True, False])
def test_what_python_remembers_is_given_back_where_nothing_was_recorded(problem, broken):
    """Where something was, it needs what the first step made, and nothing else has changed since."""
    loss = CountedLoss()
    posed = problem(loss=loss)
    members, calls = [Member(posed, 1)], loss.calls
    members[0].model.average = torch.zeros(2)
    with pytest.raises(MemoryError) if broken else nullcontext(), _kept(members, posed):
        posed.loss(torch.zeros(1, 3), torch.zeros(1, dtype=torch.long))
        members[0].model.average += 1
        members[0].model.made = torch.ones(2)
        if broken:
            raise MemoryError
    assert loss.calls == (calls if broken else calls + 1)
    assert not members[0].model.average.any()
    assert hasattr(members[0].model, "made") is not broken


@pytest.mark.parametrize("strength", [None, 3.0])
@pytest.mark.parametrize("changes", [{}, {"nesterov": True, "warmup_epochs": 2}, {"optimizer": "adamw", "lr": 0.01}])
@pytest.mark.parametrize("in_bank", [0, 2])
def test_it_trains_as_the_eager_engine_does(problem, strength, changes, in_bank):
    posed = problem(strength, **changes)
    groups = [[Member(posed, number) for number in (1, 2, 3)] for _ in range(2)]
    weighting = None if posed.weighting is None else WeightingSet(posed, posed.weighting)
    if weighting is not None:
        for _ in range(in_bank):
            weighting.bank.append(torch.rand(50, 3).softmax(1))
    for _ in range(2):
        losses = EagerEngine(groups[0], posed, weighting).train_epoch()
        totals = train_by_group_step(posed, groups[1], weighting)
        for k in range(3):
            assert totals[0, k].item() / 50 == pytest.approx(losses[k].loss, rel=1e-4)
            if losses[k].diversity is not None:
                assert totals[1, k].item() / 4 == pytest.approx(losses[k].diversity, rel=1e-4, abs=1e-6)
        for ours, theirs in zip(*groups, strict=True):
            ours.epoch += 1
            theirs.epoch += 1
            for (name, value), other in zip(
                ours.model.state_dict().items(), theirs.model.state_dict().values(), strict=True
            ):
                torch.testing.assert_close(other, value, rtol=1e-3, atol=1e-5, msg=name)
    assert float(groups[1][0].optimizer.param_groups[0]["lr"]) == pytest.approx(
        groups[0][0].optimizer.param_groups[0]["lr"]
    )


def test_blocks_that_repeat_are_compiled_once_for_all():
    assert [type(r).__name__ for r in _regions(ge.models.VGG16BN())] == ["VGG16BN"]
    assert {type(r).__name__ for r in _regions(ge.models.PreResNet(164))} == {"Bottleneck"}
    assert len(_regions(ge.models.PreResNet(164))) == 54
    assert [type(r).__name__ for r in _regions(ge.models.PreResNet(8))] == ["PreResNet"]


def test_compiling_pays_for_long_trainings_of_deep_networks_alone(problem):
    """By the members that are to be trained: others that are there already earn nothing."""
    short = problem()
    ten = ge.Ensemble.from_members([network() for _ in range(10)])
    long = problem(epochs=15_000, size=11)
    assert worth_compiling([Member(short, 1)], long)
    assert not worth_compiling([Member(short, 1)], dataclasses.replace(long, earlier=ten))
    assert not worth_compiling([Member(short, 1)], short)
    assert worth_compiling([Member(short, 1)], problem(epochs=50_000))  # one layer, 3 members, 50 / 16 batches
    assert not worth_compiling([Member(short, 1)], problem(epochs=50_000, deterministic=True))


@pytest.mark.filterwarnings("ignore::UserWarning:torch")  # the compiler looks at gradients that are not there
def test_compiled_models_are_plain_again_afterwards(problem, monkeypatch):
    """The graph that compiling traces gives what the model gives, BatchNorm split; the compiler itself is left out."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: compile_module(self, backend="eager", **options))
    posed = problem()
    groups = [[Member(posed, number) for number in (1, 2)] for _ in range(2)]
    weighting = WeightingSet(posed, posed.weighting)
    before = copy.deepcopy(vars(groups[0][0].model))
    with compiled([member.model for member in groups[0]]):
        train_by_group_step(posed, groups[0], weighting)
    train_by_group_step(posed, groups[1], weighting)
    for ours, theirs in zip(*groups, strict=True):
        for value, other in zip(ours.model.state_dict().values(), theirs.model.state_dict().values(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-6)
    assert vars(groups[0][0].model).keys() == before.keys()


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("name", ["PreResNet8", "VGG16BN"])
def test_steps_of_our_networks_leave_nothing_in_python(problem, monkeypatch, name, statistics):
    """So that they are recorded: all of it, but for the recording itself, on the CPU."""
    changes = {"batch_size": 4, "weighting_batch_size": 2, "weighting_statistics": statistics, "augment": "flip_crop"}
    make_model = ge.models.named(name, 3, 3)
    posed = problem(size=2, make_model=make_model, shape=(8, 3, 32, 32), precision="bf16", **changes)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", Mock())
    monkeypatch.setattr(captured, "Lanes", lambda *arguments: None)
    monkeypatch.setattr(captured, "Draws", lambda *arguments: Mock(lent=nullcontext, of=lambda _: nullcontext()))
    monkeypatch.setattr(captured, "warm_up", lambda run, device: (run(), run()))
    graph = Mock()
    monkeypatch.setattr(captured, "record", lambda *arguments: (graph, None))
    monkeypatch.setattr(captured, "_host_generators", lambda: None)  # where dropout draws, here
    members = [Member(posed, number) for number in (1, 2)]
    CapturedEngine(members, posed, WeightingSet(posed, posed.weighting)).train_epoch()
    assert graph.replay.call_count == 2  # steps of an epoch: it was recorded, and is played
