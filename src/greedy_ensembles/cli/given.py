"""What commands are given: data of one's own to train on and to be judged on, and inputs to predict.

Members learn from one part of the data, a second selects each member's best epoch (validation), and a third is held out
of both (test): `evaluate` judges, and `calibrate` finds its threshold, on inputs that had no say in training.
"""

import dataclasses
import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from greedy_ensembles.checks import naming
from greedy_ensembles.cli.app import imported, say
from greedy_ensembles.data import SETS, ImageSet, LabelledSet, TableSet, picture_sets, read, read_parts, read_table
from greedy_ensembles.data.archives import contents
from greedy_ensembles.data.formats import channels_first, load_numbers, read_arrays
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.flags import ImageForm, Shape
from greedy_ensembles.models import MLP, named
from greedy_ensembles.runs import load_run
from greedy_ensembles.saving import HELD_OUT, VALIDATION, write_held_out
from greedy_ensembles.training import Recipe
from greedy_ensembles.training.validate import split

TABLES = (".csv", ".tsv")
ARRAYS = (".npy", ".npz")
#: What pictures become unless --shape says otherwise, and the network that then learns from them.
SHAPE, MODEL = (3, 32, 32), "PreResNet8"
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.2
#: Why a picture cannot be predicted, of an ensemble that was trained on a table, and of any other.
_NO_PICTURES = "the ensemble was trained on a table; give a .csv with its columns"
_NO_SHAPE = (
    "it is not known what images the ensemble takes; name their shape, as in --shape 3x32x32, or with --root the "
    "folder that has the data set it was trained on"
)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """What `fit` is asked to train, and on what."""

    data: LabelledSet
    make_model: Callable[[], Any]
    recipe: Recipe
    validation: LabelledSet | float  #: what selects epochs, or its share of `data`
    test: LabelledSet | None = None  #: what data of one's own hold out to be judged on

    def keep_held_out(self, folder: Path, seed: int) -> None:
        """Write into a run's folder what is to be judged on, and what epochs were selected by."""
        selected = self.validation
        if not isinstance(selected, LabelledSet):
            assert self.data.labels is not None  # it was trained on
            selected = self.data.take(split(torch.from_numpy(self.data.labels), selected, seed)[1].numpy())
        selected = selected.replace(name=f"{self.data.name}, validation")
        for name, part in ((HELD_OUT, self.test), (VALIDATION, selected)):
            if part is not None and len(part):
                write_held_out(folder, part, name)


def own_task(
    text: str,
    model: str | None,
    changes: Mapping[str, Any],
    validation: float | None,
    *,
    target: str | None,
    leave_out: Sequence[str],
    shape: str | None,
    test: float | None,
) -> Task:
    """Return the task on data of one's own, after saying which part is for what.

    Args:
        text: the path, as it was typed; it becomes the name of the data.
        model: the network's name, or package:function; None: the one for such data.
        changes: fields of the recipe for such data to change.
        validation: the share that selects epochs; None: the folder val, else `VALIDATION_SHARE`.
        target: the column of classes of a table.
        leave_out: columns of a table that are not used.
        shape: what pictures become, as people write it; None: `SHAPE`, and arrays as they are.
        test: the share that is held out to be judged on; None: the folder test, else `TEST_SHARE`. 0: nothing is.
    """
    shares = {"val": ("--validation", validation), "test": ("--test", test)}
    for option, value in shares.values():
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{option} must be a share of the data, at least 0 and below 1; got {value:g}")
    parts = _parts(text, None if shape is None else parse_shape(shape), target, leave_out)
    for part, (option, value) in shares.items():
        if part in parts and value is not None:
            raise ValueError(f"{text} has a folder {part}, so leave {option} out")
    train, judged, share = parts["train"], parts.get("test"), TEST_SHARE if test is None else test
    if judged is None and share:
        try:
            train, judged = train.split(share)  # from a seed of its own: repetitions are judged on the same inputs
        except ValueError as error:
            raise ValueError(f"--test {share:g}: {error}; or hold out nothing to judge by, with --test 0") from None
        judged = judged.replace(name=f"{train.name}, held out", note="")
    selected = parts.get("val", VALIDATION_SHARE if validation is None else validation)
    say(str(train))
    selects = selected if isinstance(selected, LabelledSet) else f"{selected:.0%} of these"
    say(f"best epochs are selected on {selects}" if selected else "last epochs are kept")
    say("nothing is held out to be judged on (--test 0)" if judged is None else f"judged and calibrated on {judged}")
    make_model = network(model or ("MLP" if isinstance(train, TableSet) else MODEL), train)
    # Arrays may be of digits, which a flip makes into others.
    recipe = _recipe(train, None if Path(text).suffix.lower() in ARRAYS else "flip_crop", changes)
    return Task(train, make_model, recipe, selected, judged)


