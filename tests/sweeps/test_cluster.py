"""`ge.sweep` on a real Ray cluster of three nodes, whose workers, nodes and drivers are killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cloudpickle
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.sweeps.executor import open_executor

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import the tests

SIZE, EPOCHS = 2, 4
DEADLINE = 900  # seconds, for a test that hangs to fail; many, for a busy machine
STORE = 80 * 2**20  # bytes of each node's object store, nearly the least that Ray takes


def wait_for(condition):
    """Return what a condition gives as soon as it gives anything."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


@dataclass(frozen=True)
class Watch:
    """Keep a log of a run's epochs; where there is a victim, stop once after an epoch, to be killed."""

    log: Path
    victim: str = ""

    @property
    def marker(self):
        return self.log.with_suffix(".victim")

    def __call__(self, epoch):
        with self.log.open("a") as file:
            file.write(f"{epoch.member} {epoch.epoch}\n")
        if not self.victim or (epoch.member, epoch.epoch) != (2, 2) or self.marker.exists():
            return
        import ray

        unfinished = self.marker.with_suffix(".tmp")
        unfinished.write_text(f"{ray.get_runtime_context().get_node_id()} {os.getpid()}")
        unfinished.replace(self.marker)
        if self.victim == "worker":
            os.kill(os.getpid(), signal.SIGKILL)
        wait_for(lambda: False)

    def met(self):
        """Wait for the victim, and return its node and its process."""
        wait_for(self.marker.exists)
        node, pid = self.marker.read_text().split()
        return node, int(pid)

    def epochs(self):
        return [tuple(map(int, line.split())) for line in self.log.read_text().splitlines()]


def data():
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(7))
    return x, (x[:, 0] > 0).long()


def arguments():
    return {"size": SIZE, "strength": 1.0, "recipe": ge.Recipe(epochs=EPOCHS, batch_size=16), "device": "cpu"}


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def sweep(address, storage, watches, *others):
    runs = [{"seed": seed, "callbacks": [watch]} for seed, watch in watches.items()]
    return ge.sweep(make_model, data(), [*runs, *others], storage=storage, on=address, progress=False, **arguments())


