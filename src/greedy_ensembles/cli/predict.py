"""``greedy-ensembles predict``: classes and uncertainties of images; ``calibrate``: from when on to distrust them.

A run on data of one's own is calibrated on the part that had no say in its training. One on a published set held out
validation images alone: each member's best epoch was chosen on them, so on new images the rate of false alarms may be a
little above what was asked for.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from greedy_ensembles.cli.app import BatchSize, DataFolder, Device, OwnModel, check_file, command, imported, say

if TYPE_CHECKING:
    import numpy as np
    import torch

    from greedy_ensembles.benchmark.runs import RunFacts
    from greedy_ensembles.data import LabelledSet
    from greedy_ensembles.ensemble import Ensemble, ModelFactory
    from greedy_ensembles.flags import Calibration, ImageForm, Shape

_AT_ONCE = 4096  # inputs whose probabilities, of all members and in double precision, are in memory

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
    from greedy_ensembles.cli.given import read_inputs
    from greedy_ensembles.flags import FILE
    from greedy_ensembles.storage import write_bytes

    check_file(out)
    saved = open_saved(run, imported(model), device)
    form = form_of(saved, root, shape)
    given = read_inputs(inputs, form, saved.columns)
    columns = judge_inputs(saved.ensemble, given.values, form.classes, batch_size)
    table = to_csv(given.names, columns)
    if saved.ensemble.calibration is None:
        there = (saved.folder / FILE).exists()
        why = f"{FILE} is of other weights, as after more members were trained" if there else "it is not calibrated"
        say(f"no flags: {why}; `greedy-ensembles calibrate {run}` finds a threshold for them")
    if out is None:
        print(table, end="")
    else:
        write_bytes(out, [table.encode()])
        flagged = f", {sum(columns['flagged']):,} of them flagged" if "flagged" in columns else ""
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
    from greedy_ensembles.cli.given import read_inputs

    saved = open_saved(run, imported(model), device)
    saved.ensemble.calibration = None  # an earlier one does not count
    values = None
    if shape is not None and not on:
        raise ValueError("--shape is for inputs that --on names; leave it out")
    if on:
        _, values, unreadable = read_inputs(on, form_of(saved, root, shape), saved.columns)
        if unreadable:
            raise ValueError(f"{len(unreadable):,} of the images of --on could not be read; leave them out")
    found = calibrate_folder(saved, fpr, values, root)
    print(
        f"Inputs are flagged from a mutual information of {found.threshold:.4g} nats on: at most {100 * found.fpr:g} % "
        f"of new in-domain inputs, as found from {found.inputs:,} ({found.source})"
    )


def calibrate_folder(
    saved: "SavedEnsemble", fpr: float = 0.05, values: "np.ndarray | None" = None, root: Path | None = None
) -> "Calibration":
    """Find the threshold of an ensemble from in-domain inputs, and write it beside the weights.

    `values` are such inputs, (n, ...); None: those that a run held out.
    """
    import numpy as np

    from greedy_ensembles.benchmark.predictions import fitting_batch_size
    from greedy_ensembles.flags import ImageForm

    labels, source, classes = None, "in-domain inputs of your own", None
    if values is None:
        kept = _held_out(saved, root)
        values, labels, source, classes = kept.inputs, kept.labels, kept.name, kept.classes
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
    if saved.facts is None or saved.dataset is None or not saved.facts.configuration["validation"]:
        raise ValueError(
            f"{saved.folder} keeps nothing that it held out; name in-domain inputs that it was not trained on with --on"
        )
    return held_out(saved.facts, training_images(saved.facts, root))


@dataclass(frozen=True, eq=False)
class SavedEnsemble:
    """An ensemble as it lies in a folder."""

    folder: Path
    ensemble: "Ensemble"
    weights: str  #: the `fingerprint` of its weights
    facts: "RunFacts | None"  #: None for a saved ensemble that came from no run
    data: Mapping[str, Any]  #: what is known of the data that it was trained on
    columns: tuple[str, ...] | None  #: of the table that it was trained on, None for anything else
    dataset: str | None  #: the name of the published set that it was trained on, None for anything else


def open_saved(
    folder: Path, make_model: "ModelFactory | None" = None, device: "torch.device | str | None" = "cpu"
) -> SavedEnsemble:
    """Return a finished run or a saved ensemble, or refuse the folder."""
    from greedy_ensembles.benchmark.stored_runs import facts_of, finished_run
    from greedy_ensembles.cli.given import names_in
    from greedy_ensembles.data import SETS
    from greedy_ensembles.engines.execution import as_device
    from greedy_ensembles.ensemble import Ensemble
    from greedy_ensembles.flags import fingerprint
    from greedy_ensembles.storage import FolderError, check_contained, read_json

    place, facts = as_device(device), None
    check_contained(folder)
    saved = (folder / "ensemble.json").exists() and read_json(folder / "ensemble.json")
    if (folder / "run.json").exists() or (saved and saved.get("run") is not None):
        run = finished_run(folder, make_model, place)
        ensemble, facts = run.ensemble, facts_of(run)
        checksums = [member["files"]["weights"] for member in run.members]
    elif not saved:
        raise FolderError(f"{folder} holds neither a run (run.json) nor a saved ensemble (ensemble.json)")
    elif make_model is None:
        raise ValueError(f"{folder} is a saved ensemble, which does not name its model; give --model package:function")
    else:
        ensemble, checksums = Ensemble.load(folder, make_model, place), saved["members"]
    if ensemble.targets == "labels":
        raise ValueError(f"{folder} predicts independent labels, which commands do not; ge.load_run and Python do")
    data = None if facts is None else facts.information["data"]
    data = data if isinstance(data, dict) else {}
    dataset = name if isinstance(name := data.get("name"), str) and name in SETS else None
    return SavedEnsemble(folder, ensemble, fingerprint(checksums), facts, data, names_in(data, "columns"), dataset)


def form_of(saved: SavedEnsemble, root: Path | None = None, asked: str | None = None) -> "ImageForm":
    """Return what is known of the images: as asked for, else from the calibration, the folder, or the data set."""
    import torch

    from greedy_ensembles.cli.given import names_in, parse_shape
    from greedy_ensembles.data import SETS, load
    from greedy_ensembles.flags import ImageForm
    from greedy_ensembles.forms import InputForm

    found, shape = saved.ensemble.calibration, None if asked is None else parse_shape(asked)
    if found is not None and found.form != ImageForm():  # not where Python calibrated
        return replace(found.form, shape=shape or found.form.shape)
    inputs, classes = saved.ensemble.inputs, names_in(saved.data, "classes")
    if shape is None and isinstance(inputs, InputForm) and inputs.dtype == torch.uint8 and len(inputs.shape) == 3:
        with suppress(TypeError, ValueError):  # of any size, or not square, or the folder is someone else's
            shape = ImageForm(cast("Shape", inputs.shape)).shape
    if saved.dataset is None or saved.facts is None:
        return ImageForm(shape, classes)
    shape = shape or saved.facts.image_shape
    if shape is None or classes is None:
        for split in sorted(SETS[saved.dataset].counts):  # test before train: it is smaller
            with suppress(FileNotFoundError):
                images = load(saved.dataset, split, root)
                return ImageForm(shape or ImageForm.of_images(images.images).shape, images.classes)
    return ImageForm(shape, classes)


def judge_inputs(
    ensemble: "Ensemble", values: "np.ndarray", classes: Sequence[str] | None = None, batch_size: int | None = None
) -> dict[str, list[Any]]:
    """Return by its heading each column of what is predicted: flags where the ensemble is calibrated."""
    from greedy_ensembles.benchmark.predictions import fitting_batch_size
    from greedy_ensembles.checks import first_line
    from greedy_ensembles.inputs import as_tensor
    from greedy_ensembles.metrics.uncertainty import Uncertainty

    at_once = fitting_batch_size(ensemble) if batch_size is None else batch_size
    columns: dict[str, list[Any]] = {}
    for start in range(0, len(values), _AT_ONCE):
        try:
            probs = ensemble.predict_proba(as_tensor(values[start : start + _AT_ONCE]), at_once).double()
        except RuntimeError as error:
            what = f"inputs of shape {tuple(values.shape[1:])} and type {values.dtype}"
            raise ValueError(f"the ensemble cannot take {what}: {first_line(error)}") from error
        if not bool(probs.isfinite().all()):
            raise ArithmeticError("a member's outputs are NaN or infinite")
        mean, of_members = probs.mean(dim=0), Uncertainty.of(probs)
        mean = mean if ensemble.calibration is None else ensemble.calibration.tempered(mean)
        known = classes if classes is not None and len(classes) == mean.shape[1] else range(mean.shape[1])
        found = {
            "class": [known[index] for index in mean.argmax(dim=1).tolist()],
            "probability": mean.amax(dim=1).tolist(),
            "mutual_information": of_members.epistemic.tolist(),
            "aleatoric": of_members.aleatoric.tolist(),
            "total": of_members.total.tolist(),
        }
        if ensemble.calibration is not None:
            found["flagged"] = ensemble.calibration.flags(probs).tolist()
        for heading, column in found.items():
            columns.setdefault(heading, []).extend(column)
        if len(values) > _AT_ONCE:
            say(f"{min(start + _AT_ONCE, len(values)):,} of {len(values):,} inputs")
    return columns


def to_csv(names: Sequence[str], columns: Mapping[str, list[Any]]) -> str:
    """Return a table with a line for each input: its name, and what `judge_inputs` says of it."""
    from greedy_ensembles.report.table import csv_cell

    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["input", *columns])
    for name, kind, *figures in zip(names, *columns.values(), strict=True):
        spelled = (("yes" if v else "no") if isinstance(v, bool) else f"{v:.6g}" for v in figures)
        table.writerow([csv_cell(name), csv_cell(kind), *spelled])
    return file.getvalue()
