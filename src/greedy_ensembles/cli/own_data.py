"""Data of one's own on the command line: a folder of classes, an array or a table, and its three parts.

Members learn from one part, a second selects each member's best epoch (validation), and a third is held out of both
(test): `evaluate` judges, and `calibrate` finds its threshold, on inputs that had no say in training.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greedy_ensembles.cli.app import say

if TYPE_CHECKING:
    from greedy_ensembles.data import LabelledSet
    from greedy_ensembles.flags import Shape
    from greedy_ensembles.training import Recipe

TABLES = (".csv", ".tsv")
ARRAYS = (".npy", ".npz")
#: What pictures become unless --shape says otherwise, and the network that then learns from them.
SHAPE, MODEL = (3, 32, 32), "PreResNet8"
VALIDATION, TEST = 0.1, 0.2


@dataclasses.dataclass(frozen=True, eq=False)
class OwnData:
    """The three parts; `validation` may be a share of `train`, and `test` is None where nothing was held out."""

    train: "LabelledSet"
    validation: "LabelledSet | float"
    test: "LabelledSet | None"
    pictures: bool  #: whether it came from picture files

    def recipe(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return how members are trained: as tables are, or as a few hundred to some thousand small images are."""
        from greedy_ensembles.data import TableSet
        from greedy_ensembles.estimator import TABLE_RECIPE
        from greedy_ensembles.training import Recipe

        if isinstance(self.train, TableSet):
            scale = self.train.rows.std(axis=0)
            scale[scale == 0] = 1.0
            normalize = (self.train.rows.mean(axis=0).tolist(), scale.tolist())
            return dataclasses.replace(TABLE_RECIPE, **{"normalize": normalize, **changes})
        augment = "flip_crop" if self.pictures else None  # arrays may be of digits, which a flip makes into others
        photos = Recipe(epochs=40, batch_size=32, optimizer="adamw", lr=3e-3, weight_decay=1e-2, warmup_epochs=1)
        return dataclasses.replace(photos, **{"augment": augment, **changes})

    def keep(self, folder: Path, seed: int) -> None:
        """Write into a run's folder what it held out: to be judged on, and what its epochs were selected by."""
        import torch

        from greedy_ensembles.saving import HELD_OUT, VALIDATION, write_held_out
        from greedy_ensembles.training.validate import split

        selected = self.validation
        if isinstance(selected, float | int):
            assert self.train.labels is not None  # it was trained on
            selected = self.train.take(split(torch.from_numpy(self.train.labels), selected, seed)[1].numpy())
        selected = selected.replace(name=f"{self.train.name}, validation")
        for name, part in ((HELD_OUT, self.test), (VALIDATION, selected)):
            if part is not None and len(part):
                write_held_out(folder, part, name)

    def model(self, name: str | None) -> Callable[[], Any]:
        """Return the network of that name, or the one for such data."""
        from greedy_ensembles.data import TableSet
        from greedy_ensembles.models import MLP, named

        count = len(self.train.classes or ())
        if isinstance(self.train, TableSet):
            if name not in (None, "MLP"):
                raise ValueError(f"--model {name} takes images; a table takes MLP")
            return partial(MLP, self.train.rows.shape[1], (128, 128), count)
        return named(name or MODEL, classes=count, channels=self.train.inputs.shape[1])


def read_own(
    text: str,
    *,
    shape: "Shape | None" = None,
    target: str | None = None,
    leave_out: Sequence[str] = (),
    validation: float | None = None,
    test: float | None = None,
) -> OwnData:
    """Read data of one's own and hold a part of it out.

    Args:
        text: the path, as it was typed; it becomes the name of the data.
        shape: what pictures become; None: `SHAPE`, and arrays as they are.
        target: the column of classes of a table.
        leave_out: columns of a table that are not used.
        validation: the share that selects epochs; None: the folder val, else `VALIDATION`.
        test: the share that is held out to be judged on; None: the folder test, else `TEST`. 0: nothing is.
    """
    path = Path(text).expanduser()
    table = path.suffix.lower() in TABLES
    for option, value in (("--validation", validation), ("--test", test)):
        if value is not None and not 0 <= value < 1:
            raise ValueError(f"{option} must be a share of the data, at least 0 and below 1; got {value:g}")
    if not table and (target is not None or leave_out):
        raise ValueError(f"--target and --leave-out name columns of a table (.csv), and {text} is none")
    parts = _table(path, target, leave_out, shape) if table else _images(path, shape)
    named = {
        part: each.replace(name=_name(text) + (f", {part}" if part != "train" else "")) for part, each in parts.items()
    }
    train = named["train"]
    _check_classes(train)
    for part, option, share in (("val", "--validation", validation), ("test", "--test", test)):
        if part in named and share is not None:
            raise ValueError(f"{text} has a folder {part}, so leave {option} out")
    judged = named.get("test")
    share = TEST if test is None else test
    if judged is None and share:
        try:
            train, judged = train.split(share)  # from a seed of its own: repetitions are judged on the same inputs
        except ValueError as error:
            raise ValueError(f"--test {share:g}: {error}; or hold out nothing to judge by, with --test 0") from None
        judged = judged.replace(name=f"{train.name}, held out", note="")
    default = VALIDATION if validation is None else validation
    return OwnData(train, named.get("val", default), judged, not table and path.suffix.lower() not in ARRAYS)


