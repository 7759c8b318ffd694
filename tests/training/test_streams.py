"""What the lanes of a recording wait for, without a GPU: streams that note in what order their work must happen."""

from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.training.captured import Streams, steps_at_once
from greedy_ensembles.training.group_step import GroupStep, make_capturable
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.memory import AT_ONCE, LANES
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


def posed(epochs=1, batch=8):
    x, y = torch.randn(STEPS * 8, 5), torch.arange(STEPS * 8) % 3
    return pose(
        lambda: nn.Linear(5, 3),
        (x, y),
        size=SIZE,
        method="greedy",
        strength=1.0,
        weighting=ge.weighting.Uniform(-1.0, 1.0, shape=(5,)),
        distance="probabilities",
        recipe=ge.Recipe(epochs=epochs, batch_size=batch, lr=0.1),
        seed=0,
        validation=0.0,
        earlier=None,
        schedule="concurrent",
        device="cpu",
    )


def test_members_wait_for_what_they_need_and_for_nothing_else(after):
    problem = posed()
    members = [Member(problem, number + 1) for number in range(SIZE)]
    make_capturable(members, problem.device)
    branches = Streams(members, problem.device)
    branches.generators = [Mock() for _ in members]
    totals = torch.zeros(2, SIZE, dtype=torch.float64)
    step = GroupStep(members, problem, WeightingSet(problem, problem.weighting), totals, STEPS, 8, branches)
    lanes = []
    for position, member in enumerate(members):
        count = iter(range(STEPS))
        at = iter(range(STEPS))

        def ahead(_module, _inputs, position=position, count=count):
            work(after, ("forward", position, next(count)))
            lanes.append(Stream.current)

        def stepped(*_, position=position, at=at):
            work(after, ("step", position, next(at)))

        member.model.register_forward_pre_hook(ahead)
        member.optimizer.register_step_pre_hook(stepped)
    step.run(STEPS)
    work(after, "end")
    everything = {(kind, p, s) for kind in ("forward", "step") for p in range(SIZE) for s in range(STEPS)}
    assert after["end"] == everything
    for position in range(SIZE):
        for number in range(STEPS):
            needed = {("forward", earlier, number) for earlier in range(position + 1)}
            assert needed <= after["step", position, number]
            if number:
                assert ("step", position, number - 1) in after["forward", position, number]
    # A member of the second step does not wait for the last ones of the first: there is no point where all meet.
    assert ("step", SIZE - 1, 0) not in after["forward", 0, 1]
    # Every lane has its share.
    counts = sorted(lanes.count(lane) for lane in set(lanes))
    assert len(counts) == LANES
    assert counts[-1] - counts[0] <= 1


def test_a_run_that_broke_off_leaves_nothing_to_wait_for(after):
    problem = posed()
    branches = Streams([Mock(), Mock()], problem.device)
    with branches.of(0):
        work(after, "first")
    with branches.of(1):
        work(after, "second")
    branches.begin()  # without a join
    with branches.of(1):
        work(after, "again")
    assert after["again"] == {"first"}  # what its lane did, and no event of the run that broke off


def test_several_steps_are_recorded_together_where_that_pays():
    long = posed(epochs=1000)
    assert steps_at_once(long, members=2, rows=100) == AT_ONCE
    assert steps_at_once(long, members=2, rows=3) == 3
    assert steps_at_once(long, members=1, rows=100) == 1
    assert steps_at_once(posed(), members=2, rows=100) == 1
