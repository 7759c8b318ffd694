"""Jobs as tasks of a Ray cluster: one whose worker or node dies is started again elsewhere, and goes on from its files.

Ray is imported here alone, when a cluster is asked for.
"""

import os
import re
import socket
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cloudpickle

from greedy_ensembles.checks import reason
from greedy_ensembles.machine import __version__
from greedy_ensembles.sweeps.executor import ADDRESS, Fail, Hear, Job, Outcome, at_once, attempt, portable, settle

#: How often a job's worker may die before the job has told anything new.
DEATHS = 3
_SECONDS_TO_ANSWER = 5.0
_SECONDS_BETWEEN_LOOKS = 0.2  # at what jobs tell
_SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # the frame of HTTP/2 that both sides send first, without any


class Cluster:
    """An `Executor` on the cluster that this process is connected to; make one with `connected`."""

    def __init__(self, ray: Any, cpus: int, gpus: float, token: Path) -> None:
        self._ray, self._cpus, self._gpus, self._token = ray, cpus, gpus, token

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs, as an `Executor` does; one has failed when its workers died again and again without news."""
        from ray.util.queue import Queue

        ray, values, deaths = self._ray, dict[str, Any](), Counter[str]()
        beside = _at(ray.get_runtime_context().get_node_id())  # without which the work ends anyway
        mailbox = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": beside})
        work, needs = ray.remote(_work), {"num_cpus": self._cpus, "num_gpus": self._gpus}
        content = ray.put(cloudpickle.dumps((dict(jobs), sys.argv)))  # once for all, since jobs may share their data

        def start(name: str) -> Any:
            task = work.options(name=name, max_retries=0, **needs)  # started again below, as long as it gets on
            return task.remote(content, name, mailbox.actor, self._token, self._cpus)

        under_way = {start(name): name for name in jobs}
        try:
            while under_way:
                ended, _ = ray.wait(list(under_way), timeout=_SECONDS_BETWEEN_LOOKS)
                for name, event in mailbox.get_nowait_batch(mailbox.qsize()):
                    del deaths[name]
                    hear(name, cloudpickle.loads(event))
                for task in ended:
                    name = under_way.pop(task)
                    try:
                        outcome: Outcome = cloudpickle.loads(ray.get(task))
                    except ray.exceptions.RayTaskError as error:
                        outcome = Outcome(error=error)
                    except ray.exceptions.RayError as error:
                        deaths[name] += 1
                        if deaths[name] < DEATHS:
                            under_way[start(name)] = name
                            continue
                        outcome = Outcome(error=_death(error))
                    settle(name, outcome, values, fail)
        except KeyboardInterrupt as interruption:
            interruption.add_note("Interrupted; the same command goes on from there.")
            raise
        finally:
            for task in reversed(under_way):  # those that wait first, or they would take the places of the others
                ray.cancel(task, force=True)
            ray.wait(list(under_way), num_returns=len(under_way), timeout=_SECONDS_TO_ANSWER) if under_way else None
            mailbox.shutdown(force=True)
        return values


def _work(content: bytes, name: str, mailbox: Any, token: Path, threads: int) -> bytes:
    """Do a job in a worker, once its node is known to see the storage; return what came of it as bytes."""

    def tell(event: Any) -> None:
        # As bytes, or the mailbox's process would import all that events are made of. And by a future: in `ray.get`,
        # as in `mailbox.put`, a job would give its cores up, and Ray would start another job on them.
        mailbox.put_nowait.remote((name, cloudpickle.dumps(event))).future().result()

    def job(tell: Callable[[Any], None]) -> object:
        if not token.exists():  # a node that came later; training would go on in a folder that nobody else sees
            raise FileNotFoundError(f"{socket.gethostname()} does not see {token.parent}, the folder of all runs")
        jobs, sys.argv = cloudpickle.loads(content)  # a run notes by which command it was made
        if "torch" in sys.modules:  # or it is not needed
            sys.modules["torch"].set_num_threads(threads)
        return jobs[name](tell)

    return portable(attempt(job, tell))


def _death(error: Exception) -> ChildProcessError:
    return ChildProcessError(
        f"its worker died {DEATHS} times before it had anything new to tell, perhaps for want of memory "
        f"({reason(error)}); the same command goes on from there"
    )


@contextmanager
def connected(address: str | None, storage: Path, cpus: int, gpus: float | None) -> Iterator[Cluster]:
    """Connect to a cluster inside the block, after looking whether it answers, suffices, and sees the storage."""
    try:
        import ray
    except ImportError:
        raise ValueError("on='ray' needs ray: install it with pip install 'greedy-ensembles[ray]'") from None
    mine = not ray.is_initialized()
    if not mine and address is not None:
        raise ValueError(f"on={address!r}: this process is connected to a cluster already; on='ray' takes that one")
    if mine:
        _connect(ray, address)
    made = not storage.exists()
    storage.mkdir(parents=True, exist_ok=True)
    token = storage.absolute() / f".seen-{uuid.uuid4().hex}"
    token.touch()
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if gpus is None:
            gpus = float(any(node["Resources"].get("GPU", 0) for node in nodes))
        fit = [n for n in nodes if n["Resources"].get("CPU", 0) >= cpus and n["Resources"].get("GPU", 0) >= gpus]
        if not fit:
            raise ValueError(f"no node of the cluster has cpus={cpus} and gpus={gpus:g}, which a run asks for")
        _check_nodes(ray, [node["NodeID"] for node in fit], token)
        made = False  # it is needed
        yield Cluster(ray, cpus, gpus, token)
    finally:
        token.unlink(missing_ok=True)
        if made:
            with suppress(OSError):  # others may have found a use for it meanwhile
                storage.rmdir()
        if mine:
            ray.shutdown()


def _connect(ray: Any, address: str | None) -> None:
    """Connect, or refuse at once an address where no cluster listens: Ray itself would try for minutes."""
    asked = f"on={address or 'ray'!r}"
    if address is None and re.fullmatch(ADDRESS, found := os.environ.get("RAY_ADDRESS", "")):  # which Ray would take
        address, asked = found, f"RAY_ADDRESS={found}, which on='ray' takes,"
    if address is not None:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        try:
            _greet(host, int(port))
        except (OSError, OverflowError) as error:
            raise ValueError(f"{asked} does not answer ({error}); is the cluster up?") from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError, TimeoutError, ImportError) as error:
        token = "" if os.environ.get("RAY_AUTH_MODE") else "; if the cluster wants a token, set RAY_AUTH_MODE=token"
        raise ValueError(f"{asked} cannot be connected to: {error}{token}") from None


def _greet(host: str, port: int) -> None:
    """Raise OSError unless someone answers in the protocol of Ray's ports, HTTP/2; what TLS hides is not looked at."""
    with socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER) as line:
        if os.environ.get("RAY_USE_TLS", "0") != "0":
            return
        line.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _SETTINGS)
        if line.recv(4, socket.MSG_WAITALL)[3:] != _SETTINGS[3:4]:
            raise ConnectionError("what listens there is no port of Ray")


def _check_nodes(ray: Any, nodes: list[str], token: Path) -> None:
    """Refuse a cluster with a node that does not see the storage, or has another version of this package."""
    look = ray.remote(_look)
    looks = [look.options(num_cpus=0, scheduling_strategy=_at(node)).remote(token) for node in nodes]
    answered = 0
    for answer in looks:
        try:
            host, version, sees = ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            raise ValueError(f"a node of the cluster cannot import greedy_ensembles: {error.cause}") from None
        except ray.exceptions.RayError:  # the node is dead, which Ray takes a while to notice
            continue
        answered += 1
        if version != __version__:
            raise ValueError(f"{host} has greedy-ensembles {version}, and this process {__version__}")
        if not sees:
            raise ValueError(f"{host} does not see {token.parent}: runs must be on storage that all nodes share")
    if not answered:
        raise ValueError("no node of the cluster that has what a run asks for answers; try again when one does")


def _at(node: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _look(token: Path) -> tuple[str, str, bool]:
    return f"{socket.gethostname()} (process {os.getpid()})", __version__, token.exists()