def _name(text: str) -> str:
    """Return the path as it was typed, as a name that no published set has."""
    from greedy_ensembles.data import SETS

    name = text.rstrip("/\\") or text
    return text if name in SETS else name


def _table(path: Path, target: str | None, leave_out: Sequence[str], shape: "Shape | None") -> "dict[str, LabelledSet]":
    from greedy_ensembles.data import read_table

    if shape is not None:
        raise ValueError(f"--shape is for images, and {path} is a table")
    if target is None:
        raise ValueError(f"--target must name the column of {path} that holds the classes")
    return {"train": read_table(path, target, leave_out=leave_out)}


def _images(path: Path, shape: "Shape | None") -> "dict[str, LabelledSet]":
    from greedy_ensembles.data import read, read_parts

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


def _check_classes(train: "LabelledSet") -> None:
    """Refuse data of one class, or with a class of which there is nothing to learn."""
    import numpy as np

    classes = train.classes or ()
    if len(classes) < 2:
        raise ValueError(f"{train.name} has one class, {', '.join(classes)}; training needs two or more")
    counts = np.bincount([] if train.labels is None else train.labels, minlength=len(classes))
    if not counts.all():
        raise ValueError(f"{train.name} has nothing to learn of class {classes[int(counts.argmin())]}")


def say_parts(own: OwnData) -> None:
    """Say on standard error what there is, and which part is for what."""
    lines = [str(own.train)]
    if isinstance(own.validation, float | int):
        lines.append(
            f"best epochs are selected on {own.validation:.0%} of these" if own.validation else "last epochs are kept"
        )
    else:
        lines.append(f"best epochs are selected on {own.validation}")
    held_out = "nothing is held out to be judged on (--test 0)"
    lines.append(held_out if own.test is None else f"judged and calibrated on {own.test}")
    say("\n".join(lines))


def read_on(text: str, run: Path) -> "LabelledSet":
    """Return labelled data to judge a run on, in its shape, and labelled by the names of its classes.

    Args:
        text: the path, as it was typed. Of a folder with parts, test is taken.
        run: the run's folder, or that of an ensemble saved from it.
    """
    from greedy_ensembles.cli.given import names_in
    from greedy_ensembles.data import read_table
    from greedy_ensembles.runs import load_run

    information = load_run(run).information
    # Not where it was trained on several arrays, nor where someone else wrote what they liked.
    data, inputs = (found if isinstance(found := information.get(key), dict) else {} for key in ("data", "inputs"))
    shape, classes = inputs.get("shape"), names_in(data, "classes")
    if not (path := Path(text).expanduser()).exists():
        raise FileNotFoundError(f"--on {text} does not exist")
    if path.suffix.lower() in TABLES:
        columns = names_in(data, "columns")
        if columns is None:
            raise ValueError(f"--on {text} is a table, and {run} was trained on none that has names of columns")
        return read_table(path, str(data.get("target")), columns=columns, classes=classes).replace(name=text)
    if not isinstance(shape, list) or len(shape) != 3:
        raise ValueError(f"--on {text} must be a table (.csv) with the columns that {run} was trained on")
    parts = _images(path, (shape[0], shape[1], shape[2]))
    found = parts.get("test", parts["train"])
    if path.suffix.lower() in ARRAYS or classes is None or found.labels is None or found.classes is None:
        return found.replace(name=text)
    if strange := sorted(set(found.classes) - set(classes)):
        raise ValueError(f"--on {text} has the class {strange[0]!r}; {run} knows {', '.join(classes)}")
    import numpy as np

    number = np.array([classes.index(name) for name in found.classes])
    return found.replace(name=text, labels=number[found.labels], classes=classes)
