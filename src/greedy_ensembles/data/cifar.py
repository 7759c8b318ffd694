"""CIFAR-10 and CIFAR-100, in the binary and in the python version, and the corrupted CIFAR-10-C.

The python version is pickles, and a pickle may run anything. Here it may not: every name that a pickle asks for is
either one of the few that arrays need, and then gets a stand-in that merely records what it was given, or is refused.
numpy's own code never sees the pickle; opcodes that could fill the memory are refused before it is read.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles.checks import check_choice, check_limit, limit, naming
from greedy_ensembles.data.formats import load_numbers
from greedy_ensembles.data.image_set import Bytes

PIXELS = 3 * 32 * 32
SEVERITIES = (1, 2, 3, 4, 5)
_HEAVIEST = 64  # what a tuple holds, and what that holds; arrays have shapes and states of less than ten
_OPCODES = {
    *("PROTO", "FRAME", "STOP", "MARK", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "NONE", "NEWTRUE", "NEWFALSE"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
}


def read_binary(path: Path, label_bytes: int) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of a .bin file: rows of labels (CIFAR-100: coarse, then fine) and pixels."""
    content = np.fromfile(path, np.uint8)
    row = label_bytes + PIXELS
    if content.size == 0 or content.size % row:
        raise ValueError(f"{path} is damaged: {content.size} bytes is not a multiple of {row}")
    rows = content.reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, label_bytes - 1]


def read_python(path: Path) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of a pickled batch; the fine labels where there are two kinds."""
    batch = load_pickle(path)
    data, labels = batch.get("data"), batch.get("fine_labels", batch.get("labels"))
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != PIXELS:
        raise ValueError(f"{path} is not a CIFAR batch: it has no data of {PIXELS} bytes an image")
    if not isinstance(labels, list) or not all(isinstance(label, int) and 0 <= label < 256 for label in labels):
        raise ValueError(f"{path} is not a CIFAR batch: it has no list of labels")
    return data.reshape(-1, 3, 32, 32), np.array(labels, np.uint8)


def read_class_names(path: Path) -> tuple[str, ...]:
    """Return the names of the (fine) classes out of a meta file of the python version or a text file."""
    if path.suffix == ".txt":
        with naming(path, "is not a list of names"):
            return tuple(path.read_text(encoding="utf-8").split())
    names = load_pickle(path).get("fine_label_names")
    if not isinstance(names, list) or not all(isinstance(name, (str, bytes)) for name in names):
        raise ValueError(f"{path} holds no list of names called fine_label_names")
    return tuple(name.decode() if isinstance(name, bytes) else name for name in names)


def read_corrupted(folder: Path, corruption: str, severity: int | None) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of one corruption of CIFAR-10-C, at one severity (1 to 5) or, with None, at all."""
    there = sorted(path.stem for path in folder.glob("*.npy") if path.stem != "labels")
    check_choice("corruption", corruption, there)
    file = folder / f"{corruption}.npy"
    with naming(f"{file} or labels.npy", "is damaged"):
        images = np.load(file, mmap_mode="r", allow_pickle=False)
        labels = load_numbers(folder / "labels.npy")
        if labels.dtype.kind not in "iu":
            raise ValueError("labels must be whole numbers")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3 or labels.shape != images.shape[:1]:
        raise ValueError(f"{file} is {images.dtype} {images.shape}, its labels {labels.shape}")
    if severity is not None:
        if severity not in SEVERITIES:
            raise ValueError(f"severity must be one of 1 to 5, got {severity!r}")
        if len(images) % len(SEVERITIES):
            raise ValueError(f"{file} holds {len(images):,} images, which are not as many at each of 5 severities")
        each = len(images) // len(SEVERITIES)
        part = slice((severity - 1) * each, severity * each)  # the file holds the same images five times, mildest first
        images, labels = images[part], labels[part]
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels


def load_pickle(path: Path) -> dict[str, Any]:
    """Return what a pickled dict of lists, bytes, numbers and uint8 arrays holds; refuse any other pickle."""
    content = path.read_bytes()
    with naming(path, "is refused as a pickle of arrays"):
        _check_opcodes(content)
        batch = _ArraysOnly(content).load()
        if not isinstance(batch, dict):
            raise ValueError(f"it is a {type(batch).__name__}, no dict")
        return {_text(key): _array(value) if isinstance(value, _Record) else value for key, value in batch.items()}


