"""``greedy-ensembles predict``: classes and uncertainties of images; ``calibrate``: from when on to distrust them.

The ensemble lies in a run folder, or in one that `Ensemble.save` wrote. A run on data of one's own is calibrated on
the part that had no say in its training. One on a published set held out validation images alone: each member's best
epoch was chosen on them, so on new images the rate of false alarms may be a little above what was asked for.
"""

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greedy_ensembles.cli.app import BatchSize, DataFolder, Device, OwnModel, check_file, command, imported, say

if TYPE_CHECKING:
    from greedy_ensembles.cli.given import Inputs, SavedEnsemble, Verdicts
    from greedy_ensembles.data import LabelledSet
    from greedy_ensembles.flags import Calibration, ImageForm

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or one that Ensemble.save wrote.")]
InputShape = Annotated[
    str | None,
    typer.Option("--shape", help="What images to make of pictures, as in 3x32x32; default: as it was trained on."),
]


@command("predict")
def predict(
    run: RunFolder,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT", help="Pictures; folders or archives of them; .npy, .npz or .csv.")
    ],
    out: Annotated[Path | None, typer.Option(help="A CSV file; default: the terminal.")] = None,
    model: OwnModel = None,
    shape: InputShape = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
) -> None:
    """Predict images or rows: class, probability, uncertainties, and a flag on those outside of what the run knows.

    The flag needs a threshold, which `greedy-ensembles calibrate RUN` finds. Pictures are cropped and resized to what
    the run was trained on. Those that cannot be read are named and left out, and the command ends with status 1.
    """
    from greedy_ensembles.benchmark.predictions import fitting_batch_size
    from greedy_ensembles.cli.given import judge_inputs
    from greedy_ensembles.storage import write_bytes

    check_file(out)
    saved = _open(run, model, device)
    form = _asked_form(saved, shape, root)
    given = _read(inputs, form, saved)
    at_once = fitting_batch_size(saved.ensemble) if batch_size is None else batch_size
    verdicts = judge_inputs(saved.ensemble, given.values, at_once)
    table = to_csv(given.names, verdicts, form.classes)
    if verdicts.flagged is None:
        say(f"no flags: {_why_none(saved)}; `greedy-ensembles calibrate {run}` finds a threshold for them")
    if out is None:
        print(table, end="")
    else:
        write_bytes(out, [table.encode()])
        flagged = "" if verdicts.flagged is None else f", {int(verdicts.flagged.sum()):,} of them flagged"
        print(f"Wrote {len(given.names):,} predictions to {out}{flagged}")
    if given.unreadable:
        raise ValueError(f"{len(given.unreadable):,} of {len(given.names) + len(given.unreadable):,} could not be read")


@command("calibrate")
def calibrate(
    run: RunFolder,
    fpr: Annotated[float, typer.Option(help="The share of in-domain images that may be flagged.")] = 0.05,
    on: Annotated[
        list[Path] | None,
        typer.Option(help="In-domain images that it was not trained on; default: those that the run held out."),
    ] = None,
    model: OwnModel = None,
    shape: InputShape = None,
    device: Device = None,
    root: DataFolder = None,
) -> None:
    """Find from which mutual information on `predict` flags an image, and keep it in RUN/calibration.json.

    Where the images have labels, as those that a run held out do, probabilities are calibrated by a temperature too.
    """
    saved = _open(run, model, device)
    saved.ensemble.calibration = None  # an earlier one does not count
    given = _read(on, _asked_form(saved, shape, root), saved) if on else None
    if given is not None and given.unreadable:
        raise ValueError(f"{len(given.unreadable):,} of the images of --on could not be read; leave them out")
    found = calibrate_folder(saved, fpr, given, root)
    print(
        f"Inputs are flagged from a mutual information of {found.threshold:.4g} nats on: at most {100 * found.fpr:g} % "
        f"of new in-domain inputs, as found from {found.inputs:,} ({found.source})"
    )


