"""All jobs of a study, shared between processes through one folder: nothing is done twice, and nothing waits in vain.

A process claims a job with a lock that dies with it. A job that another has claimed is passed over and come back to,
until every job has its record.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from greedy_ensembles.paper.records import DIVERGED, Record, is_complete
from greedy_ensembles.paper.runner import Workshop, do
from greedy_ensembles.paper.study import Job, Study

#: Seconds between two looks at jobs that are all in other hands.
PATIENCE = 5.0


def work(study: Study, jobs: Sequence[Job], workshop: Workshop, tell: Callable[[str], None]) -> None:
    """Do all jobs that have no record yet, and wait for those that another process is doing."""
    waiting = [job for job in jobs if not is_complete(workshop.shelf.read(job), study)]
    total, begun, told = len(waiting), 0, False
    while waiting:
        busy = []
        for job in waiting:
            with claimed(workshop.out, job) as mine:
                if not mine:
                    busy.append(job)
                elif not is_complete(workshop.shelf.read(job), study):  # another may have done it meanwhile
                    begun += 1
                    tell(f"{job.name} ({begun} of {total})")
                    start = time.perf_counter()
                    record = do(job, study, workshop)
                    tell(f"{_outcome(record)} ({time.perf_counter() - start:,.0f} s in all)")
        if len(busy) == len(waiting):
            if not told:
                whose = "1 run is" if len(busy) == 1 else f"{len(busy)} runs are"
                tell(f"{whose} in the hands of other processes; waiting")
                told = True
            time.sleep(PATIENCE)
        waiting = [job for job in busy if not is_complete(workshop.shelf.read(job), study)]


@contextmanager
def claimed(out: Path, job: Job) -> Iterator[bool]:
    """Hold the run of a job for this process inside the block; False where another process holds it."""
    claims = out / "claims"
    claims.mkdir(parents=True, exist_ok=True)
    lock = FileLock(claims / f"{job.run}.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _outcome(record: Record) -> str:
    if record.status == DIVERGED:
        return f"  diverged: {record.message}"
    if record.evaluation is None:
        return f"  {record.seconds:,.0f} s of training, {record.epoch_seconds:.2f} s a member and epoch"
    accuracy = record.evaluation["in_domain"]["accuracy"]
    areas = ", ".join(f"{result['name']} {result['auc']:.3f}" for result in record.evaluation["ood"])
    return f"  {record.seconds:,.0f} s of training, accuracy {accuracy:.2%}; AUC: {areas}"
