"""Sets by name: `load` finds the files in the data folder, reads them, and says in a note what is not as published."""

import os
import sys
from pathlib import Path

import numpy as np

from greedy_ensembles.checks import as_path, check_choice, check_kind
from greedy_ensembles.data import formats, noise, picture_sets
from greedy_ensembles.data.image_set import ImageSet, Resize
from greedy_ensembles.data.sets import SETS, Entry, Form
from greedy_ensembles.data.sources import DIGESTS, file_digest

StrPath = str | os.PathLike[str]


def data_root(root: StrPath | None = None) -> Path:
    """Return the data folder: `root`, else what GREEDY_ENSEMBLES_DATA names, else a cache folder of the user."""
    named = root or os.environ.get("GREEDY_ENSEMBLES_DATA")
    if named:
        return as_path("root", named)
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "greedy-ensembles" / "data"


def load(
    name: str,
    split: str = "test",
    root: StrPath | None = None,
    size: int | None = None,
    channels: int | None = None,
    resize: Resize = "crop",
) -> ImageSet:
    """Return a set by name.

    Args:
        name: of the set, as `SETS` and `greedy-ensembles data list` have it.
        split: "train" or "test", where there are both; of CIFAR-10-C "fog" (all severities) or "fog/3".
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        size: height and width of the images; None: the set's own, or 32 (Omniglot: 28) where pictures come in many
            sizes.
        channels: 1 (grey) or 3 (colour); None: the set's own, and 3 for noise.
        resize: how pictures of other sizes become squares: "crop" takes the centre and is antialiased, "whole" squeezes
            all of it and is not, as the paper's code does it (where the original files are there).

    >>> load("uniform", size=8, channels=1).images.shape
    (25000, 1, 8, 8)
    """
    entry = get(name)
    check_split(entry, split)
    _look(size, channels, resize)
    if not entry.forms:
        return noise.make_noise(name, size=size or 32, channels=channels or 3)
    folder = data_root(root)
    form = find(entry, split, folder)
    if form is None:
        raise FileNotFoundError(
            f"{name} ({split}) is not in {folder}: get it with `greedy-ensembles data download {name}`, "
            "or name another data folder with root=FOLDER or GREEDY_ENSEMBLES_DATA"
        )
    known = quick_note(form, split, folder)  # before the files are read: by their hashes, where these are known
    images = form.read(folder, split, size, resize).replace(name=name)
    for note in (known, _partial(entry, split, images)):
        images = images.with_note(note)
    return _shaped(images, size, channels, resize)


def read(
    path: StrPath,
    size: int | None = None,
    channels: int | None = None,
    resize: Resize = "crop",
    *,
    unreadable: list[str] | None = None,
) -> ImageSet:
    """Return the images of any folder, zip or tar of pictures, or of any .npy or .npz of uint8 images.

    A picture's label is the folder that it lies in, if all lie in one. Pictures are turned upright as the camera says.

    Args:
        path: the folder or file.
        size: height and width to which images are resized; pictures of several sizes need it.
        channels: 1 (grey) or 3 (colour); None: those of an array, and 3 for pictures.
        resize: "crop" or "whole", as `load` has it.
        unreadable: a list that gets why pictures could not be read, which are then left out; None: the first of them
            is an error.
    """
    path, look = as_path("path", path), _look(size, channels, resize)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    if path.suffix.lower() in (".npy", ".npz"):
        images, labels = formats.read_arrays(path)
        return _shaped(ImageSet(images, labels, path.stem, None, str(path)), size, channels, resize)
    names = picture_sets.picture_names(path)
    check_kind("unreadable", [] if unreadable is None else unreadable, list, "a list")
    images, kept = picture_sets.stack(path, names, look, unreadable)
    labels, classes = picture_sets.by_folder(kept)
    note = picture_sets.left_out(names, kept)
    together = sorted({part for name in names for part in Path(name).parts[:-1]} & picture_sets.PARTS.keys())
    if len(together) > 1:
        note = "; ".join(filter(None, (note, f"{' and '.join(together)} together")))
    return ImageSet(images, labels, path.stem, classes, str(path), note)


