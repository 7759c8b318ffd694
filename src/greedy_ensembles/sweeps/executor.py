"""What runs independent jobs: this process, processes of this machine, or a cluster (Ray).

A job keeps what it has done in files that are whole or absent. So an executor may kill it at any time, and the same
job started again, here or on another machine, goes on from there.

torch is imported where it is needed: a cluster has processes that do without, and would take seconds to import it.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from greedy_ensembles import machine
from greedy_ensembles.checks import check_choice, check_count, check_number

#: Does one part of the work, calling what it is given with each thing to tell. What it returns and tells is pickled.
Job = Callable[[Callable[[Any], None]], object]
Hear = Callable[[str, Any], None]  #: called with a job's name and what it tells
Fail = Callable[[str, Exception], None]  #: called with a job's name and the error that ended it
_CUDA = "CUDA_VISIBLE_DEVICES"
#: What training imports, the last two when an optimizer takes its first step and where a part of the data is held out.
_PRELOADED = ("greedy_ensembles.training", "torch._dynamo", "sklearn.model_selection")


def at_once(name: str, error: Exception) -> None:
    """End all jobs with the first error."""
    raise error


class Executor(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs and return by name what those returned that did not fail.

        `hear` and `fail` are called here, in the process that asked. What they raise ends all jobs.
        """
        ...


class Here:
    """One job after another, in this process."""

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs, as an `Executor` does."""
        values: dict[str, Any] = {}
        for name, job in jobs.items():
            settle(name, attempt(job, lambda event, name=name: hear(name, event)), values, fail)  # type: ignore[misc]
        return values


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    value: Any = None
    error: Exception | None = None
    warned: tuple[tuple[type[Warning], str], ...] = ()


def attempt(job: Job, tell: Callable[[Any], None]) -> Outcome:
    """Do a job where it runs; its warnings and the error that ended it, if one did, are part of what comes of it."""
    value = error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            value = job(tell)
        except Exception as raised:
            error = raised
    return Outcome(value, error, tuple((found.category, str(found.message)) for found in caught))


def portable(outcome: Outcome) -> bytes:
    """Return an outcome as bytes for another process, where tracebacks do not go: an error's is then its note."""
    if outcome.error is None:
        return cloudpickle.dumps(outcome)  # type: ignore[no-any-return]
    outcome.error.add_note("".join(traceback.format_exception(outcome.error)))
    try:
        sent: bytes = cloudpickle.dumps(outcome)
        cloudpickle.loads(sent)  # not every error survives it
    except Exception:
        told = RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}")
        sent = cloudpickle.dumps(Outcome(None, told, outcome.warned))
    return sent


def settle(name: str, outcome: Outcome, values: dict[str, Any], fail: Fail) -> None:
    """Note what came of a job, in the process that asked for it."""
    for category, text in outcome.warned:
        warnings.warn(f"{name}: {text}", category, stacklevel=3)
    if outcome.error is not None:
        fail(name, outcome.error)
    else:
        values[name] = outcome.value


@dataclass(frozen=True)
class Processes:
    """An `Executor` with a process for each job, which is killed when the work is interrupted."""

    cpus: int = 1  #: threads of a job
    places: tuple[str | None, ...] = ()  #: for each job at a time the GPUs that it sees; None: all. Empty: by cores

    @classmethod
    def needing(cls, cpus: int, gpus: float | None) -> "Processes":
        """Return one for jobs with these needs, or refuse those that this machine cannot meet."""
        import torch

        if cpus > machine.cores():
            raise ValueError(f"cpus must be at most {machine.cores()} on this machine, got {cpus}")
        there = torch.cuda.device_count()
        gpus = min(1, there) if gpus is None else gpus
        if gpus > there:
            raise ValueError(f"gpus must be at most {there} on this machine, got {gpus:g}")
        if not gpus:
            return cls(cpus)
        seen = os.environ.get(_CUDA, "").split(",") if os.environ.get(_CUDA) else [str(k) for k in range(there)]
        if gpus < 1:
            return cls(cpus, tuple(one for _ in range(int(1 / gpus)) for one in seen[:there]))
        each = int(gpus)
        return cls(cpus, tuple(",".join(seen[k : k + each]) for k in range(0, there - each + 1, each)))

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs, as an `Executor` does; one whose process is killed has failed."""
        context = _context()
        free = list(self.places or [None] * max(1, machine.cores() // self.cpus))
        content, waiting, values = cloudpickle.dumps(dict(jobs)), list(jobs), dict[str, Any]()
        running: dict[Connection, tuple[str, BaseProcess, str | None]] = {}
        try:
            while waiting or running:
                while waiting and free:
                    name, place = waiting.pop(0), free.pop(0)
                    ours, theirs = context.Pipe(duplex=False)
                    environment = {**os.environ, **({} if place is None else {_CUDA: place})}
                    arguments = (content, name, theirs, self.cpus, environment)
                    process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
                    running[ours] = name, process, place
                    with _interrupts_put_off():
                        process.start()
                    theirs.close()  # or its end would not be seen
                for ready in wait(list(running)):
                    assert isinstance(ready, Connection)
                    name, process, place = running[ready]
                    try:
                        event = ready.recv()
                    except EOFError:
                        process.join()
                        event = Outcome(error=_death(process))
                    if not isinstance(event, Outcome):
                        hear(name, event)
                        continue
                    process.join()
                    del running[ready]
                    ready.close()
                    free.append(place)
                    settle(name, event, values, fail)
        except KeyboardInterrupt as interruption:
            interruption.add_note("Interrupted; the same command goes on from there.")
            raise
        finally:
            for connection, (_, process, _) in running.items():
                if process.pid is not None:
                    process.kill()
                    process.join()
                connection.close()
        return values


def _context() -> Any:
    """Return how processes are started: forked from one that has imported what they need, and runs no threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, *_PRELOADED])
    return context


