"""Jobs in processes of this machine: as many at a time as its cores, or its GPUs, allow."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import torch

from greedy_ensembles import machine
from greedy_ensembles.sweeps.executor import Fail, Hear, Job, Outcome, at_once, attempt, portable, settle

_CUDA = "CUDA_VISIBLE_DEVICES"
#: What training imports, the last two when an optimizer takes its first step and where a part of the data is held out.
_PRELOADED = ("greedy_ensembles.training", "torch._dynamo", "sklearn.model_selection")


@dataclass(frozen=True)
class Processes:
    """An `Executor` with a process for each job, which is killed when the work is interrupted."""

    cpus: int = 1  #: threads of a job
    places: tuple[str | None, ...] = ()  #: for each job at a time the GPUs that it sees; None: all. Empty: by cores

    @classmethod
    def needing(cls, cpus: int, gpus: float | None) -> "Processes":
        """Return one for jobs with these needs, or refuse those that this machine cannot meet."""
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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
