"""Formats of images: idx (MNIST, Fashion-MNIST), .mat (SVHN), .npy, .npz, and LMDB (LSUN); nothing in them is run."""

import gzip
import importlib.util
import io
import math
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from greedy_ensembles.checks import check_limit, limit, naming
from greedy_ensembles.data.image_set import Bytes

_UNSIGNED_BYTES = 8
_MOST_DIMENSIONS = 8
#: By version of numpy's format what reads its header, of which numpy takes no more than so many bytes.
_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_LONGEST_HEADER = 10_000
_IMAGES, _LABELS = ("x", "images", "image", "data", "arr_0"), ("y", "labels", "label", "arr_1")

Numbers = npt.NDArray[Any]


def read_idx(path: Path) -> Bytes:
    """Return the array of an idx file: a header of big-endian sizes, then unsigned bytes; `path` may end in .gz."""
    with naming(path, "is damaged"), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start = file.read(4)
        if len(start) < 4 or start[:2] != b"\0\0":
            raise ValueError(f"it is not an idx file: it starts with {start.hex(' ') or 'nothing'}")
        kind, dimensions = start[2], start[3]
        if kind != _UNSIGNED_BYTES:
            raise ValueError(f"it holds idx type {kind:#04x}; only unsigned bytes (0x08) are read")
        sizes = file.read(4 * dimensions)
        if len(sizes) < 4 * dimensions or dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"its header promises {dimensions} dimensions")
        shape = tuple(int.from_bytes(sizes[at : at + 4], "big") for at in range(0, len(sizes), 4))
        expected = math.prod(shape)
        check_limit("expanded", expected, f"its shape is {shape}", path.stat().st_size)
        content = file.read(expected + 1)
        if len(content) != expected:
            more = " or more" if len(content) > expected else ""
            raise ValueError(f"{len(content):,} bytes{more} where shape {shape} needs {expected:,}")
        return np.frombuffer(content, np.uint8).reshape(shape).copy()


def read_idx_pair(images: Path, labels: Path) -> tuple[Bytes, Bytes]:
    """Return (images (n, 1, height, width), labels (n,)) of two idx files."""
    pixels, targets = read_idx(images), read_idx(labels)
    if pixels.ndim != 3 or targets.ndim != 1:
        raise ValueError(f"{images} and {labels} have {pixels.ndim} and {targets.ndim} dimensions, expected 3 and 1")
    return pixels[:, None], targets


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of a .mat file: X (height, width, channels, n) and y (n, 1); the digit 0 is called 10."""
    with naming(path, "is not a readable .mat file with X and y"):
        arrays = dict(_matrices(path.read_bytes(), path.stat().st_size))
        if not {"X", "y"} <= arrays.keys():
            raise ValueError(f"it holds {', '.join(map(repr, arrays)) or 'nothing'}")
        images, labels = arrays["X"], arrays["y"].ravel()
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3 or len(labels) != images.shape[3]:
        raise ValueError(f"{path} holds X of {images.dtype} {images.shape} and {len(labels)} labels")
    if not np.isin(labels, np.arange(1, 11)).all():
        raise ValueError(f"{path} holds labels {labels.min()} to {labels.max()}, expected whole numbers from 1 to 10")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8)


# MATLAB's format 5, as far as SVHN needs it: numbers in real arrays, compressed or not, little-endian.
_MAT_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_NUMERIC = range(6, 16)  # classes of arrays: double, single, int8 ... uint64
_COMPLEX = 0x800


def _matrices(content: bytes, own: int) -> Iterator[tuple[str, Numbers]]:
    if len(content) < 128 or content[126:128] != b"IM" or content[125] != 1:
        raise ValueError("its header is not that of MATLAB's format 5, little-endian")
    most, total = max(limit("expanded"), own), 0
    for kind, part in _elements(memoryview(content)[128:]):
        if kind == _COMPRESSED:
            stream = zlib.decompressobj()
            part = memoryview(stream.decompress(part, most - total + 1))
            total += len(part)
            check_limit("expanded", total, "its arrays, decompressed", own)
            if not stream.eof:
                raise ValueError("a compressed array breaks off")
            ((kind, part),) = _elements(part)
        if kind == _MATRIX:
            yield _matrix(list(_elements(part)))


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, bytes) of the elements that follow each other, each with its type and length before it."""
    at = 0
    while at < len(content):
        kind, size = (int.from_bytes(content[at + i : at + i + 4], "little") for i in (0, 4))
        start = at + 8
        after = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if kind >> 16:  # up to four bytes are packed together with their length
            kind, size, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if start + size > min(after, len(content)):
            raise ValueError("an array is longer than what holds it")
        yield kind, content[start : start + size]
        at = after


def _matrix(parts: list[tuple[int, memoryview]]) -> tuple[str, Numbers]:
    """Return name and values of an array: flags, dimensions, name and numbers."""
    if [kind for kind, _ in parts[:3]] != [_UINT32, _INT32, _INT8] or len(parts[0][1]) != 8:
        raise ValueError("an array lacks flags, dimensions or name")
    name = bytes(parts[2][1]).decode("latin1")
    flags = int.from_bytes(parts[0][1][:4], "little")
    if flags & 0xFF not in _NUMERIC or flags & _COMPLEX or len(parts) != 4 or parts[3][0] not in _MAT_TYPES:
        return name, np.empty(0)  # text, cells and the like are nothing that is looked for
    shape = tuple(np.frombuffer(parts[1][1], "<i4").tolist())
    values = np.frombuffer(parts[3][1], f"<{_MAT_TYPES[parts[3][0]]}")
    if not 2 <= len(shape) <= _MOST_DIMENSIONS or min(shape) < 0:
        raise ValueError(f"{name!r} has shape {shape}")
    return name, values.reshape(shape, order="F")


