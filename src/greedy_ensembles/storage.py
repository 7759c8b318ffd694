"""Files that are either whole or absent, and that show when they were damaged.

Everything this package keeps is safetensors or JSON, so that loading executes nothing. Each file is written to a
temporary name, flushed to disk and renamed: a kill at any instant leaves the old file or the new one. Each carries a
SHA-256 of itself, in the safetensors header or as a field of the JSON, checked whenever it is read.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

#: Version of the layout of saved ensembles and run folders.
FORMAT = 1

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SEAL = "sha256"
_UNSEALED = "0" * 64


class FolderError(ValueError):
    """A folder or file cannot be used as it is: damaged, in use, or of another configuration. Nothing was changed."""


def damaged(path: Path, why: str, remedy: str = "") -> FolderError:
    """Return the error for a file that does not hold what was written to it."""
    remedy = remedy or "Restore it from a copy, or start anew in another folder"
    return FolderError(f"{path} is damaged ({why}). {remedy}; nothing was changed.")


def write_bytes(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file so that a kill, or a disk that fills up, leaves either the old content or the new."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        remedy = "; make room and run again" if error.errno in _NO_ROOM else ""
        message = f"could not write {path}: {error.strerror}. What was saved before is intact{remedy}"
        raise OSError(error.errno, message) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object together with its checksum."""
    sealed = {**content, _SEAL: _digest_of_json(content)}
    write_bytes(path, [json.dumps(sealed, indent=2).encode() + b"\n"])


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that `write_json` wrote, or refuse it."""
    try:
        content = json.loads(path.read_bytes())
        seal = content.pop(_SEAL)
        intact = seal == _digest_of_json(content)
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except OSError as error:
        raise damaged(path, f"it cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise damaged(path, "it is truncated or not JSON of ours") from None
    if not intact:
        raise damaged(path, "its content does not match its checksum")
    return content  # type: ignore[no-any-return]


def require(holds: bool, path: Path, why: str) -> None:
    """Refuse a file that says something which was never written: a right checksum does not make it ours."""
    if not holds:
        raise damaged(path, why)


def check_contained(folder: Path) -> None:
    """Refuse a folder with a link that leads out of it, or a pipe or device in it, before anything there is opened.

    Someone else's folder could otherwise have other files read in place of its own, or overwritten by a run that goes
    on. The folder itself may be a link.
    """
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
    """Write tensors as safetensors with its own SHA-256 in the header, and return that."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = safetensors.torch.save(plain, {**(metadata or {}), _SEAL: _UNSEALED})
    start = 8 + int.from_bytes(content[:8], "little")
    seal = hashlib.sha256(content).hexdigest()
    header = content[:start].replace(_UNSEALED.encode(), seal.encode(), 1)
    write_bytes(path, [header, memoryview(content)[start:]])
    return seal


def read_tensors(
    path: Path, device: torch.device | str = "cpu", seal: str | None = None, remedy: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what `write_tensors` wrote, and its metadata, or refuse it; `seal` is the checksum that it must have.

    On the CPU the tensors are mapped from the file, so that they take memory only once they are used.
    """
    try:
        with safe_open(path, framework="pt", device=str(device)) as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise damaged(path, "it is missing", remedy) from None
    except (SafetensorError, OSError):
        raise damaged(path, "it is truncated or not safetensors", remedy) from None
    found = metadata.pop(_SEAL, _UNSEALED)
    if found != _digest_of_tensors(path, found) or found != (seal or found):
        raise damaged(path, "its content does not match its checksum", remedy)
    return tensors, metadata


def _digest_of_tensors(path: Path, seal: str) -> str:
    """Hash the file as it was before the seal was put in, by plain reads that leave nothing in memory."""
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
        digest = hashlib.sha256(length + header.replace(seal.encode(), _UNSEALED.encode(), 1))
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def digest_of_tensor(tensor: Tensor) -> str:
    """Return a hash of a tensor's type, shape and bytes, whatever device it lies on."""
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    # In pieces, so that a large array is not copied whole from a GPU or out of a strided layout.
    pieces = tensor.detach().split(4096) if tensor.ndim else [tensor.detach()]
    for piece in pieces:
        content: Any = piece.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        digest.update(content)
    return digest.hexdigest()