def _parts(text: str, shape: Shape | None, target: str | None, leave_out: Sequence[str]) -> dict[str, LabelledSet]:
    """Return what there is to train on, and to validate and to test where that is there, under the path as a name."""
    path = Path(text).expanduser()
    if not path.exists():
        nearest = difflib.get_close_matches(text.lower(), [*SETS, *map(str, path.parent.glob("*"))], n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else " (`greedy-ensembles data list` has their names)"
        raise ValueError(f"there is no file or folder {text}, and no published set of that name{hint}")
    if path.suffix.lower() not in TABLES:
        if target is not None or leave_out:
            raise ValueError(f"--target and --leave-out name columns of a table (.csv), and {text} is none")
        parts = _images(path, shape)
    elif shape is not None:
        raise ValueError(f"--shape is for images, and {path} is a table")
    elif target is None:
        raise ValueError(f"--target must name the column of {path} that holds the classes")
    else:
        parts = {"train": read_table(path, target, leave_out=leave_out)}
    name = short if (short := text.rstrip("/\\")) not in {"", *SETS} else text  # which no published set has
    parts = {part: own.replace(name=name if part == "train" else f"{name}, {part}") for part, own in parts.items()}
    labels, classes = parts["train"].labels, parts["train"].classes or ()
    if len(classes) < 2:
        raise ValueError(f"{name} has one class, {', '.join(classes)}; training needs two or more")
    counts = np.bincount([] if labels is None else labels, minlength=len(classes))
    if not counts.all():
        raise ValueError(f"{name} has nothing to learn of class {classes[int(counts.argmin())]}")
    return parts


def _images(path: Path, shape: Shape | None) -> dict[str, LabelledSet]:
    channels, size = (shape or SHAPE)[:2]
    if path.suffix.lower() in ARRAYS:
        images = read(path) if shape is None else read(path, size, channels)
        if images.labels is None:
            raise ValueError(f"{path} has no labels; give an .npz of two arrays, x (images) and y (labels)")
        return {"train": images.replace(classes=tuple(map(str, range(int(images.labels.max(initial=0)) + 1))))}
    unreadable: list[str] = []
    parts = read_parts(path, size, channels, unreadable=unreadable)
    for line in unreadable:
        say(f"left out: {line}")
    return dict(parts)


def network(name: str, data: LabelledSet) -> Any:
    """Return the network of that name for such data, or package:function, after building it without its numbers."""
    if ":" in name:
        return imported(name)
    if data.classes is None:
        raise ValueError(
            f"{data.name} does not say how many classes it has; give a model with --model package:function"
        )
    try:
        if not isinstance(data, TableSet):
            make_model = named(name, classes=len(data.classes), channels=data.inputs.shape[1])
        elif name == "MLP":
            make_model = partial(MLP, data.rows.shape[1], (128, 128), len(data.classes))
        else:
            raise ValueError(f"--model {name} takes images; a table takes MLP")
        with torch.device("meta"):
            make_model()
    except ValueError as error:
        raise ValueError(f"{error} (a network of your own: --model package:function)") from None
    return make_model


def _recipe(train: LabelledSet, augment: str | None, changes: Mapping[str, Any]) -> Recipe:
    """Return how members are trained: as tables are, or as a few hundred to some thousand small images are."""
    if isinstance(train, TableSet):
        from greedy_ensembles.estimator import TABLE_RECIPE  # which brings scikit-learn

        # Of a constant column the deviation is rounding, as 1e-17, and no scale for what new rows have in it.
        spread = np.where(np.ptp(train.rows, axis=0) > 0, train.rows.std(axis=0), 0.0).tolist()
        mean, scale = train.rows.mean(axis=0).tolist(), [each or 1.0 for each in spread]
        return dataclasses.replace(TABLE_RECIPE, **{"normalize": (mean, scale), **changes})
    photos = Recipe(epochs=40, batch_size=32, optimizer="adamw", lr=3e-3, weight_decay=1e-2, warmup_epochs=1)
    return dataclasses.replace(photos, **{"augment": augment, **changes})


def read_on(text: str, run: Path) -> LabelledSet:
    """Return labelled data to judge a run on, in its shape, and labelled by the names of its classes.

    Of a folder with parts, test is taken. `run` is the run's folder, or that of an ensemble saved from it.
    """
    information = load_run(run).information
    # Not where it was trained on several arrays, nor where someone else wrote what they liked.
    data, inputs = (found if isinstance(found := information.get(key), dict) else {} for key in ("data", "inputs"))
    shape, classes = inputs.get("shape"), names_in(data, "classes")
    if not (path := Path(text).expanduser()).exists():
        raise FileNotFoundError(f"--on must be a path to labelled data, and there is no file or folder {text}")
    seen = Path(str(data.get("source"))).name == path.name  # as far as names tell
    noted = {"note": "the run was trained on this file, or a part of it"} if seen else {}
    if path.suffix.lower() in TABLES:
        columns = names_in(data, "columns")
        if columns is None:
            raise ValueError(f"--on {text} is a table, and {run} was trained on none that has names of columns")
        return read_table(path, str(data.get("target")), columns=columns, classes=classes).replace(name=text, **noted)
    if not isinstance(shape, list) or len(shape) != 3:
        raise ValueError(f"--on {text} must be a table (.csv) with the columns that {run} was trained on")
    parts = _images(path, (shape[0], shape[1], shape[2]) if shape[1] == shape[2] else None)  # arrays need be no squares
    found = parts["test"] if "test" in parts else parts["train"].replace(**noted)
    if path.suffix.lower() in ARRAYS or found.labels is None or found.classes is None:
        return found.replace(name=text)
    # Where it knows numbers alone, folders in their order would have other ones as soon as one is missing.
    numbered = {name: int(name) for name in found.classes if name.isdecimal() and str(int(name)) == name}
    known = numbered if classes is None else {name: number for number, name in enumerate(classes)}
    if strange := sorted(set(found.classes) - set(known)):
        told = "numbers alone: call the folders 0, 1, ..., or give an .npz" if classes is None else ", ".join(classes)
        raise ValueError(f"--on {text} has the class {strange[0]!r}; {run} knows {told}")
    number = np.array([known[name] for name in found.classes])
    return found.replace(name=text, labels=number[found.labels], classes=classes)


def names_in(data: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return a list of names that run.json may hold, whoever wrote it."""
    found = data.get(key)
    return tuple(map(str, found)) if isinstance(found, list) else None


def parse_shape(text: str) -> Shape:
    """Return a shape as people write it.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    found = re.fullmatch(r"([13])x([1-9]\d*)x\2", text.strip())
    if not found:
        raise ValueError(f"--shape must be 1 or 3 channels x height x width of a square, as in 3x32x32; got {text!r}")
    return int(found[1]), int(found[2]), int(found[2])


class Inputs(NamedTuple):
    """Inputs in order, and why others could not be read."""

    names: Sequence[str]
    values: np.ndarray
    unreadable: Sequence[str] = ()


def read_inputs(paths: Sequence[Path], form: ImageForm, columns: Sequence[str] | None = None) -> Inputs:
    """Read picture files, folders and archives of them, arrays (.npy, .npz), and tables (.csv) with these columns.

    What could not be read, and what became of pictures, is said.
    """
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
    names: list[str] = []
    parts: list[np.ndarray] = []
    changes: Counter[str] = Counter()
    unreadable: list[str] = []
    for path in paths:
        if (kind := path.suffix.lower()) in (*TABLES, *ARRAYS):
            if kind in TABLES and columns is None:
                raise ValueError(f"{path} is a table, and the ensemble was trained on none that has names of columns")
            table = kind in TABLES
            parts.append(read_table(path, columns=columns).rows if table else _array(path, form.shape, changes))
            names += [f"{path}[{index}]" for index in range(len(parts[-1]))]
            continue
        stored = 0
        for number, (name, content) in enumerate(_files(path, unreadable), start=1):
            if form.shape is None:
                raise ValueError(f"{name} is a picture, and {_NO_PICTURES if columns else _NO_SHAPE}")
            stored += len(content)
            picture_sets.check_room(path, number * math.prod(form.shape), stored)
            try:
                parts.append(_picture(content, name, form.shape, changes)[None])
                names.append(name)
            except ValueError as error:
                unreadable.append(str(error))
    if not parts:
        raise ValueError(f"there is nothing to predict: {unreadable[0] if unreadable else 'no input was named'}")
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(sorted("x".join(map(str, shape)) for shape in shapes))
        raise ValueError(f"inputs must be of one shape, got {listed}; images are resized where the shape is known")
    for line in unreadable:
        say(line)
    for change, count in changes.items():
        say(f"{count:,} image{'s were' if count > 1 else ' was'} {change}")
    return Inputs(names, np.concatenate(parts), unreadable)


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


def _picture(content: bytes, name: str, shape: Shape, changes: Counter[str]) -> Bytes:
    channels, size, _ = shape
    decoded = picture_sets.decode(content, name, picture_sets.Look(size, channels, upright=True))
    picture = picture_sets.open_picture(content, name)
    grey = Image.getmodebase(picture.mode) == "L"
    changes.update(_changes((1 if grey else 3, picture.height, picture.width), shape))
    return decoded


def _array(path: Path, shape: Shape | None, changes: Counter[str]) -> np.ndarray:
    """Return the inputs of a file: images of bytes if images are what is wanted, else numbers as they are."""
    images = _numbers(path) if shape is None and path.suffix.lower() == ".npy" else read_arrays(path)[0]
    if not len(images):
        raise ValueError(f"{path} holds an array of no inputs")
    if shape is None or images.shape[1:] == shape:
        return images
    picture_sets.check_room(path, len(images) * math.prod(shape), path.stat().st_size)
    changes.update(dict.fromkeys(_changes(images.shape[1:], shape), len(images)))
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


def _changes(found: Sequence[int], wanted: Shape) -> Iterator[str]:
    if found[0] != wanted[0]:
        yield "turned to grey" if wanted[0] == 1 else "turned from grey to colour"
    if found[1] != found[2]:
        yield "cropped to the centre square"
    if min(found[1:]) != wanted[1]:
        yield f"resized to {wanted[1]} x {wanted[2]}"
