"""The choice of lambda_M as it is shown: the whole curve on the terminal, as CSV and JSON, and in a picture."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from greedy_ensembles.benchmark.evaluation import InDomain
from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.benchmark.selection import CRITERIA, Selection, Trial
from greedy_ensembles.report.ablation import draw_ablation
from greedy_ensembles.report.evaluation.lines import IN_DOMAIN, spelled
from greedy_ensembles.report.figure import write_figure
from greedy_ensembles.report.json_text import to_json_text
from greedy_ensembles.storage import write_bytes

_COLUMNS = [column for column in IN_DOMAIN if column.metric in CRITERIA]


def show(selection: Selection, measured_on: InDomain, console: Console) -> None:
    """Print the figures of every strength, and what follows from them."""
    title = f"{measured_on.name}, {measured_on.images:,} images for each seed"
    console.print(title, style="italic", markup=False, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("lambda_M")
    table.add_column("seeds", justify="right")
    for column in _COLUMNS:
        table.add_column(column.heading, justify="right", no_wrap=True)
    table.add_column(f"harms {selection.by}")
    for trial in (selection.deep, *selection.trials):
        chosen = trial.strength is not None and trial.strength == selection.chosen
        table.add_row(*_cells(trial, selection), style="bold" if chosen else "")
    console.print(table, "")
    if measured_on.note:
        console.print(f"{measured_on.name}: {measured_on.note}", markup=False, highlight=False)
    console.print(verdict(selection), markup=False, highlight=False)


def _cells(trial: Trial, selection: Selection) -> list[str]:
    figures = [
        spelled(getattr(trial, column.metric).mean, getattr(trial, column.metric).standard_error, column)
        for column in _COLUMNS
    ]
    seeds = f"{trial.accuracy.seeds}"
    if trial.strength is None:
        return ["Deep Ensembles", seeds, *figures, ""]
    return [f"{trial.strength:g}", seeds, *figures, "no" if trial.strength in selection.harmless else "yes"]


def verdict(selection: Selection) -> str:
    """Return what was chosen, and why, in a sentence."""
    name = {"accuracy": "accuracy", "nll": "NLL", "ace": "ACE"}[selection.by]
    rule = f"its {name} is as good as that of Deep Ensembles, each given one standard error"
    if selection.chosen is None:
        return f"No lambda_M that was tried does no harm (that is: {rule}). Take Deep Ensembles, or try smaller ones."
    text = f"Chosen: lambda_M = {selection.chosen:g}, the largest that does no harm ({rule})."
    if selection.chosen == selection.trials[-1].strength:
        text += " It is the largest that was tried; a larger one may do as well."
    return text


def write(selection: Selection, measured_on: InDomain, runs: Sequence[RunFacts], folder: Path) -> list[Path]:
    """Write selection.csv, selection.json and ablation.png into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in ("selection.csv", "selection.json", "ablation.png")]
    write_bytes(paths[0], [_to_csv(selection, measured_on).encode()])
    content = {
        **dataclasses.asdict(selection),
        "measured_on": {"name": measured_on.name, "images": measured_on.images, "note": measured_on.note},
        "runs": [{"source": run.source, "strength": run.strength, "seed": run.seed, "size": run.size} for run in runs],
    }
    write_bytes(paths[1], [to_json_text(content).encode()])
    name = f"{measured_on.name} [{measured_on.note}]" if measured_on.note else measured_on.name
    trials = [selection.deep, *selection.trials]
    write_figure(draw_ablation(trials, name, measured_on.images, selection.chosen), paths[2])
    return paths


def _to_csv(selection: Selection, measured_on: InDomain) -> str:
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    writer.writerow(["set", "images", "lambda_M", "metric", "seeds", "mean", "standard_error", "harmless", "note"])
    for trial in (selection.deep, *selection.trials):
        strength = "" if trial.strength is None else trial.strength
        for metric in CRITERIA:
            figure = getattr(trial, metric)
            # Of the other criteria nothing was asked.
            judged = metric == selection.by and trial.strength is not None
            harmless = trial.strength in selection.harmless if judged else ""
            about = [measured_on.name, measured_on.images, strength, metric, figure.seeds]
            writer.writerow([*about, figure.mean, figure.standard_error, harmless, measured_on.note])
    return output.getvalue()
