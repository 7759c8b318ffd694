"""The table of sets: for each, how many images were published and in which forms its files may lie in the data folder.

Published files come before the small copies in `ood/`, which are already resized, may be a part of the set or stand in
for it, and then say so in their note.
"""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from greedy_ensembles.data import cifar, formats, noise, picture_sets
from greedy_ensembles.data.image_set import ImageSet, Resize
from greedy_ensembles.data.picture_sets import Look

#: From the data folder, the split, the size asked for (None: the set's own) and how to resize pictures, to the set.
Reader = Callable[[Path, str, int | None, Resize], ImageSet]


@dataclasses.dataclass(frozen=True)
class Form:
    """One form in which a set may lie in the data folder; paths are relative to that."""

    needs: Callable[[str], Sequence[str]]  #: from a split to the paths that this form reads
    read: Reader
    note: str = ""

    def found(self, root: Path, split: str) -> bool:
        """Say whether all that this form needs for a split is there."""
        return all((root / need).exists() for need in self.needs(split))


@dataclasses.dataclass(frozen=True)
class Entry:
    """A set: `counts` says how many images each split has as published; one without forms is made, not read."""

    name: str
    title: str
    counts: dict[str, int]
    forms: tuple[Form, ...] = ()


def _entry(name: str, title: str, counts: dict[str, int], *forms: Form) -> Entry:
    return Entry(name, title, counts, forms)


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CORRUPTIONS = (
    *("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost", "gaussian_blur"),
    *("gaussian_noise", "glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate"),
    *("saturate", "shot_noise", "snow", "spatter", "speckle_noise", "zoom_blur"),
)


def _idx(folder: str, classes: tuple[str, ...], end: str) -> Form:
    def needs(split: str) -> list[str]:
        prefix = {"train": "train", "test": "t10k"}[split]
        return [f"{folder}/{prefix}-{kind}-ubyte{end}" for kind in ("images-idx3", "labels-idx1")]

    def read(root: Path, split: str, size: int | None, resize: Resize) -> ImageSet:
        files = [root / need for need in needs(split)]
        images, labels = formats.read_idx_pair(files[0], files[1])
        return ImageSet(images, labels.astype(np.int64), folder, classes, str(files[0]))

    return Form(needs, read)


def _cifar(folder: str, files: dict[str, list[str]], label_bytes: int, classes: str | tuple[str, ...]) -> Form:
    """Return the form of a folder of batches; `label_bytes` 0: python version; `classes`: the names, or their file."""

    def needs(split: str) -> list[str]:
        meta = [f"{folder}/{classes}"] if isinstance(classes, str) else []
        return [f"{folder}/{file}" for file in files[split]] + meta

    def read(root: Path, split: str, size: int | None, resize: Resize) -> ImageSet:
        paths = [root / folder / file for file in files[split]]
        parts = [cifar.read_binary(path, label_bytes) if label_bytes else cifar.read_python(path) for path in paths]
        images, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
        names = classes
        if isinstance(names, str):
            names = cifar.read_class_names(root / folder / names)
        return ImageSet(images, labels.astype(np.int64), folder, names, str(root / folder))

    return Form(needs, read)


def _corrupted(root: Path, split: str, size: int | None, resize: Resize) -> ImageSet:
    corruption, _, severity = split.partition("/")
    folder = root / "CIFAR-10-C"
    images, labels = cifar.read_corrupted(folder, corruption, int(severity) if severity else None)
    return ImageSet(images, labels.astype(np.int64), "cifar10c", _CIFAR10, str(folder / f"{corruption}.npy"))


def _svhn(root: Path, split: str, size: int | None, resize: Resize) -> ImageSet:
    path = root / "svhn" / f"{split}_32x32.mat"
    images, labels = formats.read_svhn(path)
    return ImageSet(images, labels.astype(np.int64), "svhn", _DIGITS, str(path))


def _pictures(read: Callable[[Path, Look], picture_sets.Read], look: Look, *places: str) -> tuple[Form, ...]:
    """Return the forms of a set of pictures, in a folder or archive at one of some places."""

    def form(place: str) -> Form:
        def read_place(root: Path, split: str, asked: int | None, resize: Resize) -> ImageSet:
            wanted = dataclasses.replace(look, size=asked or look.size, resize=resize)
            images, labels, classes, note = read(root / place, wanted)
            return ImageSet(images, labels, place, classes, str(root / place), note)

        return Form(lambda split: [place], read_place)

    return tuple(form(place) for place in places)


