"""``greedy-ensembles report``: one HTML file about runs, to be looked at, kept and sent."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from greedy_ensembles.cli.app import (
    BatchSize,
    DataFolder,
    Device,
    OwnModel,
    Quiet,
    app,
    check_file,
    check_there,
    imported,
    in_one_line,
)
from greedy_ensembles.cli.evaluate import names, progress

if TYPE_CHECKING:
    import torch

    from greedy_ensembles.benchmark.stored_runs import Predict
    from greedy_ensembles.ensemble import ModelFactory
    from greedy_ensembles.report.page import Findings
    from greedy_ensembles.runs import Run


@app.command("report")
@in_one_line
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders or saved ensembles, on one data set or several.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    evaluate: Annotated[bool, typer.Option(help="Evaluate the runs on their test set and on OOD sets.")] = True,
    ood: Annotated[list[str] | None, typer.Option(help="OOD sets, as `evaluate` takes them; default: its own.")] = None,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Write a page about runs: what was trained, curves, tables, pictures. It is one file, and needs no network."""
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.paper.studies.two_moons import known_points
    from greedy_ensembles.report.page import Findings, build_page, dataset_of, write_page
    from greedy_ensembles.runs import load_run

    check_there(runs)
    check_file(out)
    make_model, where = None if model is None else imported(model), as_device(device)
    if len(set(runs)) < len(runs):
        raise ValueError(f"{next(path for path in runs if runs.count(path) > 1)} is named twice")
    loaded = [load_run(path, device=where).completed_by(make_model) for path in runs]
    by_dataset: dict[str, list[Run]] = {}
    for run in loaded:
        by_dataset.setdefault(dataset_of(run), []).append(run)
    findings = {}
    with progress(not quiet) as predict:
        for dataset, same in by_dataset.items():
            findings[dataset] = (
                _evaluate(dataset, same, predict(batch_size), names(ood or []), make_model, where, root)
                if evaluate
                else Findings()
            )
    write_page(build_page(loaded, findings, known_points), out)
    for found in findings.values():
        for note in found.notes:
            print(note, file=sys.stderr)
    size = f"{out.stat().st_size / 1e3:,.0f} kB"
    Console().print(f"Wrote {out} ({size})", soft_wrap=True, highlight=False, markup=False)


def _evaluate(
    dataset: str,
    runs: "list[Run]",
    predict: "Predict",
    ood: list[str],
    make_model: "ModelFactory | None",
    device: "torch.device",
    root: Path | None,
) -> "Findings":
    """Return the evaluation of runs on one data set, or a note that says why there is none."""
    from greedy_ensembles.benchmark import PRESETS, Comparison
    from greedy_ensembles.benchmark.stored_runs import evaluate_run, ood_images, open_runs
    from greedy_ensembles.data import SETS, ImageSet
    from greedy_ensembles.paper import published
    from greedy_ensembles.report.page import Findings
    from greedy_ensembles.saving import HELD_OUT

    finished = [run for run in runs if run.finished]
    notes = [f"{run.folder} is not finished, and was not evaluated." for run in runs if not run.finished]
    if runs[0].information.get("data") is None:
        return Findings(notes=notes)  # arrays have no test set that could be found
    own = dataset not in SETS
    if own and not all((run.folder / HELD_OUT).exists() for run in finished):
        return Findings(notes=[*notes, f"Not evaluated: of {dataset} nothing was held out."])
    if not own and dataset not in PRESETS and not ood:
        notes.append(f"Not evaluated: there is no preset of OOD sets for {dataset}; name some with --ood.")
    if not finished or (not own and dataset not in PRESETS and not ood):
        return Findings(notes=notes)
    try:
        stored = open_runs(
            [run.folder for run in finished], predict, ood=ood, make_model=make_model, device=device, root=root
        )
    except FileNotFoundError as error:
        return Findings(notes=[*notes, f"Not evaluated: {error}."])
    comparison = Comparison.of_runs([(run.facts, evaluate_run(run, "mutual_information")) for run in stored], published)
    images = ood_images(stored)
    for bench in (run.bench for run in stored if run.bench is not None):
        if isinstance(bench.in_domain, ImageSet):
            images[bench.in_domain.name] = bench.in_domain.images
    return Findings(comparison, images, notes)
