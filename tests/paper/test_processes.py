import os
import signal
import time
from dataclasses import dataclass

import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.paper.processes import run_all


@dataclass(frozen=True)
class Job:
    folder: str
    fail: bool = False

    def __call__(self, tell):
        if self.fail:
            raise ValueError("on purpose")
        assert torch.get_num_threads() == 1
        assert os.getpid() != int(os.environ["TEST_PARENT"])
        x, y = torch.randn(40, 2), torch.arange(40) % 2
        recipe = ge.Recipe(epochs=2)
        ge.fit(
            lambda: ge.models.MLP(2, (4,)), (x, y), size=2, method="deep", recipe=recipe, run_dir=self.folder,
            progress=False, device="cpu", callbacks=[lambda epoch: tell((epoch.member, epoch.epoch))],
        )  # fmt: skip


class Killed:
    def __call__(self, tell):
        os.kill(os.getpid(), signal.SIGKILL)


def test_jobs_run_in_processes_of_their_own_and_tell_of_their_epochs(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_PARENT", str(os.getpid()))
    heard = []
    run_all({name: Job(str(tmp_path / name)) for name in ("one", "two")}, lambda *event: heard.append(event))
    assert all((tmp_path / name / "members" / "02" / "member.json").exists() for name in ("one", "two"))
    epochs = [(member, epoch) for member in (1, 2) for epoch in (1, 2)]
    for name in ("one", "two"):
        assert [event for job, event in heard if job == name] == epochs


def test_a_process_that_is_killed_ends_the_study(tmp_path):
    with pytest.raises(
        ChildProcessError, match="ended by signal 9, perhaps for want of memory; the same command goes on"
    ):
        run_all({"bad": Killed()}, print)


def test_an_error_reaches_the_caller_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TEST_PARENT", str(os.getpid()))
    start = time.monotonic()
    with pytest.raises(ValueError, match="on purpose"):
        run_all({"bad": Job("", fail=True)}, print)
    assert time.monotonic() - start < 60