def _copy(name: str, note: str = "") -> Form:
    """Return the form of a small copy in `ood/`."""
    place = f"ood/{name}.npz"

    def read(root: Path, split: str, size: int | None, resize: Resize) -> ImageSet:
        images, labels = formats.read_arrays(root / place)
        stored = images.shape[2]
        again = f"resized from {stored}, not from the original" if size not in (None, stored) else ""
        copied = ImageSet(images, labels, name, None, str(root / place), again)
        return copied.with_note("a small copy, cropped and antialiased already") if resize == "whole" else copied

    return Form(lambda split: [place], read, note)


#: Labelled alphabet/character, and made white on black.
_OMNIGLOT = partial(picture_sets.read_folder, depth=2), Look(28, channels=1, invert=True)
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}

_ENTRIES = (
    _entry(
        "mnist",
        "MNIST, handwritten digits",
        {"train": 60_000, "test": 10_000},
        _idx("mnist", _DIGITS, ""),
        _idx("mnist", _DIGITS, ".gz"),
    ),
    _entry(
        "fashion_mnist",
        "Fashion-MNIST, clothes",
        {"train": 60_000, "test": 10_000},
        _idx("fashion_mnist", _CLOTHES, ""),
        _idx("fashion_mnist", _CLOTHES, ".gz"),
    ),
    _entry(
        "cifar10",
        "CIFAR-10, objects in 10 classes",
        {"train": 50_000, "test": 10_000},
        _cifar(
            "cifar-10-batches-bin",
            {split: [f"{file}.bin" for file in files] for split, files in _BATCHES.items()},
            1,
            _CIFAR10,
        ),
        _cifar("cifar-10-batches-py", _BATCHES, 0, _CIFAR10),
    ),
    _entry(
        "cifar100",
        "CIFAR-100, objects in 100 classes",
        {"train": 50_000, "test": 10_000},
        _cifar("cifar-100-binary", {"train": ["train.bin"], "test": ["test.bin"]}, 2, "fine_label_names.txt"),
        _cifar("cifar-100-python", {"train": ["train"], "test": ["test"]}, 0, "meta"),
    ),
    _entry(
        "svhn",
        "SVHN, cropped house numbers (non-commercial use)",
        {"train": 73_257, "test": 26_032},
        Form(lambda split: [f"svhn/{split}_32x32.mat"], _svhn),
    ),
    _entry(
        "cifar10c",
        "CIFAR-10-C, the test set of CIFAR-10 corrupted; splits are corruptions, or corruption/severity",
        dict.fromkeys(_CORRUPTIONS, 50_000),
        Form(
            lambda split: [f"CIFAR-10-C/{split.partition('/')[0]}.npy", "CIFAR-10-C/labels.npy"],
            _corrupted,
        ),
    ),
    _entry(
        "omniglot",
        "Omniglot, evaluation alphabets, white on black",
        {"test": 13_180},
        *_pictures(*_OMNIGLOT, "omniglot/images_evaluation", "omniglot/images_evaluation.zip"),
        _copy("omniglot"),
    ),
    _entry(
        "dtd",
        "Describable Textures 1.0.1 (for research)",
        {"test": 5_640},
        *_pictures(picture_sets.read_folder, Look(32), "dtd/images", "dtd-r1.0.1.tar.gz"),
        _copy("dtd"),
    ),
    _entry(
        "tiny_imagenet",
        "Tiny ImageNet, validation set",
        {"test": 10_000},
        *_pictures(picture_sets.read_tiny_imagenet, Look(32), "tiny-imagenet-200", "tiny-imagenet-200.zip"),
        _copy("tiny_imagenet"),
    ),
    _entry(
        "places365",
        "Places365, the first 10,000 of the test set in alphabetical order",
        {"test": 10_000},
        *_pictures(picture_sets.read_places, Look(32), "places365/test_256", "places365/test_256.tar"),
        _copy("places", "stand-in: MIT Mini-Places validation"),
    ),
    _entry(
        "lsun",
        "LSUN scenes, test set",
        {"test": 10_000},
        *_pictures(picture_sets.read_lsun, Look(32), "lsun/test_lmdb"),
        _copy("lsun", "stand-in: 9 of LSUN's 10 classes out of MIT Mini-Places"),
    ),
    *(Entry(kind, f"noise: {kind}, made when asked for", {"test": noise.COUNT}) for kind in noise.KINDS),
)

SETS: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
