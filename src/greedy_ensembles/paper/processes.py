"""Independent parts of a study in processes of their own.

Small networks keep one core busy at the most, so a study does its parts side by side. Each part keeps what it has done
in files that are whole or absent: when the study is interrupted its processes are simply killed, and the next start
goes on from there.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from greedy_ensembles import machine

#: Does one part of a study, calling what it is given with each thing to tell. It must survive pickling, as they must.
Job = Callable[[Callable[[Any], None]], object]


def run_all(jobs: Mapping[str, Job], hear: Callable[[str, Any], None]) -> None:
    """Run all jobs, as many at a time as there are cores; `hear` is called here with a job's name and what it tells."""
    context = multiprocessing.get_context("spawn")  # forking a process that holds threads of torch can hang
    events, waiting = context.Queue(), list(jobs.items())
    running: list[BaseProcess] = []
    try:
        while waiting or running or not events.empty():
            while waiting and len(running) < machine.cores():
                arguments = (*waiting.pop(0), events, os.getpid())
                process: BaseProcess = context.Process(target=_work, args=arguments, daemon=True)
                with _deaf_to_interrupts():
                    process.start()
                running.append(process)
            with contextlib.suppress(queue.Empty):
                name, event = events.get(timeout=0.1)
                if isinstance(event, BaseException):
                    raise event
                hear(name, event)
            running = [process for process in running if not _ended(process)]
    except KeyboardInterrupt as interruption:
        interruption.add_note("Interrupted; the same command goes on from there.")
        raise
    finally:
        for process in running:
            process.kill()
            process.join()


def _ended(process: BaseProcess) -> bool:
    """Return whether a process has done its job; raise where it was killed, as a system out of memory does."""
    if process.exitcode is not None and process.exitcode < 0:
        raise ChildProcessError(
            f"a process of the study was ended by signal {-process.exitcode}, perhaps for want of memory; "
            "the same command goes on from there"
        )
    return process.exitcode is not None


@contextlib.contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside the block, and in processes that are started there: it is the parent's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(name: str, job: Job, events: Any, parent: int) -> None:
    """Do a job in a process of its own, sending home what it tells or the error that ended it."""
    torch.set_num_threads(1)

    def tell(event: Any) -> None:
        if os.getppid() != parent:
            os._exit(1)  # the parent was killed; do not keep its folders locked, or write into another's
        events.put((name, event))

    try:
        job(tell)
    except Exception as error:
        events.put((name, error))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block: for small networks more are slower, on a busy machine much slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
