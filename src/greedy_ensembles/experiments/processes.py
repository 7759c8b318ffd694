"""Independent runs in processes of their own, with one progress bar each.

Small networks keep one core busy at the most, so a study trains its ensembles side by side. Each run has a run folder:
when the study is interrupted its processes are simply killed, and the next start goes on from their last epochs.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from greedy_ensembles import machine
from greedy_ensembles.training.events import Callback, Epoch
from greedy_ensembles.training.progress import ProgressBars

#: Trains one run to its end, telling the callback about every epoch. It must survive pickling.
Job = Callable[[Callback], object]

_events: Any = None  # a worker's end of the queue of epochs
_parent: int = 0


def run_all(jobs: Mapping[str, Job], progress: bool = True) -> None:
    """Run all jobs, as many at a time as there are cores, and return when the last one is done."""
    context = multiprocessing.get_context("spawn")  # forking a process that holds threads of torch can hang
    events = context.Queue()
    workers = min(len(jobs), machine.cores())
    try:
        with ProgressBars() as bars, context.Pool(workers, _start_worker, (events, os.getpid())) as pool:
            running = [pool.apply_async(_work, (name, job)) for name, job in jobs.items()]
            while running or not events.empty():
                with contextlib.suppress(queue.Empty):
                    name, event = events.get(timeout=0.1)
                    if progress:
                        bars.show(event, name)
                for job in [job for job in running if job.ready()]:
                    job.get()  # raises what the job raised
                    running.remove(job)
    except KeyboardInterrupt as interruption:
        interruption.add_note("Interrupted; the same command goes on from the last finished epochs.")
        raise


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread inside the block: for small networks more are slower, on a busy machine much slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _start_worker(events: Any, parent: int) -> None:
    global _events, _parent
    _events, _parent = events, parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)


def _work(name: str, job: Job) -> None:
    def tell(event: Epoch) -> None:
        if os.getppid() != _parent:
            os._exit(1)  # the parent was killed; do not keep its run folders locked
        _events.put((name, replace(event, model=None)))  # the numbers, not the weights

    job(tell)
