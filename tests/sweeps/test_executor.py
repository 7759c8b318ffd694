import os
import signal
from functools import partial

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.sweeps.executor import Processes


def train(parent, folder, tell):
    assert torch.get_num_threads() == 1
    assert os.getpid() != parent
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    ge.fit(
        lambda: ge.models.MLP(2, (4,)), (x, y), size=2, method="deep", recipe=ge.Recipe(epochs=2), run_dir=folder,
        progress=False, device="cpu", callbacks=[lambda epoch: tell((epoch.member, epoch.epoch))],
    )  # fmt: skip


def fail(tell):
    raise ValueError("on purpose")


def be_killed(tell):
    os.kill(os.getpid(), signal.SIGKILL)


def go_on_for_ever(tell):
    while True:
        tell(os.getpid())


def test_jobs_run_in_processes_of_their_own_and_tell_of_their_epochs(tmp_path):
    heard = []
    jobs = {name: partial(train, os.getpid(), str(tmp_path / name)) for name in ("one", "two")}
    Processes().run(jobs, lambda *event: heard.append(event))
    assert all((tmp_path / name / "members" / "02" / "member.json").exists() for name in jobs)
    epochs = [(member, epoch) for member in (1, 2) for epoch in (1, 2)]
    for name in jobs:
        assert [event for job, event in heard if job == name] == epochs


def test_a_process_that_is_killed_ends_the_study():
    with pytest.raises(ChildProcessError, match=r"by signal 9, .*memory; the same command goes on"):
        Processes().run({"bad": be_killed}, print)


def test_an_error_reaches_the_caller_and_ends_the_others():
    with pytest.raises(ValueError, match="on purpose"):
        Processes().run({"bad": fail, "other": go_on_for_ever}, lambda *event: None)


def test_an_interrupt_ends_all_processes_and_says_how_to_go_on():
    pids = []

    def hear(name, pid):
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as raised:
        Processes().run({"endless": go_on_for_ever}, hear)
    assert "goes on from there" in raised.value.__notes__[0]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


class Pressed(int):
    """A number that is sent to another process while someone presses Ctrl-C."""

    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return int, (int(self),)


def press(tell):
    os.kill(os.getpid(), signal.SIGINT)
    tell("goes on")


@pytest.fixture
def heeded():
    """Let Ctrl-C raise KeyboardInterrupt, which a process that a shell started in the background ignores."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded")
def test_an_interrupt_while_a_process_starts_is_heard_when_it_has_started():
    with pytest.raises(KeyboardInterrupt) as raised:
        Processes(cpus=Pressed(1)).run({"one": press}, lambda *event: None)
    assert "goes on from there" in raised.value.__notes__[0]


def test_interrupts_are_not_for_the_processes():
    heard = []
    Processes().run({"one": press}, lambda *event: heard.append(event))
    assert heard == [("one", "goes on")]
