"""What studies there are, what they consist of, and how long their runs would take.

Seconds, to plan by, come from records of the same network, method and protocol on the same kind of device, or else from
a table of milliseconds of a member's step on 128 examples (a p* pass on as many samples costs the same again).
"""

import heapq
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from greedy_ensembles import machine
from greedy_ensembles.benchmark import PRESETS
from greedy_ensembles.benchmark.presets import is_there
from greedy_ensembles.data import SETS, data_root
from greedy_ensembles.paper.images import TRAIN, missing, needs
from greedy_ensembles.paper.records import Record, Records, is_complete
from greedy_ensembles.paper.study import VALIDATION, Job, Protocol, Study, filter_study, jobs
from greedy_ensembles.report.results import spelled

#: By kind of device and network: a step in single precision, in half precision, and in half precision in the
#: concurrent schedule. The GPU is an H200, the processor one core; PreResNet164 has 27 blocks a stage.
MILLISECONDS: dict[str, dict[str, tuple[float, float, float]]] = {
    "cuda": {
        "PreResNet8": (0.6, 0.4, 0.2),
        "PreResNet20": (1.5, 1.1, 0.66),
        "VGG16BN": (3.0, 1.5, 0.95),
        "PreResNet164": (20.0, 13.3, 8.5),
        "WideResNet28x10": (32.0, 11.1, 10.3),
    },
    "cpu": {
        "PreResNet8": (300.0,) * 3,
        "PreResNet20": (1_000.0,) * 3,
        "VGG16BN": (5_000.0,) * 3,
        "PreResNet164": (20_000.0,) * 3,
        "WideResNet28x10": (80_000.0,) * 3,
    },
}
_STEP = 128


@dataclass(frozen=True)
class Device:
    """A kind of device, cuda or cpu, and its name."""

    kind: str
    name: str

    def basis(self, count: int = 1) -> str:
        """What an estimate by the table is worth for so many of the device, in words."""
        if count > 1:
            return f"on {count} of {self.name}, each run on one of them, roughly"
        if self.kind == "cpu":
            return f"on one core of {self.name}, roughly"
        return f"on {self.name}, roughly" if "H200" in self.name else f"on {self.name}, as if it were an H200"


H200 = Device("cuda", "NVIDIA H200")


def device_found(device: torch.device) -> Device:
    """Return what a device of this machine is."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else machine.processor()
    return Device(device.type, name)


def device_of(record: Record) -> Device:
    """Return what a run was trained on, out of a text such as "cuda:0 (NVIDIA H200), 16 threads".

    >>> device_of(Record("run", "done", machine={"device": "cpu (Some(R) processor, 2 cores), 1 threads"}))
    Device(kind='cpu', name='Some(R) processor, 2 cores')
    """
    kind, _, rest = str(record.machine.get("device") or "").partition(" (")
    return Device(kind.partition(":")[0], rest.rpartition(")")[0])


def price(job: Job, device: Device, records: Mapping[Job, Record] | None = None) -> float:
    """Return the seconds of a run on a device; records say how long others took, and on how many images."""
    case, images, timed = job.case, job.case.images or SETS[job.case.dataset].counts["train"], []
    for other, record in (records or {}).items():
        if (other.case.dataset, other.case.images) != (case.dataset, case.images):
            continue
        if record.information:
            images = record.information["data"]["images"]
        alike = (other.case.model, other.case.method, other.protocol) == (case.model, case.method, job.protocol)
        if alike and device_of(record) == device:
            timed.append(record.epoch_seconds)
    return case.size * job.recipe.epochs * (statistics.fmean(timed) if timed else _epoch(job, device, images))


def makespan(prices: Mapping[Job, float], gpus: int = 1) -> float:
    """Return the seconds of all jobs on so many GPUs: the longest run that is left goes to the first that is free.

    Jobs that share a run, of which one is the largest, are paid for once. A run is on one GPU.
    """
    runs: dict[str, float] = {}
    for job, seconds in prices.items():
        runs[job.run] = max(runs.get(job.run, 0.0), seconds)
    busy = [0.0] * gpus
    for seconds in sorted(runs.values(), reverse=True):
        heapq.heapreplace(busy, busy[0] + seconds)
    return max(busy)


def _epoch(job: Job, device: Device, images: int) -> float:
    """Return the seconds of a member's epoch by the table, of so many images a part is held out of."""
    recipe, protocol = job.recipe, job.protocol
    steps = math.ceil((TRAIN if protocol.quick else (1 - VALIDATION) * images) / recipe.batch_size)
    way = 0 if protocol.precision != "bf16" else 2 if protocol.schedule == "concurrent" else 1
    rows = float(recipe.batch_size)
    if job.case.strength is not None:  # the first member has no diversity term
        rows += (1 - 1 / job.case.size) * (recipe.weighting_batch_size or recipe.batch_size)
    return steps * MILLISECONDS[device.kind][job.case.model][way] / 1000 * rows / _STEP


