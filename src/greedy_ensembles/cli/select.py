"""``greedy-ensembles select``: which lambda_M to take, out of runs that differ in it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from greedy_ensembles.cli.app import (
    BatchSize,
    DataFolder,
    Device,
    OwnModel,
    Quiet,
    app,
    check_folder,
    check_there,
    imported,
    in_one_line,
)
from greedy_ensembles.cli.evaluate import progress, wide_console


@app.command("select")
@in_one_line
def select(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs that differ in lambda_M and seed alone.")
    ],
    by: Annotated[str, typer.Option(help="What must not be harmed: accuracy, nll or ace.")] = "accuracy",
    on: Annotated[
        str, typer.Option(help="validation: what each run held out; test: the test set, as the paper did.")
    ] = "validation",
    out: Annotated[Path | None, typer.Option(help="Folder for the curve as CSV and JSON, and as a picture.")] = None,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Choose the largest lambda_M that does no harm within the domain, compared with Deep Ensembles."""
    from greedy_ensembles.benchmark.selection import CRITERIA, choose, try_strengths
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.report import ablation as report

    check_choice("--by", by, CRITERIA)
    check_choice("--on", on, ("validation", "test"))
    check_there(runs)
    check_folder(out)
    make_model = None if model is None else imported(model)
    with progress(not quiet) as predict:
        trials, measured_on, tried = try_strengths(
            runs, predict(batch_size), on=on, make_model=make_model, device=as_device(device), root=root
        )
    selection = choose(trials, by)
    written = [] if out is None else report.write(selection, measured_on, tried, out)
    console = wide_console()
    report.show(selection, measured_on, console)
    if on == "test":
        print(
            "warning: lambda_M was chosen on test images, so figures on them no longer show how the choice does on "
            "new ones; the paper chose so, and --on validation does not",
            file=sys.stderr,
        )
    if written:
        console.print(f"Wrote {', '.join(map(str, written))}", soft_wrap=True, highlight=False, markup=False)
