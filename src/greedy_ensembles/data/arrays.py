"""Images in .npy and .npz files: uint8, grey or colour, channels first or last; nothing in them is executed."""

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from greedy_ensembles.data.image_set import Bytes

_IMAGES, _LABELS = ("x", "images", "image", "data", "arr_0"), ("y", "labels", "label", "arr_1")


def read_arrays(path: Path) -> tuple[Bytes, Any]:
    """Return (images, labels or None) of a file; in an .npz they are called x and y, images and labels, or arr_0."""
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
