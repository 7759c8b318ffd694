"""Sets by name: the table of those that are known, in which forms their files may lie in the data folder, and `load`.

Published files come before the small copies in `ood/`, which are already resized, may be a part of the set or stand in
for it, and then say so in their note. A note also says what else is not as published: other bytes, fewer images.

A set of pictures is a rule: which files, in which order, with which labels.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from greedy_ensembles.checks import check_choice, check_kind, naming
from greedy_ensembles.data import cifar, formats, noise, picture_sets
from greedy_ensembles.data.archives import contents, file_names
from greedy_ensembles.data.download import DIGESTS, StrPath, data_root, file_digest
from greedy_ensembles.data.image_set import ImageSet, Resize, as_numbers, shaped
from greedy_ensembles.data.picture_sets import Look, Read

#: How many pictures of Places365's test set the paper takes, in alphabetical order.
PLACES_COUNT = 10_000
#: SHA-256 of the file names that the rules choose from the complete sets; `names_digest` says of what exactly.
PLACES_NAMES = "a6f7ed2280adbb15ceaeb416904f229f96b139aac11314e0a085c1713cd07a97"
TINY_IMAGENET_NAMES = "3a170e2deff29b261ff74e499f729af3bcffe23712a0e4474e603cc9945074b5"
#: From the paths, the split, the size asked for (None: the set's own) and how to resize pictures, to the images.
Reader = Callable[[list[Path], str, int | None, Resize], Read]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form in which a set may lie in the data folder."""

    needs: Callable[[str], list[str]]  #: from a split to what is read in the data folder, the first of which names it
    read: Reader
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A set: `counts` says how many images each split has as published; one without forms is made, not read."""

    name: str
    title: str
    counts: dict[str, int]
    forms: tuple[Form, ...] = ()


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CORRUPTIONS = (
    *("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_blur"),
    *("gaussian_noise", "glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate"),
    *("saturate", "shot_noise", "snow", "spatter", "speckle_noise", "zoom_blur"),
)
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_ONE_FILE = {"train": ["train"], "test": ["test"]}


def read_tiny_imagenet(path: Path, look: Look) -> Read:
    """Return the validation set in the order of its annotations, labelled by its WordNet identifiers, sorted."""
    every = file_names(path)
    tables = [name for name in every if PurePosixPath(name).name == "val_annotations.txt"]
    if len(tables) != 1:
        raise ValueError(f"{path} holds {len(tables)} files val_annotations.txt, expected one")
    ((table, content),) = contents(path, tables)
    with naming(path, f"is damaged at {table}"):
        rows = [line.split("\t")[:2] for line in content.decode("utf-8").splitlines() if line.strip()]
    folder = PurePosixPath(table).parent / "images"
    if not all(len(row) == 2 for row in rows):
        raise ValueError(f"{table} of {path} is damaged: a line has no tab")
    chosen = [str(folder / name) for name, _ in rows]
    missing = sorted(set(chosen) - set(every))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of {len(chosen)} annotated pictures, {missing[0]} among them")
    classes = tuple(sorted({identifier for _, identifier in rows}))
    labels = as_numbers((identifier for _, identifier in rows), classes)
    return picture_sets.stack(path, chosen, look)[0], labels, classes, _subset_note(chosen, TINY_IMAGENET_NAMES)


def read_places(path: Path, look: Look) -> Read:
    """Return the first pictures in alphabetical order; the published test set has no labels."""
    chosen = sorted(picture_sets.picture_names(path), key=lambda name: PurePosixPath(name).name)[:PLACES_COUNT]
    return picture_sets.stack(path, chosen, look)[0], None, None, _subset_note(chosen, PLACES_NAMES)


def read_lsun(path: Path, look: Look) -> Read:
    """Return the pictures of LSUN's test set, an LMDB folder of encoded pictures, in the order of their keys."""
    pictures = formats.read_lmdb(path)
    if not pictures:
        raise ValueError(f"{path} holds no pictures")
    decoded = (picture_sets.decode(content, str(path / key.decode("latin1")), look) for key, content in pictures)
    return picture_sets.fill(enumerate(decoded), len(pictures), path)[0], None, None, ""


def _subset_note(chosen: list[str], recorded: str) -> str:
    """Return a note unless the chosen files are those that the rule chooses from the complete set."""
    return "" if names_digest(chosen) == recorded else "not the recorded choice of files"


