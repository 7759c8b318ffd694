"""``greedy-ensembles predict``: classes and uncertainties of images; ``calibrate``: from when on to distrust them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from greedy_ensembles.cli.app import app, in_one_line
from greedy_ensembles.cli.options import BatchSize, DataFolder, Device
from greedy_ensembles.cli.paths import check_file, check_there
from greedy_ensembles.cli.train import imported

if TYPE_CHECKING:
    from greedy_ensembles.screening import Calibration, Form, Inputs, Subject

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, or one that Ensemble.save wrote.")]
Model = Annotated[
    str | None, typer.Option("--model", help="package:function, where the folder does not name one of our models.")
]
InputShape = Annotated[
    str | None,
    typer.Option("--shape", help="What images to make of pictures, as in 3x32x32; default: as it was trained on."),
]


@app.command("predict")
@in_one_line
def predict(
    run: RunFolder,
    inputs: Annotated[
        list[Path], typer.Argument(metavar="INPUT", help="Pictures; folders or archives of them; .npy or .npz.")
    ],
    out: Annotated[Path | None, typer.Option(help="A CSV file; default: the terminal.")] = None,
    model: Model = None,
    shape: InputShape = None,
    batch_size: BatchSize = None,
    device: Device = None,
    root: DataFolder = None,
) -> None:
    """Predict images: class, probability, uncertainties, and a flag on those outside of what the run knows.

    The flag needs a threshold, which `greedy-ensembles calibrate RUN` finds. Pictures are cropped and resized to what
    the run was trained on. Those that cannot be read are named and left out, and the command ends with status 1.
    """
    from greedy_ensembles.screening import judge, read_calibration, to_csv
    from greedy_ensembles.storage import write_bytes

    check_file(out)
    subject = _open(run, model, device)
    calibration = read_calibration(subject)
    form = _form(subject, shape, calibration, root)
    given = _read(inputs, form, subject)
    verdicts = judge(subject.ensemble, given.values, batch_size)
    threshold = None if calibration is None else calibration.threshold
    table = to_csv(given.names, verdicts, form.classes, threshold)
    if calibration is None:
        _say(f"no flags: {_why_none(subject)}; `greedy-ensembles calibrate {run}` finds a threshold for them")
    if out is None:
        print(table, end="")
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(out, [table.encode()])
        flagged = "" if threshold is None else f", {int((verdicts.epistemic >= threshold).sum()):,} of them flagged"
        print(f"Wrote {len(given.names):,} predictions to {out}{flagged}")
    if given.unreadable:
        raise ValueError(f"{len(given.unreadable):,} of {len(given.names) + len(given.unreadable):,} could not be read")


@app.command("calibrate")
@in_one_line
def calibrate(
    run: RunFolder,
    fpr: Annotated[float, typer.Option(help="The share of in-domain images that may be flagged.")] = 0.05,
    on: Annotated[
        list[Path] | None,
        typer.Option(help="In-domain images that it was not trained on; default: those that the run held out."),
    ] = None,
    model: Model = None,
    shape: InputShape = None,
    device: Device = None,
    root: DataFolder = None,
) -> None:
    """Find from which mutual information on `predict` flags an image, and keep it in RUN/calibration.json."""
    from greedy_ensembles.screening import calibrate as find

    subject = _open(run, model, device)
    given = _read(on, _form(subject, shape, None, root), subject) if on else None
    if given is not None and given.unreadable:
        raise ValueError(f"{len(given.unreadable):,} of the images of --on could not be read; leave them out")
    found = find(subject, fpr, given, root)
    print(
        f"Inputs are flagged from a mutual information of {found.threshold:.4g} nats on: at most {100 * found.fpr:g} % "
        f"of new in-domain inputs, as found from {found.inputs:,} ({found.source})"
    )


def _open(run: Path, model: str | None, device: str | None) -> "Subject":
    from greedy_ensembles.screening import open_subject
    from greedy_ensembles.training.problem import as_device

    check_there([run])
    return open_subject(run, None if model is None else imported(model), as_device(device))


def _form(subject: "Subject", shape: str | None, calibration: "Calibration | None", root: Path | None) -> "Form":
    """Return the form of inputs: as asked for, else as the calibration or the data set says."""
    from greedy_ensembles.screening import Form, form_of
    from greedy_ensembles.screening.form import parse_shape

    form = form_of(subject, root) if calibration is None else calibration.form
    return form if shape is None else Form(parse_shape(shape), form.classes)


def _read(paths: list[Path], form: "Form", subject: "Subject") -> "Inputs":
    from greedy_ensembles.screening import read_inputs
    from greedy_ensembles.screening.form import trained_on
    from greedy_ensembles.screening.inputs import ShapeUnknownError

    try:
        given = read_inputs(paths, form)
    except ShapeUnknownError as error:
        name = trained_on(subject)
        why = f"{name} is not in the data folder (--root)" if name else "it does not say what it was trained on"
        raise ValueError(f"{error}: {why}. Name the shape of images, as in --shape 3x32x32") from None
    for line in (*given.unreadable, *given.conversions):
        _say(line)
    return given


def _why_none(subject: "Subject") -> str:
    from greedy_ensembles.screening.calibration import FILE

    there = (subject.folder / FILE).exists()
    return f"{FILE} is of other weights, as after more members were trained" if there else "it is not calibrated"


def _say(line: str) -> None:
    print(line, file=sys.stderr)
