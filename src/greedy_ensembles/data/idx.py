"""The idx format of MNIST and Fashion-MNIST: a header of big-endian sizes, then bytes; plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from greedy_ensembles.data.image_set import Bytes

_UNSIGNED_BYTES = 8


def read_idx(path: Path) -> Bytes:
    """Return the array of a file of unsigned bytes; `path` may end in .gz."""
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
    """Return (images (n, 1, height, width), labels (n,)) of two files."""
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
