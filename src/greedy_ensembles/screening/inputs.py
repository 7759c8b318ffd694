"""Pictures and arrays to be predicted, in the form that an ensemble was trained on, each with a name to call it by.

A picture that cannot be read is named and left out, since a thousand others should not wait for it. A path that does
not exist, or a folder with nothing in it, is a slip of the hand, and refused before anything is computed.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from greedy_ensembles.data import ImageSet, pictures
from greedy_ensembles.data.arrays import channels_first, load_numbers, read_arrays
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.screening.form import Form, Shape


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs in order, what was done to them, and what could not be read."""

    names: tuple[str, ...]
    values: np.ndarray
    conversions: tuple[str, ...] = ()  #: in words
    unreadable: tuple[str, ...] = ()  #: why, with the name of the file


def read_inputs(paths: Sequence[Path], form: Form) -> Inputs:
    """Read picture files, folders and archives of them, and arrays (.npy, .npz)."""
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
    names: list[str] = []
    parts: list[np.ndarray] = []
    counts: Counter[str] = Counter()
    unreadable: list[str] = []
    for path in paths:
        if path.suffix in (".npy", ".npz"):
            values = _array(path, form.shape, counts)
            names += [f"{path}[{index}]" for index in range(len(values))]
            parts.append(values)
            continue
        for name, content in _files(path):
            try:
                parts.append(_picture(content, name, form.shape, counts)[None])
                names.append(name)
            except ValueError as error:
                unreadable.append(str(error))
    return Inputs(tuple(names), _joined(parts, unreadable), tuple(_in_words(counts)), tuple(unreadable))


def _joined(parts: list[np.ndarray], unreadable: list[str]) -> np.ndarray:
    if not parts:
        raise ValueError(f"there is nothing to predict: {unreadable[0] if unreadable else 'no input was named'}")
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        listed = " and ".join(sorted("x".join(map(str, shape)) for shape in shapes))
        raise ValueError(f"inputs must be of one shape, got {listed}; images are resized where the shape is known")
    return np.concatenate(parts)


def _files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of a picture, or of all pictures in a folder or archive, in order of their names."""
    if path.is_file() and pictures.is_picture(path.name):
        yield str(path), path.read_bytes()
        return
    found = sorted(name for name in pictures.names(path) if pictures.is_picture(name))
    if not found:
        raise ValueError(f"{path} holds no pictures ({', '.join(sorted(pictures.SUFFIXES))})")
    yield from ((str(path / name), content) for name, content in pictures.contents(path, found))


def _picture(content: bytes, name: str, shape: Shape | None, counts: Counter[str]) -> Bytes:
    if shape is None:
        raise ShapeUnknownError(name)
    channels, size, _ = shape
    decoded = pictures.decode(content, name, size, channels, upright=True)
    with Image.open(io.BytesIO(content)) as picture:  # readable, or it would not have been decoded
        grey = Image.getmodebase(picture.mode) == "L"
        _count(counts, (1 if grey else 3, picture.height, picture.width), shape)
    return decoded


class ShapeUnknownError(Exception):
    """A picture was given to an ensemble of which nobody knows what size it takes."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} cannot be resized, for it is not known what images the ensemble takes")


def _array(path: Path, shape: Shape | None, counts: Counter[str]) -> np.ndarray:
    """Return the inputs of a file: images of bytes if images are what is wanted, else numbers as they are."""
    images = _numbers(path) if shape is None and path.suffix == ".npy" else read_arrays(path)[0]
    if not len(images):
        raise ValueError(f"{path} holds an array of no inputs")
    if shape is None or images.shape[1:] == shape:
        return images
    for _ in range(len(images)):
        _count(counts, images.shape[1:], shape)
    return ImageSet(images, None, str(path)).with_channels(shape[0]).resized(shape[1]).images


def _numbers(path: Path) -> np.ndarray:
    try:
        with path.open("rb") as file:
            values: Any = load_numbers(file)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} is not an array of numbers: {error}") from error
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
