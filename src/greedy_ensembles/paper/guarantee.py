"""How good is greedy? The study that the paper's fourth limitation leaves to later work.

For every generator, ground sets of 8 to 16 and M from 2 to 5, on random instances small enough to try every set: what
share of the optimum do the algorithms reach, how far is the bound from what they find, and does the expectation that
Proposition 1 maximises rank candidates as the exact gain does? `guarantee_cell` says what an instance is.

Each cell is a file of its own, written when it is whole: after a kill the same command computes only what is missing.
"""

import platform
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from greedy_ensembles import machine, theory
from greedy_ensembles.checks import check_count
from greedy_ensembles.paper.guarantee_cell import DRAWS, Cell, measure_cell
from greedy_ensembles.paper.guarantee_report import CellResult, Provenance, write_report
from greedy_ensembles.paper.processes import run_all
from greedy_ensembles.storage import FolderError, read_json, write_json
from greedy_ensembles.theory.arrays import set_threads
from greedy_ensembles.version import __version__

GENERATORS = (*theory.GENERATORS, "alpha(-0.5)", "alpha(1.5)")
CANDIDATES = (8, 12, 16)
SIZES = (2, 3, 4, 5)


def all_cells() -> list[Cell]:
    """Return the cells of the study, the most expensive ones first, so that no core idles at the end."""
    cells = [Cell(f, candidates, size) for f in GENERATORS for candidates in CANDIDATES for size in SIZES]
    return sorted(cells, key=lambda cell: -cell.candidates * cell.size)


def run(
    out: Path, instances: int = 200, seed: int = 0, progress: bool = True, cells: list[Cell] | None = None
) -> list[CellResult]:
    """Compute the cells that ``out/cells`` does not hold yet, then write the figure, the tables and the page."""
    check_count("instances", instances, 1)
    check_count("seed", seed, 0)
    cells = all_cells() if cells is None else cells
    folder = out / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder / "study.json", {"instances": instances, "seed": seed, "draws": DRAWS})
    missing = [cell for cell in cells if not _path(folder, cell).exists()]
    shares = [missing[core :: machine.cores()] for core in range(machine.cores())]  # dear and cheap ones alike
    jobs = {f"core {core}": _Cells(share, folder, instances, seed) for core, share in enumerate(shares) if share}
    with _progress(progress) as bar:
        task = bar.add_task("cells", total=len(cells), completed=len(cells) - len(missing))
        run_all(jobs, lambda core, cell: bar.advance(task))
    contents = [read_json(_path(folder, cell)) for cell in cells]
    results = [CellResult(**content["cell"], measurements=content["measurements"]) for content in contents]
    write_report(results, _provenance(contents, out, instances, seed), out)
    return results


def _path(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.name}.json"


def _claim(path: Path, configuration: dict[str, Any]) -> None:
    """Write down what the folder's cells are computed with, or refuse a folder computed with something else."""
    if not path.exists():
        write_json(path, configuration)
    elif (found := read_json(path)) != configuration:
        raise FolderError(f"{path.parent} holds a study with {found}, not {configuration}; choose another --out")


@dataclass(frozen=True)
class _Cells:
    """Some cells, to be computed in a process of its own, each written when it is whole."""

    cells: list[Cell]
    folder: Path
    instances: int
    seed: int

    def __call__(self, tell: Callable[[str], None]) -> None:
        set_threads(1)  # the processes keep the cores busy
        for cell in self.cells:
            start = time.process_time()
            measurements = measure_cell(cell, self.instances, self.seed)
            content = {
                "cell": asdict(cell),
                "seconds": time.process_time() - start,
                "date": datetime.now(UTC).date().isoformat(),
                "measurements": measurements,
            }
            tell(cell.name)
            write_json(_path(self.folder, cell), content)


def _progress(shown: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not shown)


def _provenance(contents: list[dict[str, Any]], out: Path, instances: int, seed: int) -> Provenance:
    command = ["greedy-ensembles", "guarantee-study", "--out", str(out)]
    if (instances, seed) != (200, 0):
        command += ["--instances", str(instances), "--seed", str(seed)]
    dates = sorted({content["date"] for content in contents})
    return Provenance(
        command=shlex.join(command),
        machine=f"{machine.processor()}, {platform.system()}, Python {platform.python_version()}",
        date=dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
        version=__version__,
        seed=seed,
        instances=instances,
        draws=DRAWS,
        core_minutes=sum(content["seconds"] for content in contents) / 60,
    )