def _death(process: BaseProcess) -> ChildProcessError:
    code = process.exitcode or 0
    how = f"ended by signal {-code}, perhaps for want of memory" if code < 0 else f"ended with exit code {code}"
    return ChildProcessError(f"its process was {how}; the same command goes on from there")


@contextlib.contextmanager
def _interrupts_put_off() -> Iterator[None]:
    """Handle Ctrl-C after the block; processes that are started there never get it, since it is the parent's to handle.

    They inherit that the signal is blocked. Here it may come all the same: another thread can take it.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # which a start would do, and which unblocks the signal
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, before)
        if heard:
            signal.raise_signal(signal.SIGINT)


def _work(content: bytes, name: str, home: Connection, threads: int, environment: dict[str, str]) -> None:
    """Do a job in a process of its own, sending home what it tells, and what came of it."""
    import torch

    os.environ.clear()  # it may be that of an earlier call
    os.environ.update(environment)
    torch.set_num_threads(threads)

    def tell(event: Any) -> None:
        try:
            home.send(event)
        except BrokenPipeError:
            os._exit(1)  # the parent was killed; do not keep its folders locked, or write into another's

    outcome = attempt(lambda told: cloudpickle.loads(content)[name](told), tell)
    with contextlib.suppress(BrokenPipeError):
        home.send_bytes(portable(outcome))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block: for small networks more are slower, on a busy machine much slower."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


#: What the address of a cluster looks like.
ADDRESS = r"(ray://)?[^/:\s]+:\d+"


@contextlib.contextmanager
def open_executor(
    on: str | None, *, storage: Path | None = None, cpus: int = 1, gpus: float | None = None, device: object = None
) -> Iterator[Executor]:
    """Give an executor inside the block, after all that can be checked was checked.

    Args:
        on: None (one after another, in this process), "processes" (of this machine), "ray" (the cluster that Ray finds,
            or else one of its own on this machine), or the address of a cluster, "ray://HOST:PORT" or "HOST:PORT".
        storage: the folder that jobs write to, which all machines must see.
        cpus: how many cores a job needs, and threads it has.
        gpus: how many GPUs a job needs, or what share of one; None: one where there are any.
        device: what was asked for; jobs on a CPU need no GPU.
    """
    check_count("cpus", cpus, least=1)
    if gpus is None and str(device) == "cpu":
        gpus = 0
    if gpus is not None:
        check_number("gpus", gpus, least=0)
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"gpus must be a share of one GPU or a whole number of them, got {gpus}")
    if on is None:
        yield Here()
        return
    if not isinstance(on, str):
        raise TypeError(f"on must be text, such as 'processes', 'ray' or 'ray://HOST:PORT'; got {on!r}")
    if on == "processes":
        processes = Processes.needing(cpus, gpus)
        if storage is not None:
            storage.mkdir(parents=True, exist_ok=True)  # or every job would fail there
        yield processes
        return
    address = None if on == "ray" else on
    if address is not None and not re.fullmatch(ADDRESS, address):
        check_choice("on", on, ("processes", "ray", "ray://HOST:PORT", "HOST:PORT"))
    if storage is None:
        raise ValueError(f"on={on!r} needs a folder that all machines see, for runs to survive in")
    from greedy_ensembles.sweeps.cluster import connected

    with connected(address, storage, cpus, gpus) as cluster:
        yield cluster
