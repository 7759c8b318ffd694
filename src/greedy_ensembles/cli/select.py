"""``greedy-ensembles select``: which lambda_M to take, out of runs that differ in it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from greedy_ensembles.cli.app import (
    BatchSize,
    CpusPerRun,
    DataFolder,
    Device,
    GpusPerRun,
    On,
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
    split: Annotated[
        str | None,
        typer.Option(help="validation (the default): what each run held out; test: the test set, as the paper did."),
    ] = None,
    on: On = None,
    cpus: CpusPerRun = 1,
    gpus: GpusPerRun = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the curve as CSV and JSON, and as a picture.")] = None,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Choose the largest lambda_M that does no harm within the domain, compared with Deep Ensembles."""
    import cloudpickle

    from greedy_ensembles.benchmark.selection import CRITERIA, SPLITS, choose, try_strengths
    from greedy_ensembles.benchmark.stored_runs import kept_beside_the_run
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.report import ablation as report
    from greedy_ensembles.sweeps.executor import open_executor

    if on in SPLITS and split is None:  # what version 0.1 calls --split
        split, on = on, None
    check_choice("--by", by, CRITERIA)
    check_choice("--split", split or SPLITS[0], SPLITS)
    check_there(runs)
    check_folder(out)
    make_model = None if model is None else imported(model)
    if model is not None and on is not None:
        # Other processes do not look for modules in this folder.
        cloudpickle.register_pickle_by_value(sys.modules[model.partition(":")[0]])
    with (
        progress(not quiet) as watched,
        open_executor(on, storage=runs[0].absolute().parent, cpus=cpus, gpus=gpus, device=device) as executor,
    ):
        trials, measured_on, tried = try_strengths(
            runs,
            watched(batch_size) if on is None else kept_beside_the_run(batch_size),
            split=split or SPLITS[0],
            make_model=make_model,
            device=as_device(device) if on is None else device,
            root=root,
            executor=executor,
            hear=lambda run, _: None if quiet or on is None else print(f"{run}: predicted", file=sys.stderr),
        )
    selection = choose(trials, by)
    written = [] if out is None else report.write(selection, measured_on, tried, out)
    report.show(selection, measured_on, wide_console())
    if split == "test":
        print(
            "warning: lambda_M was chosen on test images, so figures on them no longer show how the choice does on "
            "new ones; the paper chose so, and --split validation does not",
            file=sys.stderr,
        )
    if written:
        print(f"Wrote {', '.join(map(str, written))}")
