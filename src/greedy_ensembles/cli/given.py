"""What `predict` and `calibrate` are given: an ensemble in a folder, and pictures, arrays or tables; what it says.

Pictures are brought to the form that the ensemble was trained on. One that cannot be read is named and left out, since
a thousand others should not wait for it. A path that does not exist, or a folder without pictures, is refused before
anything is computed.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from greedy_ensembles.benchmark.runs import RunFacts
from greedy_ensembles.benchmark.stored_runs import facts_of, finished_run
from greedy_ensembles.checks import check_count, limit, naming
from greedy_ensembles.cli.app import check_there, say
from greedy_ensembles.cli.own_data import ARRAYS, TABLES
from greedy_ensembles.data import SETS, ImageSet, data_root, load, picture_sets, read_table
from greedy_ensembles.data.archives import contents
from greedy_ensembles.data.formats import channels_first, load_numbers, read_arrays
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.data.registry import find
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.flags import ImageForm, Shape, fingerprint
from greedy_ensembles.forms import InputForm
from greedy_ensembles.inputs import as_tensor
from greedy_ensembles.metrics.uncertainty import Uncertainty
from greedy_ensembles.storage import FolderError, check_contained, read_json

_AT_ONCE = 4096  # inputs whose probabilities, of all members and in double precision, are in memory


@dataclass(frozen=True, eq=False)
class SavedEnsemble:
    """An ensemble as it lies in a folder."""

    folder: Path
    ensemble: Ensemble
    weights: str  #: the `fingerprint` of its weights
    facts: RunFacts | None  #: None for a saved ensemble that came from no run, and so names no data set

    @property
    def data(self) -> dict[str, Any]:
        """What is known of the data that it was trained on."""
        data = None if self.facts is None else self.facts.information["data"]
        return data if isinstance(data, dict) else {}

    @property
    def trained_on(self) -> str | None:
        """The name of the published set that a run was trained on, None for anything else."""
        name = self.data.get("name")
        return name if isinstance(name, str) and name in SETS else None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of classes, where they are known."""
        return names_in(self.data, "classes")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of the table that it was trained on, None for anything else."""
        return names_in(self.data, "columns")


def open_saved(
    folder: Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu"
) -> SavedEnsemble:
    """Return a finished run or a saved ensemble, or refuse the folder.

    Args:
        folder: what `ge.fit` or `Ensemble.save` wrote.
        make_model: may be left out where it came from a run with one of `ge.models`.
        device: where the members go.
    """
    folder = folder.expanduser()
    check_contained(folder)
    saved = (folder / "ensemble.json").exists() and read_json(folder / "ensemble.json")
    if (folder / "run.json").exists() or (saved and saved.get("run") is not None):
        run = finished_run(folder, make_model, device)
        checksums = [member["files"]["weights"] for member in run.members]
        return SavedEnsemble(folder, _of_classes(folder, run.ensemble), fingerprint(checksums), facts_of(run))
    if not saved:
        raise FolderError(f"{folder} holds neither a run (run.json) nor a saved ensemble (ensemble.json)")
    if make_model is None:
        raise ValueError(f"{folder} is a saved ensemble, which does not name its model; give --model package:function")
    ensemble = Ensemble.load(folder, make_model, device)
    return SavedEnsemble(folder, _of_classes(folder, ensemble), fingerprint(saved["members"]), None)


def _of_classes(folder: Path, ensemble: Ensemble) -> Ensemble:
    if ensemble.targets == "labels":
        raise ValueError(f"{folder} predicts independent labels, which commands do not; ge.load_run and Python do")
    return ensemble


def form_of(saved: SavedEnsemble, root: Path | None = None) -> ImageForm:
    """Return what is known of the images: their shape from the folder, else from the data set if that is there."""
    name, shape = saved.trained_on, _shape(saved.ensemble)
    if name is not None and saved.facts is not None:
        shape = shape or saved.facts.image_shape
    if name is None or (shape is not None and saved.classes is not None):
        return ImageForm(shape, saved.classes)
    splits = [split for split in SETS[name].counts if find(SETS[name], split, data_root(root))]
    if not splits:
        return ImageForm(shape, saved.classes)
    images = load(name, min(splits), root)  # test before train: it is smaller
    return ImageForm.of_images(images.images, images.classes) if shape is None else ImageForm(shape, images.classes)


def names_in(data: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return a list of names that run.json may hold, whoever wrote it."""
    found = data.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else None