def names_digest(pictures: Iterable[str]) -> str:
    """Return the SHA-256 of file names (without folders) in their order: what a rule chose, whatever the pixels."""
    return hashlib.sha256("".join(f"{PurePosixPath(name).name}\n" for name in pictures).encode()).hexdigest()


def _idx(folder: str, classes: tuple[str, ...]) -> tuple[Form, ...]:
    def form(end: str) -> Form:
        def needs(split: str) -> list[str]:
            prefix = {"train": "train", "test": "t10k"}[split]
            return [f"{folder}/{prefix}-{kind}-ubyte{end}" for kind in ("images-idx3", "labels-idx1")]

        return Form(needs, lambda paths, *_: (*formats.read_idx_pair(*paths), classes, ""))

    return form(""), form(".gz")


def _cifar(folder: str, files: dict[str, list[str]], label_bytes: int, classes: str | tuple[str, ...]) -> Form:
    """Return the form of a folder of batches; `label_bytes` 0: python version; `classes`: the names, or their file."""

    def needs(split: str) -> list[str]:
        batches = [f"{file}.bin" if label_bytes else file for file in files[split]]
        return [folder, *(f"{folder}/{file}" for file in batches + [classes] * isinstance(classes, str))]

    def read(paths: list[Path], *_: object) -> Read:
        batches = paths[1:]
        names = cifar.read_class_names(batches.pop()) if isinstance(classes, str) else classes
        parts = [cifar.read_binary(path, label_bytes) if label_bytes else cifar.read_python(path) for path in batches]
        images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        return images, labels, names, ""

    return Form(needs, read)


def _corrupted(paths: list[Path], split: str, *_: object) -> Read:
    corruption, severity = split.partition("/")[::2]
    images, labels = cifar.read_corrupted(paths[0].parent, corruption, int(severity) if severity else None)
    return images, labels, _CIFAR10, ""


def _pictures(
    places: Sequence[str],
    copy: str,
    note: str = "",
    read: Callable[[Path, Look], Read] = picture_sets.read_folder,
    look: Look = Look(32),  # noqa: B008 (frozen)
) -> tuple[Form, ...]:
    """Return the forms of a set of pictures: a folder or archive at one of some places; a small copy, with its note."""

    def read_place(paths: list[Path], split: str, size: int | None, resize: Resize) -> Read:
        return read(paths[0], dataclasses.replace(look, size=size or look.size, resize=resize))

    def read_copy(paths: list[Path], split: str, size: int | None, resize: Resize) -> Read:
        images, labels = formats.read_arrays(paths[0])
        stored = images.shape[2]
        notes = [f"resized from {stored}, not from the original"] if size not in (None, stored) else []
        notes += ["a small copy, cropped and antialiased already"] if resize == "whole" else []
        return images, labels, None, "; ".join(notes)

    forms = (Form(lambda split, place=place: [place], read_place) for place in places)  # type: ignore[misc]
    return *forms, Form(lambda split: [f"ood/{copy}.npz"], read_copy, note)