def _check_opcodes(content: bytes) -> None:
    """Refuse opcodes that no such pickle has, too many of them, and memory slots beyond the next (allocated at once).

    Tuples are weighed as if what they share were written out: a few bytes can nest them so that to hash one as a key
    takes forever. The stack is followed as the unpickler will, by how many things each opcode takes from it.
    """
    stack: list[int | None] = []  # weights; None: a mark
    memo: dict[int, int] = {}
    most = limit("opcodes")
    for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        name = opcode.name
        if name not in _OPCODES:
            raise pickle.UnpicklingError(f"it uses {name}")
        if count > most:
            check_limit("opcodes", count, "it has too many opcodes")
        if name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            slot = len(memo) if name == "MEMOIZE" else int(argument or 0)
            if not 0 <= slot <= count:
                raise pickle.UnpicklingError(f"it asks for memory slot {argument}")
            memo[slot] = stack[-1] or 0
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo[int(argument or 0)])
        else:
            taken = _take(stack, opcode.stack_before)
            weight = 1 + sum(taken) if "TUPLE" in name else 1
            if weight > _HEAVIEST:
                raise pickle.UnpicklingError("its tuples are nested too deep")
            stack.extend(None if kind is pickletools.markobject else weight for kind in opcode.stack_after)


def _take(stack: list[int | None], before: list[pickletools.StackObject]) -> list[int]:
    """Take from the stack what an opcode takes: so many things, or all down to the last mark and some below it."""
    taken: list[int | None] = []
    if pickletools.markobject in before:
        while (last := stack.pop()) is not None:
            taken.append(last)
        before = before[: before.index(pickletools.markobject)]
    taken += [stack.pop() for _ in before]
    return [weight or 0 for weight in taken]


def _text(key: object) -> str:
    if not isinstance(key, (str, bytes)):
        raise ValueError(f"it has a key {key!r}")
    return key.decode("latin1") if isinstance(key, bytes) else key


class _Record:
    """What a pickle built in the place of an array or a type of numbers: arguments and state, never looked into."""

    def __init__(self, kind: str, arguments: tuple[Any, ...]) -> None:
        self.kind = kind
        self.arguments = arguments
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Maker:
    """What a pickle gets for a permitted name: callable, without attributes that it could set."""

    __slots__ = ("_kind", "_unpickler")
    _kind: str
    _unpickler: "_ArraysOnly"

    def __init__(self, kind: str, unpickler: "_ArraysOnly") -> None:
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_unpickler", unpickler)

    def __call__(self, *arguments: Any) -> Any:
        if self._kind == "bytes":  # how Python 3 writes bytes in protocol 2
            text, encoding = arguments
            if encoding not in ("latin1", b"latin1") or not isinstance(text, str):
                raise pickle.UnpicklingError("it has bytes in an encoding other than latin1")
            self._unpickler.left -= len(text)
            if self._unpickler.left < 0:
                raise pickle.UnpicklingError("it makes more bytes of a text than it has")
            return text.encode("latin1")
        return _Record(self._kind, arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError("it changes what it was lent")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("it changes what it was lent")


class _ArraysOnly(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self.left = len(content)  # bytes that texts may become: one that is shared could become any number

    def find_class(self, module: str, name: str) -> Any:
        kind = {
            ("numpy.core.multiarray", "_reconstruct"): "array",
            ("numpy._core.multiarray", "_reconstruct"): "array",
            ("numpy", "ndarray"): "array type",
            ("numpy", "dtype"): "dtype",
            ("_codecs", "encode"): "bytes",
        }.get((module, name))
        if kind is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _Maker(kind, self)


def _array(record: _Record) -> Bytes:
    """Return the array of a record whose state is numpy's: version, shape, dtype, Fortran order, bytes."""
    state = record.state
    if record.kind != "array" or not isinstance(state, tuple) or len(state) != 5:
        raise ValueError(f"it holds a {record.kind} without an array's state")
    _, shape, dtype, fortran, content = state
    if not isinstance(dtype, _Record) or dtype.kind != "dtype" or dtype.arguments[:1] not in ((b"u1",), ("u1",)):
        raise ValueError("it holds an array of something other than unsigned bytes")
    if not isinstance(content, bytes) or not isinstance(shape, tuple) or not all(type(n) is int for n in shape):
        raise ValueError("it holds an array without its bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")
