"""A run that is killed at any moment ends, when it is started again, with the weights of a run that was not."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import greedy_ensembles as ge
from greedy_ensembles.storage import FolderError

SIZE, EPOCHS = 2, 2


class Survivor:
    """The process of survivor.py."""

    def __init__(self, errors):
        self.errors = errors
        script = Path(__file__).with_name("survivor.py")
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # CUDA does not survive a fork
            )

    def start(self, run_dir, size=SIZE, epochs=EPOCHS, **request):
        """Begin a run, and return the process number of the child that trains."""
        line = json.dumps({"run_dir": str(run_dir), "size": size, "epochs": epochs, **request})
        print(line, file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def status(self):
        """Wait for the child; return its exit code, negative where a signal ended it."""
        return os.waitstatus_to_exitcode(int(self.process.stdout.readline()))

    def run(self, run_dir, **request):
        self.start(run_dir, **request)
        return self.status()


@pytest.fixture(scope="module")
def survivor(tmp_path_factory):
    survivor = Survivor(tmp_path_factory.mktemp("survivor") / "stderr")
    yield survivor
    survivor.process.stdin.close()
    survivor.process.wait()
    survivor.process.stdout.close()


@pytest.fixture(scope="module")
def uninterrupted(survivor, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    assert survivor.run(run_dir) == 0
    return run_dir


def results(run_dir):
    """All that must not depend on interruptions: bytes of weights and bank rows, and histories without their times."""
    files = {str(f.relative_to(run_dir)): f.read_bytes() for f in sorted(run_dir.rglob("*.safetensors"))}
    for file in sorted(run_dir.rglob("history.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        files[str(file.relative_to(run_dir))] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
    return files


def test_the_reference_is_whole(uninterrupted):
    names = set(results(uninterrupted))
    assert {f"members/0{k}/weights.safetensors" for k in (1, 2)} <= names
    assert {f"bank/0{k}.safetensors" for k in (1, 2)} <= names
    assert not (uninterrupted / "checkpoint.safetensors").exists()


# One file for run.json, then for each member one a checkpoint and four at its end.
FILES = 1 + SIZE * (EPOCHS + 4)


@pytest.mark.parametrize(
    ("when", "first"),
    [("before", 1), ("during", 1), ("after", FILES)],  # after a file is before the next
)
def test_a_kill_at_every_single_file(survivor, uninterrupted, tmp_path, when, first):
    for at in range(first, FILES + 1):
        run_dir = tmp_path / str(at)
        assert survivor.run(run_dir, crash={"at": at, "when": when}) == -signal.SIGKILL
        assert survivor.run(run_dir) == 0
        assert results(run_dir) == results(uninterrupted), (at, when)
        assert not list(run_dir.rglob("*.tmp")), (at, when)
    assert survivor.run(tmp_path / "beyond", crash={"at": FILES + 1, "when": when}) == 0  # there is no further file


def test_a_full_disk_leaves_the_old_state(survivor, uninterrupted, tmp_path):
    run_dir = tmp_path / "full"
    assert survivor.run(run_dir, crash={"at": 3, "when": "before"}) == -signal.SIGKILL
    checkpoint = run_dir / "checkpoint.safetensors"
    before = checkpoint.read_bytes()
    assert survivor.run(run_dir, file_limit=len(before) + 10) == 3
    message = survivor.errors.read_text()
    assert f"could not write {checkpoint}: File too large. What was saved before is intact" in message
    assert checkpoint.read_bytes() == before
    assert not list(run_dir.rglob("*.tmp"))
    assert survivor.run(run_dir) == 0
    assert results(run_dir) == results(uninterrupted)


def test_a_second_process_is_kept_out_and_the_lock_dies_with_its_owner(survivor, tmp_path, blobs, make_model, quick):
    run_dir = tmp_path / "locked"
    pid = survivor.start(run_dir, hold=True)
    assert survivor.process.stdout.readline() == "holding\n"
    with pytest.raises(FolderError, match=r"locked is in use: another process.* Wait .*another run_dir"):
        ge.fit(make_model, blobs, size=2, strength=1.0, run_dir=run_dir, **quick)
    os.kill(pid, signal.SIGKILL)
    survivor.status()
    with pytest.raises(FolderError, match="is of another configuration"):  # so it is no longer in use
        ge.fit(make_model, blobs, size=2, strength=1.0, run_dir=run_dir, **quick)
