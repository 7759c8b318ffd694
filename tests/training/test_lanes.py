"""What lanes wait for, without a GPU: streams that note in what order their work must happen."""

from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import greedy_ensembles as ge
from greedy_ensembles.training import captured, group_step
from greedy_ensembles.training.captured import Recorded
from greedy_ensembles.training.group_step import GroupStep, make_capturable
from greedy_ensembles.training.lanes import LANES, Lanes
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import pose
from greedy_ensembles.training.weighting_set import WeightingSet

SIZE, STEPS = LANES + 3, 4


class Stream:
    """Work on it comes after what is `before`: names of all work that must have happened."""

    current = None

    def __init__(self, *_):
        self.before = frozenset()

    def record_event(self):
        return self.before

    def wait_event(self, event):
        self.before |= event

    def wait_stream(self, other):
        self.before |= other.before


@pytest.fixture
def after(monkeypatch):
    """Let PyTorch's streams be ours, and return by name of a piece of work what must have happened before it."""
    Stream.current = Stream()

    @contextmanager
    def use(stream):
        before, Stream.current = Stream.current, stream
        yield
        Stream.current = before

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream.current)
    monkeypatch.setattr(torch.cuda, "default_generators", [Mock()])
    return {}


def work(after, name):
    assert name not in after
    after[name] = Stream.current.before
    Stream.current.before |= {name}


def posed():
    x, y = torch.randn(STEPS * 8, 5), torch.arange(STEPS * 8) % 3
    return pose(
        lambda: nn.Linear(5, 3),
        (x, y),
        size=SIZE,
        method="greedy",
        strength=1.0,
        weighting=ge.weighting.Uniform(-1.0, 1.0, shape=(5,)),
        distance="probabilities",
        recipe=ge.Recipe(epochs=1, batch_size=8, lr=0.1),
        seed=0,
        validation=0.0,
        earlier=None,
        schedule="concurrent",
        device="cpu",
    )


@pytest.fixture
def ready(after):
    """Return members, a step of theirs, and the sums that it adds to."""
    problem = posed()
    members = [Member(problem, number + 1) for number in range(SIZE)]
    make_capturable(members, problem.device)
    totals = torch.zeros(2, SIZE, dtype=torch.float64)
    step = GroupStep(members, problem, WeightingSet(problem, problem.weighting), totals, STEPS, 8)
    return members, step, totals


@pytest.mark.parametrize("coupled", [True, False])
def test_members_wait_for_what_they_need_and_for_nothing_else(after, ready, coupled):
    members, step, _ = ready
    lanes, number, prepare = Lanes(SIZE, torch.device("cpu"), coupled), 0, step.prepare

    def watch(position, member):
        member.model.register_forward_pre_hook(lambda *_: work(after, ("forward", position, number)))
        member.optimizer.register_step_pre_hook(lambda *_: work(after, ("step", position, number)))

    def prepared():
        work(after, ("made", number))
        prepare()

    def through(*name):
        return after[name] | {name}

    for position, member in enumerate(members):
        watch(position, member)
    step.prepare = prepared
    for number in range(STEPS):
        before = set(after)
        lanes.run(step)
        assert after["made", number] == before  # a step begins when all members are through with the one before
        for position in range(SIZE):
            alone = position < LANES  # on its lane so far
            begun = through("made", number) if alone else through("step", position - LANES, number)
            assert after["forward", position, number] == begun
            needed = range(position + 1) if coupled else [position]
            expected = frozenset().union(*(through("forward", earlier, number) for earlier in needed))
            assert after["step", position, number] == expected


def test_memory_that_other_lanes_may_read_is_kept_until_all_are_through(ready, monkeypatch):
    _, step, totals = ready
    held, forward, waited = [], group_step.forward, []

    def passing(model, problem, batch, call=None):
        passed = forward(model, problem, batch, call)
        read = batch.inputs, batch.targets, batch.samples, passed.outputs
        held.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in read)
        return passed

    def wait_stream(self, other):
        if self is Stream.current and len(held) == 4 * SIZE:
            assert not any(reference.expired() for reference in held)
            waited.append(other)

    monkeypatch.setattr(group_step, "forward", passing)
    monkeypatch.setattr(Stream, "wait_stream", wait_stream)
    Lanes(SIZE, torch.device("cpu"), coupled=True).run(step)
    assert len(set(waited)) == LANES
    assert totals.all(dim=1)[0]


def test_every_row_is_played_once(ready, monkeypatch):
    members, step, _ = ready
    monkeypatch.setattr(captured, "warm_up", lambda run, _: run())
    monkeypatch.setattr(captured, "record", lambda run, *_: (Mock(replay=run), None))
    watched = {"the model": members[0].model}
    recorded = Recorded(step, watched, None, Mock(lent=nullcontext), torch.device("cpu"), None)
    played = []
    first = members[0].optimizer
    first.register_step_pre_hook(lambda *_: played.append(first.param_groups[0]["lr"].item()))
    rates = [1.0, 0.5, 0.25, 0.125]
    for _ in range(2):
        recorded.play([torch.arange(STEPS * 8).view(STEPS, 8)] * SIZE, [], rates)
    assert played == pytest.approx([0.1 * rate for rate in rates] * 2)