def calibrate_folder(
    saved: "SavedEnsemble", fpr: float = 0.05, inputs: "Inputs | None" = None, root: Path | None = None
) -> "Calibration":
    """Find the threshold of an ensemble, and write it beside the weights.

    Args:
        saved: the ensemble.
        fpr: the share of in-domain inputs that may be flagged.
        inputs: in-domain inputs; None: the images that a run held out.
        root: the data folder, where these are found.
    """
    from dataclasses import replace

    import numpy as np

    from greedy_ensembles.benchmark.predictions import fitting_batch_size
    from greedy_ensembles.cli.given import form_of
    from greedy_ensembles.flags import ImageForm

    if inputs is None:
        judged = _held_out(saved, root)
        values, labels, source, classes = judged.inputs, judged.labels, judged.name, judged.classes
    else:
        values, labels, source, classes = inputs.values, None, "in-domain inputs of your own", None
    form = form_of(saved, root)
    if values.dtype == np.uint8 and values.ndim == 4:
        form = ImageForm.of_images(values, classes or form.classes)
    found = saved.ensemble.calibrate(values, labels, fpr, batch_size=fitting_batch_size(saved.ensemble))
    found = replace(found, source=source, form=form)
    found.write(saved.folder, saved.weights)
    return found


def _held_out(saved: "SavedEnsemble", root: Path | None) -> "LabelledSet":
    """Return what a run held out: of data of one's own the test part, of a published set the validation images."""
    from greedy_ensembles.benchmark.stored_runs import held_out, training_images
    from greedy_ensembles.saving import read_held_out

    kept = read_held_out(saved.folder)
    if kept is not None:
        return kept
    if saved.facts is None or saved.trained_on is None:
        raise ValueError(
            f"{saved.folder} keeps nothing that it held out; name in-domain inputs that it was not trained on with --on"
        )
    if not saved.facts.configuration["validation"]:
        raise ValueError(
            f"{saved.folder} held out no validation images; name in-domain images that it was not trained on with --on"
        )
    return held_out(saved.facts, training_images(saved.facts, root))


def to_csv(names: tuple[str, ...], verdicts: "Verdicts", classes: tuple[str, ...] | None = None) -> str:
    """Return a table with a line for each input; without a calibration there is no column of flags."""
    from greedy_ensembles.report.table import csv_cell

    known = classes if classes is not None and len(classes) == verdicts.outputs else range(verdicts.outputs)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    heading = ["input", "class", "probability", "mutual_information", "aleatoric", "total"]
    table.writerow(heading if verdicts.flagged is None else [*heading, "flagged"])
    for index, name in enumerate(names):
        figures = (verdicts.probability, *verdicts.uncertainty)
        about = (name, known[int(verdicts.classes[index])])
        row = [*map(csv_cell, about), *(f"{values[index]:.6g}" for values in figures)]
        flag = [] if verdicts.flagged is None else ["yes" if verdicts.flagged[index] else "no"]
        table.writerow([*row, *flag])
    return file.getvalue()


def _open(run: Path, model: str | None, device: str | None) -> "SavedEnsemble":
    from greedy_ensembles.cli.given import open_saved
    from greedy_ensembles.engines.execution import as_device

    return open_saved(run, None if model is None else imported(model), as_device(device))


def _asked_form(saved: "SavedEnsemble", shape: str | None, root: Path | None) -> "ImageForm":
    """Return the form of inputs: as asked for, else as the calibration or the data set says."""
    from greedy_ensembles.cli.given import form_of, parse_shape
    from greedy_ensembles.flags import ImageForm

    calibration = saved.ensemble.calibration
    known = calibration is not None and calibration.form != ImageForm()  # not where Python calibrated
    form = calibration.form if calibration is not None and known else form_of(saved, root)
    return form if shape is None else ImageForm(parse_shape(shape), form.classes)


def _read(paths: list[Path], form: "ImageForm", saved: "SavedEnsemble") -> "Inputs":
    from greedy_ensembles.cli.given import ShapeUnknownError, read_inputs

    try:
        given = read_inputs(paths, form, saved.columns)
    except ShapeUnknownError as picture:
        if saved.columns is not None:
            told = f"{picture} is a picture, and {saved.folder} was trained on a table; give a .csv with its columns"
            raise ValueError(told) from None
        name = saved.trained_on
        why = f"{name} is not in the data folder (--root)" if name else "it does not say what it was trained on"
        raise ValueError(
            f"{picture} cannot be resized, for it is not known what images the ensemble takes: {why}. Name the shape "
            "of images, as in --shape 3x32x32"
        ) from None
    for line in (*given.unreadable, *given.conversions):
        say(line)
    return given


def _why_none(saved: "SavedEnsemble") -> str:
    from greedy_ensembles.flags import FILE

    there = (saved.folder / FILE).exists()
    return f"{FILE} is of other weights, as after more members were trained" if there else "it is not calibrated"