def _shape(ensemble: Ensemble) -> Shape | None:
    """Return the shape of inputs that pictures can be made into: square images of bytes."""
    inputs = ensemble.inputs
    if not isinstance(inputs, InputForm) or inputs.dtype != torch.uint8 or len(inputs.shape) != 3:
        return None
    channels, height, width = inputs.shape
    if channels not in (1, 3) or height is None or height != width or height > limit("side"):
        return None  # the folder may be someone else's
    return channels, height, height


def parse_shape(text: str) -> Shape:
    """Return a shape as people write it.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text.strip())
    if not found:
        raise ValueError(f"--shape is channels x height x width, as in 3x32x32; got {text!r}")
    channels, height, width = map(int, found.groups())
    if channels not in (1, 3) or height < 1 or height != width:
        raise ValueError(f"--shape must be of square images of 1 or 3 channels, as in 3x32x32; got {text!r}")
    return channels, height, width


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs in order, what was done to them, and what could not be read."""

    names: tuple[str, ...]
    values: np.ndarray
    conversions: tuple[str, ...] = ()  #: in words
    unreadable: tuple[str, ...] = ()  #: why, with the name of the file


def read_inputs(paths: Sequence[Path], form: ImageForm, columns: Sequence[str] | None = None) -> Inputs:
    """Read picture files, folders and archives of them, arrays (.npy, .npz), and tables (.csv) with these columns."""
    check_there(paths)
    names: list[str] = []
    parts: list[np.ndarray] = []
    counts: Counter[str] = Counter()
    unreadable: list[str] = []
    for path in paths:
        if (kind := path.suffix.lower()) in (*TABLES, *ARRAYS):
            values = _rows(path, columns) if kind in TABLES else _array(path, form.shape, counts)
            names += [f"{path}[{index}]" for index in range(len(values))]
            parts.append(values)
            continue
        stored = 0
        for number, (name, content) in enumerate(_files(path, unreadable), start=1):
            stored += len(content)
            picture_sets.check_room(path, number * math.prod(form.shape or ()), stored)
            try:
                parts.append(_picture(content, name, form.shape, counts)[None])
                names.append(name)
            except ValueError as error:
                unreadable.append(str(error))
    return Inputs(tuple(names), _joined(parts, unreadable), tuple(_in_words(counts)), tuple(unreadable))


def _rows(path: Path, columns: Sequence[str] | None) -> np.ndarray:
    if columns is None:
        raise ValueError(f"{path} is a table, and the ensemble was trained on none that has names of columns")
    return read_table(path, columns=columns).rows


def _joined(parts: list[np.ndarray], unreadable: list[str]) -> np.ndarray:
    if not parts:
        raise ValueError(f"there is nothing to predict: {unreadable[0] if unreadable else 'no input was named'}")
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(sorted("x".join(map(str, shape)) for shape in shapes))
        raise ValueError(f"inputs must be of one shape, got {listed}; images are resized where the shape is known")
    return np.concatenate(parts)


