"""Small formats of images: idx (MNIST, Fashion-MNIST), .mat (SVHN), and .npy and .npz; nothing in them is executed."""

import gzip
import math
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from greedy_ensembles.data.image_set import Bytes

_UNSIGNED_BYTES = 8
_IMAGES, _LABELS = ("x", "images", "image", "data", "arr_0"), ("y", "labels", "label", "arr_1")


def read_idx(path: Path) -> Bytes:
    """Return the array of an idx file: a header of big-endian sizes, then unsigned bytes; `path` may end in .gz."""
    content = _content(path)
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(f"{path} is not an idx file: it starts with {content[:4].hex(' ') or 'nothing'}")
    kind, dimensions = content[2], content[3]
    if kind != _UNSIGNED_BYTES:
        raise ValueError(f"{path} holds idx type {kind:#04x}; only unsigned bytes (0x08) are read")
    start = 4 + 4 * dimensions
    shape = tuple(int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise ValueError(f"{path} is damaged: {len(content)} bytes where shape {shape} needs {expected}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_idx_pair(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
    """Return (images (n, 1, height, width), labels (n,)) of two idx files."""
    pixels, targets = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or targets.ndim != 1:
        raise ValueError(f"{images} and {labels} have {pixels.ndim} and {targets.ndim} dimensions, expected 3 and 1")
    return pixels[:, None], targets


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of a .mat file: X (height, width, channels, n) and y (n, 1); the digit 0 is called 10."""
    from scipy.io import loadmat  # slow to import

    with path.open("rb") as file:
        try:
            content = loadmat(file, variable_names=["X", "y"])
            images, labels = content["X"], content["y"].ravel()
        except Exception as error:  # scipy raises whatever the bytes lead it to
            raise ValueError(f"{path} is not a readable .mat file with X and y: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3 or len(labels) != images.shape[3]:
        raise ValueError(f"{path} holds X of {images.dtype} {images.shape} and {len(labels)} labels")
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise ValueError(f"{path} holds labels {labels.min()} to {labels.max()}, expected 1 to 10")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8)


def read_arrays(path: Path) -> tuple[Bytes, Any]:
    """Return (images, labels or None) of a .npy or .npz file of uint8 images, grey or colour, channels first or last.

    In an .npz they are called x and y, images and labels, or arr_0 and arr_1.
    """
    with path.open("rb") as file:
        try:
            content = load_numbers(file)
            if isinstance(content, np.ndarray):
                return channels_first(content, "it"), None
            with content as arrays:
                return _by_name(arrays)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is not a file of uint8 images: {error}") from error


def load_numbers(file: IO[bytes]) -> Any:
    """Return what `numpy.load` does, without its advice to unpickle what it cannot read."""
    begin = file.read(6)
    file.seek(0)
    if begin[:2] != b"PK" and begin != b"\x93NUMPY":
        raise ValueError("it was not written by numpy.save or numpy.savez")
    return np.load(file, allow_pickle=False)


def _by_name(arrays: Any) -> tuple[Bytes, Any]:
    names = {name.lower(): name for name in arrays.files}
    images = next((names[name] for name in _IMAGES if name in names), None)
    labels = next((names[name] for name in _LABELS if name in names), None)
    if images is None:
        raise ValueError(f"it holds {', '.join(arrays.files) or 'nothing'}; images are called x or images")
    return channels_first(arrays[images], images), arrays[labels] if labels else None


def channels_first(images: Any, name: str) -> Bytes:
    """Return (n, h, w), (n, h, w, channels) or (n, channels, h, w) as the last of these.

    >>> [channels_first(np.zeros(s, np.uint8), "x").shape for s in ((2, 8, 9), (2, 8, 9, 3), (2, 3, 8, 9))]
    [(2, 1, 8, 9), (2, 3, 8, 9), (2, 3, 8, 9)]
    """
    if images.dtype != np.uint8:
        raise ValueError(f"{name} must be uint8 (0 to 255), got {images.dtype}")
    if images.ndim == 3:
        return np.ascontiguousarray(images[:, None])
    if images.ndim == 4 and images.shape[3] in (1, 3):
        return np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return np.ascontiguousarray(images)
    raise ValueError(f"{name} must be (n, height, width), with 1 or 3 channels last or second, got {images.shape}")