_ENTRIES = (
    Entry("mnist", "MNIST, handwritten digits", {"train": 60_000, "test": 10_000}, _idx("mnist", _DIGITS)),
    Entry(
        "fashion_mnist", "Fashion-MNIST, clothes", {"train": 60_000, "test": 10_000}, _idx("fashion_mnist", _CLOTHES)
    ),
    Entry(
        "cifar10",
        "CIFAR-10, objects in 10 classes",
        {"train": 50_000, "test": 10_000},
        (_cifar("cifar-10-batches-bin", _BATCHES, 1, _CIFAR10), _cifar("cifar-10-batches-py", _BATCHES, 0, _CIFAR10)),
    ),
    Entry(
        "cifar100",
        "CIFAR-100, objects in 100 classes",
        {"train": 50_000, "test": 10_000},
        (
            _cifar("cifar-100-binary", _ONE_FILE, 2, "fine_label_names.txt"),
            _cifar("cifar-100-python", _ONE_FILE, 0, "meta"),
        ),
    ),
    Entry(
        "svhn",
        "SVHN, cropped house numbers (non-commercial use)",
        {"train": 73_257, "test": 26_032},
        (
            Form(
                lambda split: [f"svhn/{split}_32x32.mat"],
                lambda paths, *_: (*formats.read_svhn(paths[0]), _DIGITS, ""),
            ),
        ),
    ),
    Entry(
        "cifar10c",
        "CIFAR-10-C, the test set of CIFAR-10 corrupted; splits are corruptions, or corruption/severity",
        dict.fromkeys(_CORRUPTIONS, 50_000),
        (Form(lambda split: [f"CIFAR-10-C/{split.partition('/')[0]}.npy", "CIFAR-10-C/labels.npy"], _corrupted),),
    ),
    Entry(
        "omniglot",
        "Omniglot, evaluation alphabets, white on black",
        {"test": 13_180},
        _pictures(
            ("omniglot/images_evaluation", "omniglot/images_evaluation.zip"),
            "omniglot",
            read=partial(picture_sets.read_folder, depth=2),  # labelled alphabet/character
            look=Look(28, channels=1, invert=True),
        ),
    ),
    Entry(
        "dtd",
        "Describable Textures 1.0.1 (for research)",
        {"test": 5_640},
        _pictures(("dtd/images", "dtd-r1.0.1.tar.gz"), "dtd"),
    ),
    Entry(
        "tiny_imagenet",
        "Tiny ImageNet, validation set",
        {"test": 10_000},
        _pictures(("tiny-imagenet-200", "tiny-imagenet-200.zip"), "tiny_imagenet", read=read_tiny_imagenet),
    ),
    Entry(
        "places365",
        "Places365, the first 10,000 of the test set in alphabetical order",
        {"test": 10_000},
        _pictures(
            ("places365/test_256", "places365/test_256.tar"),
            "places",
            "stand-in: MIT Mini-Places validation",
            read_places,
        ),
    ),
    Entry(
        "lsun",
        "LSUN scenes, test set",
        {"test": 10_000},
        _pictures(
            ("lsun/test_lmdb",),
            "lsun",
            "stand-in: 9 of LSUN's 10 classes out of MIT Mini-Places",
            read_lsun,
        ),
    ),
    *(Entry(kind, f"noise: {kind}, made when asked for", {"test": noise.COUNT}) for kind in noise.KINDS),
)

SETS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


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
    Look(size, 3 if channels is None else channels, resize)  # which checks them
    if not entry.forms:
        return noise.make_noise(name, size=size or 32, channels=channels or 3)
    folder = data_root(root)
    form = find(entry, split, folder)
    if form is None:
        raise FileNotFoundError(
            f"{name} ({split}) is not in {folder}: get it with `greedy-ensembles data download {name}`, "
            "or name another data folder with root=FOLDER or GREEDY_ENSEMBLES_DATA"
        )
    paths = [folder / need for need in form.needs(split)]
    known = quick_note(form, split, folder)  # before the files are read: by their hashes, where these are known
    pixels, labels, classes, note = form.read(paths, split, size, resize)
    images = shaped(ImageSet(pixels, labels, name, classes, str(paths[0]), note), size, channels, resize)
    return images.with_note(known).with_note(_partial(entry, split, images))


def get(name: str) -> Entry:
    """Return a set's entry, or raise ValueError with the nearest name."""
    check_choice("name", name, SETS)
    return SETS[name]


def find(entry: Entry, split: str, root: Path) -> Form | None:
    """Return the first form of the set that is in the data folder."""
    return next((form for form in entry.forms if all((root / need).exists() for need in form.needs(split))), None)


def available(root: Path) -> list[tuple[Entry, str, Form]]:
    """Return (set, split, form) of all that is in the data folder."""
    pairs = ((entry, split, find(entry, split, root)) for entry in SETS.values() for split in entry.counts)
    return [(entry, split, form) for entry, split, form in pairs if form is not None]


def check_split(entry: Entry, split: str) -> None:
    """Raise ValueError unless the set has that split."""
    check_kind("split", split, str, "the name of a split")
    first, slash, severity = split.partition("/")
    if slash and entry.name == "cifar10c":
        check_choice("severity", severity, "12345")
        split = first
    check_choice(f"split of {entry.name}", split, entry.counts)


def quick_note(form: Form, split: str, root: Path) -> str:
    """Return what can be said against a form without reading its images: a stand-in, other bytes than published."""
    known = [need for need in form.needs(split) if need in DIGESTS]
    others = [need for need in known if file_digest(root / need, DIGESTS[need]) != DIGESTS[need]]
    notes = (form.note, f"not the published bytes of {', '.join(others)}" if others else "")
    return "; ".join(note for note in notes if note)


def _partial(entry: Entry, split: str, images: ImageSet) -> str:
    first, _, severity = split.partition("/")
    published = entry.counts[first] // (len(cifar.SEVERITIES) if severity else 1)
    if len(images) == published:
        return ""
    classes = "" if images.labels is None else f", in {len(np.unique(images.labels))} classes"
    return f"partial: {len(images):,} of {published:,} images{classes}"
