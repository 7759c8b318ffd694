"""What studies there are, and what one consists of: runs, data, and time on the device found."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from greedy_ensembles.benchmark import PRESETS
from greedy_ensembles.benchmark.presets import is_there
from greedy_ensembles.data import data_root
from greedy_ensembles.paper import cost
from greedy_ensembles.paper.images import missing, needs
from greedy_ensembles.paper.records import Shelf, is_complete
from greedy_ensembles.paper.study import Job, Protocol, Study, jobs


def show_studies(
    studies: Sequence[Study], protocol: Protocol, device: cost.Device, root: Path | None, console: Console | None = None
) -> None:
    """Print a table of studies: what each reproduces, the data it needs and lacks, and an estimate of its time."""
    table = Table("study", "reproduces", "runs", "needs", "not there", "estimate", box=box.SIMPLE_HEAD)
    for study in studies:
        if study.special is not None:
            table.add_row(study.name, study.paper, "", "no data set", "", "a minute on a CPU")
            continue
        wanted = jobs(study, protocol)
        required = dict.fromkeys(name for case in study.cases for name, _ in needs(case, study))
        absent = dict.fromkeys(name for case in study.cases for name in missing(case, study, root))
        sets = dict.fromkeys(name for dataset in study.datasets for name in PRESETS[dataset] if study.evaluated)
        holes = [name for name in sets if name not in absent and not is_there(name, root)]
        without = ", ".join([*absent, *(f"{name} (OOD)" for name in holes)])
        seconds = cost.total({job: cost.price(job, device) for job in wanted})
        table.add_row(study.name, study.paper, str(len(wanted)), ", ".join(required), without, cost.spelled(seconds))
    console = console or _console()
    console.print(table)
    words = f"Estimates are for {protocol.description}, {device.basis}. Data folder: {data_root(root)}."
    console.print(words, highlight=False, markup=False)


def show_jobs(
    study: Study,
    wanted: Sequence[Job],
    shelf: Shelf,
    device: cost.Device,
    root: Path | None,
    console: Console | None = None,
) -> None:
    """Print the runs of a study: what is done, and what the others would take."""
    table = Table("run", "state", "time", box=box.SIMPLE_HEAD)
    records = {job: record for job in wanted if (record := shelf.read(job)) is not None}
    left: dict[Job, cost.Price] = {}
    for job in wanted:
        record, absent = records.get(job), missing(job.case, study, root)
        if record is not None and is_complete(record, study):
            table.add_row(job.name, record.status, cost.spelled(record.seconds))
            continue
        left[job] = cost.price(job, device, records.items())
        state = "to do" if not absent or job.protocol.quick else f"needs {', '.join(absent)}"
        table.add_row(job.name, state, f"about {cost.spelled(left[job].seconds)}")
    console = console or _console()
    console.print(table)
    console.print(f"To do: about {cost.spelled(cost.total(left))} {device.basis}.", highlight=False, markup=False)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=160)
