"""``greedy-ensembles evaluate``: runs on test inputs of their own domain and on OOD sets, over seeds.

``greedy-ensembles report``: the same in one HTML file, with what was trained, to be looked at, kept and sent.
``greedy-ensembles select``: which lambda_M to take, out of runs that differ in it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from greedy_ensembles.cli.app import (
    BatchSize,
    Cpus,
    DataFolder,
    Device,
    Gpus,
    On,
    OwnModel,
    Quiet,
    check_file,
    check_folder,
    command,
    imported,
    say,
)

if TYPE_CHECKING:
    from greedy_ensembles.benchmark import Predictions
    from greedy_ensembles.benchmark.stored_runs import Predict
    from greedy_ensembles.data import LabelledSet
    from greedy_ensembles.ensemble import Ensemble
    from greedy_ensembles.report.page.build import Findings
    from greedy_ensembles.runs import Run

_PREDICTIONS_STAY = "Interrupted. What was predicted is kept: the same command goes on from there."
Ood = Annotated[
    list[str] | None,
    typer.Option(
        help="OOD sets: names, also with commas, or the path of a folder, archive, .npy or .npz of images, or of a "
        ".csv. Default: the paper's sets for the in-domain set. Beside data of your own there is noise as well."
    ),
]

JudgedOn = Annotated[
    str | None,
    typer.Option(
        help="The path of labelled in-domain data that was not trained on. Default: what the run held out, or the test "
        "split of a published set."
    ),
]


@command("evaluate", interrupted=_PREDICTIONS_STAY)
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Run folders, saved ensembles, or files that --save-predictions wrote."),
    ],
    ood: Ood = None,
    on: JudgedOn = None,
    score: Annotated[
        str,
        typer.Option(
            help="What OOD images are told by: mutual_information, predictive_entropy, expected_entropy, "
            "max_probability, mean_pairwise_kl, energy or energy_of_mean."
        ),
    ] = "mutual_information",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the tables as CSV, JSON and LaTeX, and pictures.")
    ] = None,
    save_predictions: Annotated[
        Path | None, typer.Option(help="An .npz to pack one run's predictions into, for evaluation elsewhere.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Make predictions anew, and replace those kept beside the runs.")
    ] = False,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Evaluate runs in their domain and on OOD sets; runs that differ in their seed alone are averaged."""
    from greedy_ensembles.benchmark import SCORES, Comparison
    from greedy_ensembles.benchmark.stored_runs import evaluate_run, images_of, open_runs, pack_run
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.cli.given import read_on
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.paper import published
    from greedy_ensembles.report.detection import write_pictures
    from greedy_ensembles.report.results import plural, show, write_tables

    if SCORES.get(score) == "features":
        raise ValueError(
            f"--score {score} needs features, which Python alone takes: ge.benchmark.evaluate(features=...)"
        )
    check_choice("--score", score, [name for name, needs in SCORES.items() if needs != "features"])
    check_folder(out)
    check_file(save_predictions, "--save-predictions")
    if save_predictions is not None and len(runs) != 1:
        raise ValueError(f"--save-predictions packs one run at a time, got {len(runs)}")
    judged = None if on is None else read_on(on, next((path for path in runs if path.is_dir()), runs[0]))
    with progress(not quiet, batch_size, fresh) as predict:
        stored = open_runs(
            runs,
            predict,
            ood=names(ood or []),
            on=judged,
            make_model=imported(model),
            device=as_device(device),
            root=root,
        )
        comparison = Comparison.of_runs([(run.facts, evaluate_run(run, score)) for run in stored], published)
        packed = [] if save_predictions is None else pack_run(stored[0], save_predictions)
    written = [f"Wrote {', '.join(map(str, packed))}"] if packed else []
    if out is not None:
        tables = ", ".join(path.name for path in write_tables(comparison, out))
        pictures = plural(len(write_pictures(comparison, out, images_of(stored))), "picture")
        written.append(f"Wrote {tables} and {pictures} into {out}")
    show(comparison, wide_console())  # after all is written, which a reader who closes the pipe early must not prevent
    for line in written:
        print(line)