def _files(path: Path, unreadable: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of a picture, or of all pictures in a folder or archive, in order of their names."""
    if path.is_file() and picture_sets.is_picture(path.name):
        folder, found = path.parent, [path.name]
    else:
        folder, found = path, picture_sets.picture_names(path)
    try:
        yield from ((str(folder / name), content) for name, content in contents(folder, found, unreadable))
    except ValueError as error:  # an archive that breaks off: what came before is read
        unreadable.append(str(error))


def _picture(content: bytes, name: str, shape: Shape | None, counts: Counter[str]) -> Bytes:
    if shape is None:
        raise ShapeUnknownError(name)
    channels, size, _ = shape
    decoded = picture_sets.decode(content, name, picture_sets.Look(size, channels, upright=True))
    picture = picture_sets.open_picture(content, name)
    grey = Image.getmodebase(picture.mode) == "L"
    _count(counts, (1 if grey else 3, picture.height, picture.width), shape)
    return decoded


class ShapeUnknownError(Exception):
    """The picture of this name was given to an ensemble of which nobody knows what size it takes."""


def _array(path: Path, shape: Shape | None, counts: Counter[str]) -> np.ndarray:
    """Return the inputs of a file: images of bytes if images are what is wanted, else numbers as they are."""
    images = _numbers(path) if shape is None and path.suffix.lower() == ".npy" else read_arrays(path)[0]
    if not len(images):
        raise ValueError(f"{path} holds an array of no inputs")
    if shape is None or images.shape[1:] == shape:
        return images
    picture_sets.check_room(path, len(images) * math.prod(shape), path.stat().st_size)
    for _ in range(len(images)):
        _count(counts, images.shape[1:], shape)
    return ImageSet(images, None, str(path)).with_channels(shape[0]).resized(shape[1]).images


def _numbers(path: Path) -> np.ndarray:
    with naming(path, "is not an array of numbers"):
        values = load_numbers(path)
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        return channels_first(values, str(path))
    if values.ndim < 2 or values.dtype.kind not in "fiu":
        raise ValueError(f"{path} must hold numbers of shape (n, ...), got {values.dtype} of shape {values.shape}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError(f"{path} holds numbers that are infinite or NaN")
    return np.asarray(values)


def _count(counts: Counter[str], found: Sequence[int], wanted: Shape) -> None:
    """Count what a conversion from one shape of images to another does."""
    if found[0] != wanted[0]:
        counts["turned to grey" if wanted[0] == 1 else "turned from grey to colour"] += 1
    if found[1] != found[2]:
        counts["cropped to the centre square"] += 1
    if min(found[1:]) != wanted[1]:
        counts[f"resized to {wanted[1]} x {wanted[2]}"] += 1


def _in_words(counts: Counter[str]) -> Iterator[str]:
    for done, count in counts.items():
        yield f"{count:,} image{'s were' if count > 1 else ' was'} {done}"


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of n inputs: the class, its probability, uncertainties in nats, and flags, in double precision."""

    classes: np.ndarray
    probability: np.ndarray  #: the members' mean, at the calibration's temperature where there is one
    uncertainty: Uncertainty[np.ndarray]
    flagged: np.ndarray | None  #: which may be out of distribution; None where the ensemble is not calibrated
    outputs: int  #: how many classes there are


def judge_inputs(ensemble: Ensemble, values: np.ndarray, batch_size: int = 1024) -> Verdicts:
    """Predict inputs, some at a time, so that memory does not limit how many.

    Args:
        ensemble: what predicts.
        values: inputs, (n, ...), as the ensemble was trained on.
        batch_size: how many of them a member sees at once.
    """
    check_count("batch_size", batch_size, least=1)
    found, parts = ensemble.calibration, []
    for start in range(0, len(values), _AT_ONCE):
        batch = as_tensor(values[start : start + _AT_ONCE])
        try:
            probs = ensemble.predict_proba(batch, batch_size).double()
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"the ensemble cannot take inputs of shape {tuple(values.shape[1:])} and type {values.dtype}: {why}"
            ) from error
        if not bool(probs.isfinite().all()):
            raise ArithmeticError("a member's outputs are NaN or infinite")
        mean = probs.mean(dim=0) if found is None else found.tempered(probs.mean(dim=0))
        flags = () if found is None else (found.flags(probs),)
        if len(values) > _AT_ONCE:
            say(f"{min(start + _AT_ONCE, len(values)):,} of {len(values):,} inputs")
        parts.append((mean.argmax(dim=1), mean.amax(dim=1), *Uncertainty.of(probs), *flags))
    classes, probability, *others = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    flagged = None if found is None else others[3]
    return Verdicts(classes, probability, Uncertainty(*others[:3]), flagged, outputs=mean.shape[1])