def show_studies(
    studies: Sequence[Study], protocol: Protocol, device: Device, root: Path | None, gpus: int = 1
) -> None:
    """Print a table of studies: what each reproduces, the data it needs and lacks, and an estimate of its time."""
    rows, every = [], dict[Job, float]()
    for study in studies:
        if study.special is not None:
            rows.append([study.name, study.paper, "", study.takes[0], "", study.takes[1]])
            continue
        wanted = jobs(study, protocol)
        required = dict.fromkeys(name for case in study.cases for name, _ in needs(case, study))
        absent = dict.fromkeys(name for case in study.cases for name in missing(case, study, root))
        sets = dict.fromkeys(name for dataset in study.datasets for name in PRESETS[dataset] if study.evaluated)
        holes = [name for name in sets if name not in absent and not is_there(name, root)]
        without = ", ".join([*absent, *(f"{name} (OOD)" for name in holes)])
        prices = {job: price(job, device) for job in wanted}
        every |= prices
        if study.grid:
            every |= {job: price(job, device) for job in jobs(filter_study(study, strengths=study.grid), protocol)}
        seconds = spelled(makespan(prices, gpus))
        rows.append([study.name, study.paper, str(len(wanted)), ", ".join(required), without, seconds])
    words = [f"Estimates are for {protocol.description}, {device.basis(gpus)}. Data folder: {data_root(root)}."]
    if every:
        runs = len({job.run for job in every})
        whole = f"{runs} runs with all lambda_M that the paper tried: {spelled(makespan(every))} of one device"
        whole += "" if gpus == 1 else f", {spelled(makespan(every, gpus))} on {gpus}"
        words.append(f"All of these together, {whole}.")
    _print(("study", "reproduces", "runs", "needs", "not there", "estimate"), rows, words)


def show_jobs(
    study: Study, wanted: Sequence[Job], records: Records, device: Device, root: Path | None, gpus: int = 1
) -> None:
    """Print the runs of a study: what is done, and what the others would take, on so many of the device."""
    known = {job: record for job in wanted if (record := records.read(job)) is not None}
    rows, left = [], dict[Job, float]()
    for job in wanted:
        record, absent = known.get(job), missing(job.case, study, root)
        if record is not None and is_complete(record, study):
            rows.append([job.name, record.status, spelled(record.seconds)])
            continue
        left[job] = price(job, device, known)
        state = "to do" if not absent or job.protocol.quick else f"needs {', '.join(absent)}"
        rows.append([job.name, state, f"about {spelled(left[job])}"])
    words = f"To do: about {spelled(makespan(left, gpus))} {device.basis(gpus)}."
    _print(("run", "state", "time"), rows, [words])


def _print(headings: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str]) -> None:
    console = Console()
    console = console if console.is_terminal or "COLUMNS" in os.environ else Console(width=160)
    table = Table(*headings, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # no end is missing on a narrow screen
    table.columns[0].no_wrap = all(len(row[0]) <= console.width // 3 for row in rows)  # names are to be copied
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for line in words:
        console.print(line, highlight=False, markup=False)
