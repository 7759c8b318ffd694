"""What the lanes of a recording wait for, without a GPU: streams that note in what order their work must happen."""

from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import greedy_ensembles as ge
from greedy_ensembles.training import captured, group_step
from greedy_ensembles.training.captured import Recorded, Streams, steps_at_once
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


@pytest.fixture
def ready(after):
    """Return members, their branches, and a step of theirs, with sums that it adds to."""
    problem = posed()
    members = [Member(problem, number + 1) for number in range(SIZE)]
    make_capturable(members, problem.device)
    branches = Streams(members, problem.device)
    branches.generators = [Mock() for _ in members]
    totals = torch.zeros(2, SIZE, dtype=torch.float64)
    step = GroupStep(members, problem, WeightingSet(problem, problem.weighting), totals, STEPS, 8, branches)
    return members, branches, step, totals


def test_members_wait_for_what_they_need_and_for_nothing_else(after, ready):
    members, _, step, _ = ready
    lanes, rates, made = [], {}, iter(range(STEPS))

    def watch(position, member):
        forwards, steps = iter(range(STEPS)), iter(range(STEPS))

        def ahead(*_):
            work(after, ("forward", position, next(forwards)))
            lanes.append(Stream.current)

        def stepped(optimizer, *_):
            work(after, ("step", position, next(steps)))
            rates.setdefault(position, []).append(optimizer.param_groups[0]["lr"])

        member.model.register_forward_pre_hook(ahead)
        member.optimizer.register_step_pre_hook(stepped)

    for position, member in enumerate(members):
        watch(position, member)
    set_rates = step._set_learning_rates

    def last_for_all():  # of what a step makes for all members, on the stream of the group
        work(after, ("made", next(made)))
        return set_rates()

    step._set_learning_rates = last_for_all
    step.run(STEPS)
    work(after, "end")
    everything = {(kind, p, s) for kind in ("forward", "step") for p in range(SIZE) for s in range(STEPS)}
    assert after["end"] == everything | {("made", s) for s in range(STEPS)}
    for position in range(SIZE):
        for number in range(STEPS):
            assert ("made", number) in after["forward", position, number]
            needed = {("forward", earlier, number) for earlier in range(position + 1)}
            assert needed <= after["step", position, number]
            if number:
                assert ("step", position, number - 1) in after["forward", position, number]
        # While a member is at a step, others may be at the next: its learning rate must not change under it.
        assert len({rate.data_ptr() for rate in rates[position]}) == STEPS
    # A member of the second step does not wait for the last ones of the first: there is no point where all meet.
    assert ("step", SIZE - 1, 0) not in after["forward", 0, 1]
    # Every lane has its share.
    counts = sorted(lanes.count(lane) for lane in set(lanes))
    assert len(counts) == LANES
    assert counts[-1] - counts[0] <= 1


def test_memory_that_lanes_may_read_is_kept_until_all_are_through(ready, monkeypatch):
    members, branches, step, totals = ready
    held, forward, join = [], group_step.forward, branches.join

    def note(*tensors):
        held.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)

    def passing(model, problem, batch, call=None):
        passed = forward(model, problem, batch, call)
        note(batch.inputs, batch.targets, batch.samples, passed.outputs)
        return passed

    def joining():
        assert not any(reference.expired() for reference in held)
        assert not totals.any()  # which need the losses of all
        join()

    monkeypatch.setattr(group_step, "forward", passing)
    monkeypatch.setattr(branches, "join", joining)
    for member in members:
        member.optimizer.register_step_pre_hook(lambda optimizer, *_: note(optimizer.param_groups[0]["lr"]))
    step.run(STEPS)
    assert len(held) == 5 * SIZE * STEPS
    assert totals.all(dim=1)[0]


def test_learning_rates_are_put_back_where_a_step_breaks_off(ready):
    members, _, step, _ = ready
    own = [member.optimizer.param_groups[0]["lr"] for member in members]
    members[2].optimizer.step = Mock(side_effect=MemoryError)
    with pytest.raises(MemoryError):
        step.run(STEPS)
    assert all(member.optimizer.param_groups[0]["lr"] is rate for member, rate in zip(members, own, strict=True))


@pytest.mark.parametrize(("rows", "at_once"), [(1, 1), (4, 4), (7, 4), (3, 3), (5, 2), (8, 4)])
def test_every_row_is_played_once(monkeypatch, rows, at_once):
    monkeypatch.setattr(captured, "warm_up", lambda *_: None)
    monkeypatch.setattr(captured, "record", lambda run, *_: (Mock(replay=run), None))
    played = []
    branches = Mock(generators_of_members=nullcontext)
    recorded = Recorded(Mock(run=played.append), branches, torch.device("cpu"), rows, at_once, None)
    recorded.play([], [], [1.0] * rows)
    assert played == [at_once] * (rows // at_once) + [1] * (rows % at_once)


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