def read_parts(
    path: StrPath,
    size: int | None = None,
    channels: int = 3,
    resize: Resize = "crop",
    *,
    unreadable: list[str] | None = None,
) -> dict[str, ImageSet]:
    """Return the parts of a folder or archive with a folder for each class: train, and val and test where they are.

    These are the folders of that name, each with the classes' folders in it; what lies in none of them is train. All
    parts have the same classes, in the same order.

    Args:
        path: the folder, zip or tar.
        size: height and width to which pictures are resized; those of several sizes need it.
        channels: 1 (grey) or 3 (colour).
        resize: "crop" or "whole", as `load` has it.
        unreadable: as `read` has it.
    """
    path, look = as_path("path", path), _look(size, channels, resize)
    check_kind("unreadable", [] if unreadable is None else unreadable, list, "a list")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    parts = picture_sets.by_part(path)
    classes = tuple(sorted(set(parts["train"].values())))
    sets = {}
    for part, labelled in parts.items():
        images, kept = picture_sets.stack(path, list(labelled), look, unreadable)
        labels = picture_sets.as_numbers((labelled[name] for name in kept), classes)
        name = path.stem if part == "train" else f"{path.stem}, {part}"
        note = picture_sets.left_out(list(labelled), kept)
        sets[part] = ImageSet(images, labels, name, classes, str(path), note)
    return sets


def get(name: str) -> Entry:
    """Return a set's entry, or raise ValueError with the nearest name."""
    check_choice("name", name, SETS)
    return SETS[name]


def find(entry: Entry, split: str, root: Path) -> Form | None:
    """Return the first form of the set that is in the data folder."""
    return next((form for form in entry.forms if form.found(root, split)), None)


def available(root: Path) -> list[tuple[Entry, str, Form]]:
    """Return (set, split, form) of all that is in the data folder."""
    pairs = ((entry, split, find(entry, split, root)) for entry in SETS.values() for split in entry.counts)
    return [(entry, split, form) for entry, split, form in pairs if form is not None]


def check_split(entry: Entry, split: str) -> None:
    """Raise ValueError unless the set has that split."""
    check_kind("split", split, str, "the name of a split")
    corruption, slash, severity = split.partition("/")
    if entry.name != "cifar10c" or not slash:
        if split not in entry.counts and len(entry.counts) == 1:
            raise ValueError(f"{entry.name} has no split {split!r}, only {next(iter(entry.counts))!r}")
        check_choice("split", split, entry.counts)
        return
    check_choice("corruption", corruption, entry.counts)
    check_choice("severity", severity, "12345")


def _look(size: int | None, channels: int | None, resize: Resize) -> picture_sets.Look:
    return picture_sets.Look(size, 3 if channels is None else channels, resize, upright=True)


def _shaped(images: ImageSet, size: int | None, channels: int | None, resize: Resize) -> ImageSet:
    images = images if size is None else images.resized(size, resize)
    return images if channels is None else images.with_channels(channels)


def quick_note(form: Form, split: str, root: Path) -> str:
    """Return what can be said against a form without reading its images: a stand-in, other bytes than published."""
    known = [need for need in form.needs(split) if need in DIGESTS]
    others = [need for need in known if file_digest(root / need, DIGESTS[need]) != DIGESTS[need]]
    notes = (form.note, f"not the published bytes of {', '.join(others)}" if others else "")
    return "; ".join(note for note in notes if note)


def _partial(entry: Entry, split: str, images: ImageSet) -> str:
    corruption, _, severity = split.partition("/")
    published = entry.counts[corruption] // (5 if severity else 1)
    if len(images) == published:
        return ""
    classes = "" if images.labels is None else f", in {len(np.unique(images.labels))} classes"
    return f"partial: {len(images):,} of {published:,} images{classes}"