def content(folder):
    """All of a run that must not depend on kills: bytes of weights and bank, and histories without their times."""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*.safetensors")}
    for file in folder.rglob("history.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        files[str(file.relative_to(folder))] = [{**line, "seconds": None} for line in lines]
    return files


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Folders of the same runs, trained here and never interrupted."""
    folder = tmp_path_factory.mktemp("serial")
    for seed in (0, 2, 4):
        ge.fit(make_model, data(), seed=seed, run_dir=folder / f"seed-{seed}", progress=False, **arguments())
    return folder


@pytest.fixture(scope="module")
def cluster():
    import ray
    from ray.cluster_utils import Cluster

    # A node that is gone is noticed within a second, and not fifteen; one that is slow has its ten seconds to answer.
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 2}
    soon["idle_worker_killing_time_threshold_ms"] = 1000 * DEADLINE  # a worker has imported torch, which takes seconds
    soon["worker_niceness"] = 0  # not 15, or everything else on a busy machine would come first
    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": soon}
    head |= {"include_log_monitor": False, "no_monitor": True}  # two processes fewer: of logs, and of nodes on demand
    found = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        found.add_node(wait=False, num_cpus=1, object_store_memory=STORE)
    found.wait_for_nodes()
    ray.init(address=found.address, log_to_driver=False, logging_level="error")  # as a notebook does; on="ray" takes it
    yield found
    ray.shutdown()
    found.shutdown()


def check_equal(storage, serial, watches):
    every = [(member, epoch) for member in range(1, SIZE + 1) for epoch in range(1, EPOCHS + 1)]
    for seed, watch in watches.items():
        assert content(storage / f"seed-{seed}") == content(serial / f"seed-{seed}")
        assert len(content(serial / f"seed-{seed}")) == 3 * SIZE
        assert watch.epochs() == every  # each was finished once: kills came after a checkpoint, and nothing was lost


def test_a_study_is_made_on_a_cluster_and_says_what_failed(cluster, invoke, tmp_path):
    """One of its two runs has a folder with something else in it."""
    options = ["overhead", "--budget", "quick", "--model", "VGG16BN", "--only", "1/2", "--root", tmp_path / "none"]

    def reproduce(out, *more):
        return invoke("reproduce", *options, "--out", tmp_path / out, "--device", "cpu", "--quiet", *more)

    assert reproduce("here").exit_code == 0
    good, bad = sorted((tmp_path / "here" / "quick" / "runs").iterdir())
    foreign = tmp_path / "there" / "quick" / "runs" / bad.name / "foreign"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    done = reproduce("there", "--on", "ray")
    assert done.exit_code == 1
    assert f"{bad.name} failed: FolderError: run_dir" in done.output
    assert "runs that failed: 1" in done.stderr.splitlines()[-1]
    assert content(tmp_path / "there" / "quick" / "runs" / good.name) == content(good)
    (record,) = (tmp_path / "there" / "quick" / "predictions").glob("*.json")
    assert "-deep-" in record.stem
    assert "default_worker" not in str(json.loads(record.read_text())["machine"]["command"])


def test_a_strength_is_chosen_on_a_cluster_as_it_is_here(cluster, tmp_path):
    asked = {**arguments(), "strengths": [0.01, 1e30], "seeds": 2, "distance": "logits", "progress": False}
    del asked["strength"]
    asked["recipe"] = ge.Recipe(epochs=EPOCHS, batch_size=16, lr=0.01)  # small, for the distance of logits has no bound
    here = ge.select(make_model, data(), **asked)
    there = ge.select(make_model, data(), run_dir=tmp_path, on="ray", **asked)
    assert there == here
    assert "range of numbers" in there.harms[1e30]
    x, _ = data()
    for strength in (None, 0.01):
        for ours, theirs in zip(there.ensembles[strength], here.ensembles[strength], strict=True):
            assert torch.equal(ours.predict_proba(x), theirs.predict_proba(x))


def test_the_command_chooses_on_a_cluster_as_it_does_here(cluster, invoke, make_home, tmp_path, monkeypatch):
    runs = {
        f"{name}-{seed}": ["--seed", seed, *more]
        for name, more in (("deep", ["--method", "deep"]), ("one", ["--strength", 1]))
        for seed in (0, 2)
    }
    monkeypatch.chdir(make_home("flat_model", runs))
    asked = ["select", *runs, "--model", "flat_model:make", "--root", "data", "--device", "cpu"]
    done = invoke(*asked, "--out", tmp_path / "here")
    assert done.exit_code == 0, done.output
    for kept in Path().glob("*/predictions"):
        shutil.rmtree(kept)
    done = invoke(*asked, "--on", "ray", "--out", tmp_path / "there")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "there/selection.json").read_text() == (tmp_path / "here/selection.json").read_text()
    assert len(list(Path().glob("*/predictions"))) == 4


def test_what_is_killed_with_its_driver_its_worker_or_its_node_goes_on_elsewhere(cluster, serial, tmp_path):
    """Its workers are those of the tests above, which have imported torch; tests below need one node, the one left."""
    watches = {
        seed: Watch(tmp_path / str(seed), victim) for seed, victim in {0: "driver", 2: "worker", 4: "node"}.items()
    }
    driver = subprocess.Popen([sys.executable, __file__, cluster.address, tmp_path])
    try:
        wait_for(lambda: watches[0].marker.exists() or driver.poll() is not None)
    finally:
        driver.kill()
        driver.wait()
    _, pid = watches[0].met()
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
    left = [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith(".")]
    assert len(left) == 1  # by which nodes knew the storage; the driver had no time to take it away

    def kill_node():
        node, _ = watches[4].met()
        (lost,) = (own for own in cluster.worker_nodes if own.node_id == node)
        cluster.remove_node(lost, allow_graceful=False)

    killer = threading.Thread(target=kill_node)
    killer.start()
    done = sweep("ray", tmp_path / "runs", watches, {"seed": 6, "weighting": "nonsense"})
    killer.join()
    assert list(done.ensembles) == [f"seed-{seed}" for seed in watches]
    assert "weighting must have sample" in str(done.failures["seed-6-weighting-nonsense"])
    assert "seed-6-weighting-nonsense failed: TypeError: weighting must" in str(done)
    check_equal(tmp_path / "runs", serial, watches)
    x, _ = data()
    plain = ge.load_run(serial / "seed-2", make_model).ensemble
    assert torch.equal(done.ensembles["seed-2"].predict_proba(x), plain.predict_proba(x))


class Arrival:
    """Becomes the number of the process that unpickles it."""

    def __reduce__(self):
        return os.getpid, ()


def tell_twice(tell):
    tell(Arrival())
    tell("after it")


def test_what_a_job_tells_is_read_by_the_driver_alone(cluster, tmp_path):
    """A process between them would import torch first, while jobs wait for it."""
    heard = []
    with open_executor("ray", storage=tmp_path) as executor:
        executor.run({"one": tell_twice}, lambda name, event: heard.append((name, event)))
    assert heard == [("one", os.getpid()), ("one", "after it")]


def end_worker(tell):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_always_ends_its_worker_is_given_up(cluster, tmp_path):
    failures = {}
    with open_executor("ray", storage=tmp_path) as executor:
        values = executor.run({"bad": end_worker, "good": lambda tell: 7}, print, failures.__setitem__)
        assert values == {"good": 7}
        assert "died 3 times" in str(failures["bad"])
        with (
            pytest.raises(ValueError, match="connected to a cluster already"),
            open_executor(cluster.address, storage=tmp_path),
        ):
            pass


def hold(folder, tell):
    (folder / "begun").write_text(str(os.getpid()))
    tell("begun")
    wait_for(lambda: False)


def test_an_interrupt_ends_the_tasks(cluster, tmp_path):
    def hear(name, event):
        raise KeyboardInterrupt

    with open_executor("ray", storage=tmp_path) as executor:
        with pytest.raises(KeyboardInterrupt) as raised:
            executor.run({"endless": partial(hold, tmp_path)}, hear)
        assert "goes on from there" in raised.value.__notes__[0]
        pid = (tmp_path / "begun").read_text()
        wait_for(lambda: not Path(f"/proc/{pid}").exists())
    assert not list(tmp_path.glob(".seen-*"))


def never(tell):
    raise AssertionError("nothing may be started")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "/proc/self/cwd/here"}, "does not see /proc/self/cwd/here"),  # every process has its own
        ({"gpus": 1}, "no node of the cluster has cpus=1 and gpus=1"),
        ({"cpus": 99}, "no node of the cluster has cpus=99"),
    ],
)
def test_what_a_cluster_cannot_do_is_refused(cluster, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    asked = {"storage": tmp_path / "runs", **options, **arguments()}
    with pytest.raises(ValueError, match=message):
        ge.sweep(make_model, data(), {"seed": [0]}, on="ray", **asked)
    assert not list(tmp_path.iterdir())


if __name__ == "__main__":  # the driver that is killed
    where = Path(sys.argv[2])
    sweep(sys.argv[1], where / "runs", {0: Watch(where / "0", "driver")})
