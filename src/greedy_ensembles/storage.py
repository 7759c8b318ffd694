"""Files that are either whole or absent, and that show when they were damaged.

Everything this package keeps is safetensors or JSON, so that loading executes nothing. Each file is written to a
temporary name, flushed to disk and renamed: a kill at any instant leaves the old file or the new one. Each carries a
SHA-256 of itself, in the safetensors header or as a field of the JSON, checked whenever it is read.
"""

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

#: Version of the layout of saved ensembles and run folders; version 0.1 wrote 1, which is read too.
FORMAT = 2

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CHECKSUM = "sha256"
_BLANK = "0" * 64
_METADATA = "__metadata__"  # as safetensors has it
_LONGEST = 40  # characters of a name that temporary ones repeat, since file systems bound them
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
_MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]


class FolderError(ValueError):
    """A folder or file cannot be used as it is: damaged, in use, or of another configuration. Nothing was changed."""


def damaged(path: Path, why: str, remedy: str = "") -> FolderError:
    """Return the error for a file that does not hold what was written to it."""
    remedy = remedy or "Restore it from a copy, or start anew in another folder"
    return FolderError(f"{path} is damaged ({why}). {remedy}; nothing was changed.")


@contextmanager
def reading(path: Path, why: str, remedy: str = "") -> Iterator[None]:
    """Refuse a file that cannot be opened, or whose content makes its reader fail, in which case `why` is what it is.

    The failures of memory and of devices are not the file's.
    """
    try:
        yield
    except FolderError:
        raise
    except FileNotFoundError:
        raise damaged(path, "it is missing", remedy) from None
    except PermissionError:
        raise FolderError(f"{path} cannot be read: permission denied; nothing was changed") from None
    except OSError as error:  # of the disk: what is there may be sound, and nobody is told to delete it
        raise damaged(path, f"it cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise damaged(path, f"{why}: {e!s:.200}", remedy) from None


def require(holds: bool, path: Path, why: str, remedy: str = "") -> None:
    """Refuse a file that says something which was never written: a right checksum does not make it ours."""
    if not holds:
        raise damaged(path, why, remedy)


def temporary_path(path: Path) -> Path:
    """Return a name beside a path for what is to become it; no other process or thread has the same."""
    return path.with_name(f".{path.name[:_LONGEST]}.{_MACHINE}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left in a folder when they were to write the file or folder `name` in it.

    Those of other machines cannot be told from live ones. None: everything, in a folder that is locked against others.
    """
    for item in folder.iterdir() if folder.is_dir() else ():
        found = _TEMPORARY.fullmatch(item.name)
        if found is None or (name is not None and found["name"] != name[:_LONGEST]):
            continue
        if name is not None and not (found["machine"] == _MACHINE and _is_gone(int(found["process"]))):
            continue
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)


def _is_gone(process: int) -> bool:
    if os.name == "nt":  # where asking would end it
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to, so that a kill, or a disk that fills up, leaves either the old content or the new."""
    clear_leftovers(path.parent, path.name)
    temporary = temporary_path(path)
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def not_written(path: Path, error: OSError) -> OSError:
    """Return an error that names what could not be written, and what to do."""
    remedy = "; make room and run again" if error.errno in _NO_ROOM else ""
    return OSError(error.errno, f"could not write {path}: {error.strerror}. What was saved before is intact{remedy}")


def write_bytes(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file, whole or not at all."""
    with _replacing(path) as file:
        file.writelines(parts)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object together with its checksum."""
    marked = {**content, _CHECKSUM: _digest_of_json(content)}
    write_bytes(path, [json.dumps(marked, indent=2).encode() + b"\n"])


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote, or refuse it."""
    with reading(path, "it is truncated or not JSON of ours"):
        content: dict[str, Any] = json.loads(path.read_bytes())
        intact = content.pop(_CHECKSUM) == _digest_of_json(content)
    require(intact, path, "its content does not match its checksum")
    return content


def check_contained(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it, or a pipe or device in it, before anything there is opened.

    Someone else's folder could otherwise have other files read in place of its own, or overwritten by a run that goes
    on. The folder itself may be a link.
    """
    if not folder.is_dir():
        raise FolderError(f"{folder} {'is a file, and not a folder' if folder.exists() else 'does not exist'}")
    root = Path(os.path.realpath(folder))
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            target = Path(os.path.realpath(path))  # unlike Path.resolve, content with links that go in circles
            if not target.is_relative_to(root):
                raise FolderError(f"{path} is a link to {target}, outside of the folder; put a copy in its place")
            if target.exists() and not (target.is_file() or target.is_dir()):
                raise FolderError(f"{path} is neither a file nor a folder; remove it")


def _digest_of_json(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors as safetensors with its own SHA-256 in the header, and return that.

    One tensor after another is brought to the CPU, hashed and written, for large ensembles are saved while they train,
    and copies of them as a whole would take more time, and memory, than all the rest.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each begins aligned
    header = _header({name: tensors[name] for name in names}, metadata or {})
    digest = hashlib.sha256(header)
    with _replacing(path) as file:
        file.write(header)
        for name in names:
            content = _bytes_of(tensors[name].to("cpu", copy=True))  # what is hashed is written, whatever changes
            digest.update(content)
            file.write(content)
        file.seek(header.index(_BLANK.encode()))
        file.write(digest.hexdigest().encode())
    return digest.hexdigest()


def _header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return what precedes the tensors in a safetensors file: its own length, then types, shapes and places as JSON."""
    if _METADATA in tensors or _CHECKSUM in metadata:
        raise ValueError(f"no tensor can be called {_METADATA}, and no metadata {_CHECKSUM}: both names are taken")
    entries: dict[str, Any] = {_METADATA: {_CHECKSUM: _BLANK, **metadata}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": _name_of(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(entries, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@cache
def _name_of(dtype: torch.dtype) -> str:
    """Return what the library that is installed calls a type, by asking it to write one."""
    try:
        content = safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, ValueError, SafetensorError):
        raise TypeError(f"safetensors cannot save tensors of {dtype}") from None
    return str(json.loads(content[8:])[""]["dtype"])


def _bytes_of(tensor: Tensor) -> memoryview:
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = plain.as_strided((plain.numel(),), (1,))  # reshape keeps any stride of a single number, and view minds it
    content: Any = flat.view(torch.uint8).numpy()
    return memoryview(content)


def read_tensors(
    path: Path, device: torch.device | str = "cpu", checksum: str | None = None, remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote, and its metadata, or refuse it; `checksum` is the one that it must have.

    On the CPU the tensors are mapped from the file, so that they take memory only once they are used.
    """
    unreadable = reading(path, "it is truncated or not safetensors", remedy)
    with unreadable, safe_open(path, framework="pt", device=str(device)) as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    found = metadata.pop(_CHECKSUM, _BLANK)
    intact = found == _digest_of_tensors(path, found) and found == (checksum or found)
    require(intact, path, "its content does not match its checksum", remedy)
    return tensors, metadata


def _digest_of_tensors(path: Path, checksum: str) -> str:
    """Hash the file as it was before its checksum was put in, by plain reads that leave nothing in memory."""
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        digest = hashlib.sha256(length + header.replace(checksum.encode(), _BLANK.encode(), 1))
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of_tensor(tensor: Tensor) -> str:
    """Return a hash of a tensor's type, shape and bytes, whatever device it lies on."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    # In pieces, so that a large array is not copied whole from a GPU or out of a strided layout.
    pieces = tensor.detach().split(4096) if tensor.ndim else [tensor.detach()]
    for piece in pieces:
        digest.update(_bytes_of(piece))
    return digest.hexdigest()


def flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return JSON for nested state, moving its tensors into `tensors` under names that the JSON refers to.

    Optimizer states are keyed by whole numbers, which JSON cannot say; so a dict becomes a list of pairs.
    """
    if isinstance(value, Tensor):
        name = f"{len(tensors):05d}"
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"the state to save holds a {type(value).__name__}; optimizers may keep tensors, numbers, text, lists and dicts"
    )


def unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `flatten` took apart."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unflatten(item, tensors) for key, item in content}
    items = [unflatten(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