@command("report", interrupted=_PREDICTIONS_STAY)
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders or saved ensembles, on one data set or several.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    evaluate: Annotated[bool, typer.Option(help="Evaluate the runs on their test set and on OOD sets.")] = True,
    ood: Ood = None,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Write a page about runs: what was trained, curves, tables, pictures. It is one file, and needs no network."""
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.paper.two_moons import known_points
    from greedy_ensembles.report.page import write_page
    from greedy_ensembles.report.page.build import Findings, build_page, dataset_of
    from greedy_ensembles.runs import load_run

    check_file(out)
    if ood and not evaluate:
        raise ValueError("--ood names sets to evaluate on; leave it or --no-evaluate out")
    how: dict[str, Any] = {"make_model": imported(model), "device": as_device(device)}
    if len(set(runs)) < len(runs):
        raise ValueError(f"{next(path for path in runs if runs.count(path) > 1)} is named twice")
    loaded = [load_run(path, device=how["device"]).completed_by(how["make_model"]) for path in runs]
    by_dataset: dict[str, list[Run]] = {}
    for run in loaded:
        by_dataset.setdefault(dataset_of(run), []).append(run)
    how |= {"ood": names(ood or []), "root": root}
    findings = {dataset: Findings() for dataset in by_dataset}
    with progress(not quiet, batch_size) as predict:
        for dataset, same in by_dataset.items() if evaluate else ():
            findings[dataset] = _findings(dataset, same, predict, how)
    write_page(build_page(loaded, findings, known_points), out)
    for found in findings.values():
        for note in found.notes:
            say(note)
    size = f"{out.stat().st_size / 1e3:,.0f} kB"
    print(f"Wrote {out} ({size})")


def _findings(dataset: str, runs: "list[Run]", predict: "Predict", how: dict[str, Any]) -> "Findings":
    """Return the evaluation of runs on one data set, or a note that says why there is none."""
    from greedy_ensembles.benchmark import PRESETS, Comparison
    from greedy_ensembles.benchmark.stored_runs import evaluate_run, images_of, open_runs
    from greedy_ensembles.data import SETS
    from greedy_ensembles.paper import published
    from greedy_ensembles.report.page.build import Findings
    from greedy_ensembles.saving import HELD_OUT

    finished = [run.folder for run in runs if run.finished]
    notes = [f"{run.folder} is not finished, and was not evaluated." for run in runs if not run.finished]
    if runs[0].information.get("data") is None or not finished:
        return Findings(notes=notes)  # arrays have no test set that could be found
    if dataset not in SETS and not all((folder / HELD_OUT).exists() for folder in finished):
        return Findings(notes=[*notes, f"Not evaluated: of {dataset} nothing was held out."])
    if dataset in SETS and dataset not in PRESETS and not how["ood"]:
        why = f"there is no preset of OOD sets for {dataset}; name some with --ood."
        return Findings(notes=[*notes, f"Not evaluated: {why}"])
    try:
        stored = open_runs(finished, predict, **how)
    except FileNotFoundError as error:
        return Findings(notes=[*notes, f"Not evaluated: {error}."])
    comparison = Comparison.of_runs([(run.facts, evaluate_run(run, "mutual_information")) for run in stored], published)
    return Findings(comparison, images_of(stored), notes)


@command("select", interrupted=_PREDICTIONS_STAY)
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
    cpus: Cpus = 1,
    gpus: Gpus = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the curve as CSV and JSON, and as a picture.")] = None,
    model: OwnModel = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
    quiet: Quiet = False,
) -> None:
    """Choose the largest lambda_M that does no harm within the domain, compared with Deep Ensembles."""
    import cloudpickle

    from greedy_ensembles.benchmark.selection import CRITERIA, choose
    from greedy_ensembles.benchmark.stored_runs import SPLITS, kept_beside_the_run, try_strengths
    from greedy_ensembles.checks import check_choice
    from greedy_ensembles.report import ablation as report
    from greedy_ensembles.sweeps.executor import open_executor

    if on in SPLITS and split is None:  # what version 0.1 calls --split
        split, on = on, None
    check_choice("--by", by, CRITERIA)
    check_folder(out)
    make_model = imported(model)
    if model is not None and on is not None:  # other processes do not look for modules in this folder
        cloudpickle.register_pickle_by_value(sys.modules[model.partition(":")[0]])
    with (
        progress(not quiet, batch_size) as watched,
        open_executor(on, storage=runs[0].absolute().parent, cpus=cpus, gpus=gpus, device=device) as executor,
    ):
        trials, measured_on, tried = try_strengths(
            runs,
            watched if on is None else kept_beside_the_run(batch_size),
            split=split or SPLITS[0],
            make_model=make_model,
            device=device,
            root=root,
            executor=executor,
            hear=lambda run, _: None if quiet or on is None else say(f"{run}: predicted"),
        )
    selection = choose(trials, by)
    written = [] if out is None else report.write(selection, measured_on, tried, out)
    report.show(selection, measured_on, wide_console())
    if split == "test":
        say(
            "warning: lambda_M was chosen on test examples, so figures on them no longer show how the choice does on "
            "new ones; the paper chose so, and --split validation does not"
        )
    if written:
        print(f"Wrote {', '.join(map(str, written))}")


def wide_console() -> Console:
    """Return a console on which tables of figures fit where no window limits them, as in a file or a pipe."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=120)


def names(texts: list[str]) -> list[str]:
    """Return the sets that --ood names, one or several of them in each text; a path may have commas in it."""
    parts = [part for text in texts for part in ([text] if Path(text).exists() else text.split(","))]
    found = [part.strip() for part in parts if part.strip()]
    if texts and not found:
        raise ValueError("--ood names no set; leave it out for the paper's sets")
    return found


@contextmanager
def progress(shown: bool, batch_size: int | None, fresh: bool = False) -> Iterator["Predict"]:
    """Show, while the block runs, which run is predicting which set; say in the end which were not predicted anew."""
    from greedy_ensembles.benchmark.stored_runs import kept_beside_the_run

    predict = kept_beside_the_run(batch_size, fresh)
    used: dict[Path, None] = {}  # folders in which predictions were found, in order

    console = Console(stderr=True, quiet=not shown)
    with console.status("reading") as status:

        def watched(ensemble: "Ensemble", images: "LabelledSet", folder: Path) -> "Predictions":
            state = f"{folder}: {len(ensemble)} members on {len(images):,} {images.unit} of {images.name}"
            status.update(Text(state))
            if shown and not console.is_terminal:  # as in a file
                say(state)
            predictions = predict(ensemble, images, folder)
            if predictions.kept and not fresh:
                used[folder / "predictions"] = None
            return predictions

        yield watched
    if used:
        places = ", ".join(map(str, used))
        say(f"used predictions kept in {places}; evaluate --fresh makes them anew")