def read_arrays(path: Path) -> tuple[Bytes, Any]:
    """Return (images, labels or None) of a .npy or .npz file of uint8 images, grey or colour, channels first or last.

    In an .npz they are called x and y, images and labels, or arr_0 and arr_1.
    """
    own = path.stat().st_size
    with naming(path, "is not a file of uint8 images"):
        if not zipfile.is_zipfile(path):
            return channels_first(load_numbers(path), "it"), None
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename.removesuffix(".npy").lower(): entry for entry in archive.infolist()}

            def read(names: Sequence[str]) -> tuple[str, Numbers | None]:
                name = next((name for name in names if name in entries), "")
                if not name:
                    return name, None
                with archive.open(entries[name]) as file:
                    return name, _array(file, entries[name].file_size, own)

            name, images = read(_IMAGES)
            if images is None:
                raise ValueError(f"it holds {', '.join(entries) or 'nothing'}; images are called x or images")
            images = channels_first(images, name)
            check_limit("entries", len(images), f"{name} has too many images", own)
            name, labels = read(_LABELS)
            if labels is not None and labels.dtype.kind not in "iu":
                raise ValueError(f"{name} must be whole numbers, got {labels.dtype}")
            return images, labels


def load_numbers(path: Path) -> Numbers:
    """Return what numpy.save wrote, where it is numbers; nothing is unpickled."""
    with path.open("rb") as file:
        size = path.stat().st_size
        return _array(file, size, size)


def _array(file: IO[bytes], stored: int, own: int) -> Numbers:
    """Return an array in numpy's format, out of so many bytes; `own` are those of the file on disk."""
    begin = io.BytesIO(file.read(_LONGEST_HEADER))  # a header may ask for more, and may be compressed
    if not begin.getvalue().startswith(np.lib.format.MAGIC_PREFIX):
        raise ValueError("it was not written by numpy.save or numpy.savez")
    version = np.lib.format.read_magic(begin)
    if version not in _HEADERS:
        raise ValueError("it must hold numbers in numpy's format 1 or 2")
    shape, _, dtype = _HEADERS[version](begin)
    if dtype.kind not in "biuf":
        raise ValueError(f"it must hold numbers, got {dtype}")
    if len(shape) > _MOST_DIMENSIONS or min(shape, default=0) < 0:
        raise ValueError(f"its shape is {shape}")
    needed = math.prod(shape) * dtype.itemsize
    if needed > stored:
        raise ValueError(f"it breaks off: {stored:,} bytes where shape {shape} needs {needed:,}")
    check_limit("expanded", needed, f"its shape is {shape}", own)
    file.seek(0)
    return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


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


#: Reads an LMDB folder, and writes lengths and bytes of its keys and values, so many bytes in all; with so much memory.
_LMDB = """
import contextlib, struct, sys
import lmdb
folder, left, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with contextlib.suppress(ImportError, OSError, ValueError):  # where the system has no such limit
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
with lmdb.open(folder, readonly=True, lock=False, readahead=False, max_readers=1) as database:
    with database.begin() as transaction:
        for key, content in transaction.cursor():
            left -= 16 + len(key) + len(content)
            if left < 0:
                sys.exit("it holds more than its size")
            sys.stdout.buffer.write(struct.pack("<QQ", len(key), len(content)) + key + content)
"""
#: Bytes of memory for that beside twice the file, which it maps, and copies a value of: Python and the library.
_LMDB_MEMORY = 512 << 20


def read_lmdb(path: Path) -> list[tuple[bytes, bytes]]:
    """Return keys and values of an LMDB folder, read in a process of its own: the library trusts what it reads.

    A damaged file may end that process, lead it in circles, or have it ask for memory; it cannot hold more than itself.
    """
    if importlib.util.find_spec("lmdb") is None:  # an extra: nothing else here needs it
        raise ValueError("LSUN is an LMDB database: pip install 'greedy-ensembles[lsun]' to read it")
    if not (path / "data.mdb").exists():
        raise ValueError(f"{path} is not an LMDB folder: it has no data.mdb")
    size, seconds = (path / "data.mdb").stat().st_size, limit("seconds")
    command = [sys.executable, "-c", _LMDB, str(path), str(size), str(2 * size + _LMDB_MEMORY)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        why = f"it takes more than {seconds} seconds; `with ge.limits(seconds=...):` gives it more"
        raise ValueError(f"{path} is not a readable LMDB database: {why}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its reader ended by signal {-done.returncode}"
        raise ValueError(f"{path} is not a readable LMDB database: {why}")
    items, at = [], 0
    while at < len(done.stdout):
        key, content = struct.unpack_from("<QQ", done.stdout, at)
        middle, end = at + 16 + key, at + 16 + key + content
        items.append((done.stdout[at + 16 : middle], done.stdout[middle:end]))
        at = end
    return items
