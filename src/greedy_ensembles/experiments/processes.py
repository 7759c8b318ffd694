"""Independent runs in processes of their own, with one progress bar each.

Small networks keep one core busy at the most, so a study trains its ensembles side by side. Each run has a run folder:
when the study is interrupted its processes are simply killed, and the next start goes on from their last epochs.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from greedy_ensembles import machine
from greedy_ensembles.training.events import Callback, Epoch
from greedy_ensembles.training.progress import ProgressBars

#: Trains one run to its end, telling the callback about every epoch. It must survive pickling.
Job = Callable[[Callback], object]


def run_all(jobs: Mapping[str, Job], progress: bool = True) -> None:
    """Run all jobs, as many at a time as there are cores, and return when the last one is done."""
    context = multiprocessing.get_context("spawn")  # forking a process that holds threads of torch can hang
    events, waiting = context.Queue(), list(jobs.items())
    running: list[BaseProcess] = []
    try:
        with ProgressBars() as bars:
            while waiting or running or not events.empty():
                while waiting and len(running) < machine.cores():
                    process: BaseProcess = context.Process(
                        target=_work, args=(*waiting.pop(0), events, os.getpid()), daemon=True
                    )
                    with _deaf_to_interrupts():
                        process.start()
                    running.append(process)
                with contextlib.suppress(queue.Empty):
                    name, event = events.get(timeout=0.1)
                    if isinstance(event, BaseException):
                        raise event
                    if progress:
                        bars.show(event, name)
                running = [process for process in running if not _ended(process)]
    except KeyboardInterrupt as interruption:
        interruption.add_note("Interrupted; the same command goes on from the last finished epochs.")
        raise
    finally:
        for process in running:
            process.kill()
            process.join()


def _ended(process: BaseProcess) -> bool:
    """Return whether a process has done its job; raise where it was killed, as a system out of memory does."""
    if process.exitcode is not None and process.exitcode < 0:
        raise ChildProcessError(
            f"a training process was ended by signal {-process.exitcode}, perhaps for want of memory; "
            "the same command goes on from the last finished epochs"
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
    """Do a job in a process of its own, sending home its epochs or the error that ended it."""
    torch.set_num_threads(1)

    def tell(event: Epoch) -> None:
        if os.getppid() != parent:
            os._exit(1)  # the parent was killed; do not keep its run folders locked
        events.put((name, replace(event, model=None)))  # the numbers, not the weights

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
