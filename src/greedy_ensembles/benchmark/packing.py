"""Predictions packed: small files to be moved from the machine that trained to the one that evaluates.

Log-probabilities are rounded to half precision, 11 significant bits: a probability p moves by a factor of
exp(+-|log p| / 2048) at most; `docs/evaluation.md` says what that does to figures. The logsumexp of a member's logits
stands behind its log-probabilities like a further class. All values of all sets follow each other in one line, which is
cut into as many files as the limit needs; each holds a checksum of the whole.
"""

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greedy_ensembles.benchmark.predictions import Predictions
from greedy_ensembles.checks import as_all, as_path, check_count, check_kind
from greedy_ensembles.storage import FolderError, damaged, write_bytes

#: Bytes of a file of packed predictions.
LIMIT = 16 << 20
_FORMAT = 1
_FRAME = 4096  # bytes that the .npz format itself may take
_REMEDY = "Pack or copy the predictions again"


@dataclass(frozen=True, eq=False)
class PackedPredictions:
    """Predictions on an in-domain set and on OOD sets, and what is known of the ensemble that made them."""

    in_domain: Predictions
    ood: tuple[Predictions, ...]
    missing: tuple[str, ...]  #: names of sets that should be there and are not
    information: dict[str, Any]  #: of a run, what its run.json says


def pack_predictions(
    file: str | Path,
    in_domain: Predictions,
    ood: Iterable[Predictions],
    *,
    missing: Sequence[str] = (),
    information: Mapping[str, Any] | None = None,
    limit: int = LIMIT,
) -> list[Path]:
    """Write predictions to an .npz file, or to several of at most `limit` bytes: name.npz, name.2.npz, name.3.npz.

    Args:
        file: the first of the files.
        in_domain: predictions on the in-domain set.
        ood: predictions on OOD sets.
        missing: names of sets that should be there and are not.
        information: anything that JSON can hold; of a run, what its run.json says.
        limit: the most bytes of one file.
    """
    file, ood = as_path("file", file), as_all("ood", ood, Predictions, "predictions")
    check_kind("in_domain", in_domain, Predictions, "Predictions")
    missing = as_all("missing", missing, str, "names of sets")
    check_count("limit", limit, least=1)
    if information is not None:
        check_kind("information", information, Mapping, "a dict of what JSON can hold")
    if file.suffix != ".npz":
        raise ValueError(f"file must end in .npz: predictions are packed into .npz files, got {file.name}")
    labels = np.empty(0, np.int64) if in_domain.labels is None else in_domain.labels
    sets, parts = [], []
    for predictions in (in_domain, *ood):
        sums, columns = predictions.logsumexp, predictions.log_probs
        if sums is not None:
            columns = np.concatenate([columns, sums[:, :, None]], axis=2)
        with np.errstate(over="ignore"):  # below -65504 a log-probability becomes -inf: a probability of 0 either way
            parts.append(columns.astype("<f2").reshape(-1))
        known = {"name": predictions.name, "note": predictions.note, "content": predictions.content}
        sets.append({**known, "unit": predictions.unit, "shape": columns.shape, "logsumexp": sums is not None})
    values = np.concatenate(parts)
    header = {
        "format": _FORMAT,
        "sets": sets,
        "missing": list(missing),
        "information": dict(information or {}),
        "sha256": hashlib.sha256(values.tobytes() + labels.tobytes()).hexdigest(),
    }
    try:
        text = json.dumps(header)
    except (TypeError, ValueError) as error:
        raise TypeError(f"information must be what JSON can hold: {error}") from None
    overhead = len(text) + labels.nbytes + _FRAME
    room = (limit - overhead) // values.itemsize
    if room < 1:
        raise ValueError(f"limit must be above the {overhead:,} bytes of labels and names, got {limit:,}")
    file.parent.mkdir(parents=True, exist_ok=True)
    pieces = np.split(values, range(room, len(values), room))
    paths = []
    for number, piece in enumerate(pieces, start=1):
        buffer = io.BytesIO()
        text = json.dumps({**header, "parts": len(pieces), "part": number})
        np.savez(buffer, header=np.frombuffer(text.encode(), np.uint8), labels=labels, values=piece)
        paths.append(_part(file, number))
        write_bytes(paths[-1], [buffer.getbuffer()])
    return paths


def _part(file: Path, number: int) -> Path:
    return file if number == 1 else file.with_name(f"{file.stem}.{number}.npz")


def unpack_predictions(file: str | Path) -> PackedPredictions:
    """Read what `pack_predictions` wrote, from the first file on, or refuse it; nothing in it is executed."""
    file = as_path("file", file)
    header, labels, piece = _read_part(file)
    if not _is_ours(header):
        raise damaged(file, "its header is none of ours", _REMEDY)
    if header["part"] != 1:
        raise FolderError(f"{file} is part {header['part']} of {header['parts']}; name the first one")
    pieces = [piece]
    for number in range(2, header["parts"] + 1):
        other, _, piece = _read_part(_part(file, number))
        if other != {**header, "part": number}:
            raise damaged(_part(file, number), f"it belongs to other predictions than {file.name}", _REMEDY)
        pieces.append(piece)
    values = np.concatenate(pieces)
    if hashlib.sha256(values.tobytes() + labels.tobytes()).hexdigest() != header["sha256"]:
        raise damaged(file, "its content does not match its checksum", _REMEDY)
    expected = sum(math.prod(entry["shape"]) for entry in header["sets"])
    if len(values) != expected or len(labels) not in (0, header["sets"][0]["shape"][1]):
        raise damaged(file, f"it has {len(values)} values of {expected}, or other labels than images", _REMEDY)
    sets = _sets(values, header["sets"], labels)
    return PackedPredictions(sets[0], tuple(sets[1:]), tuple(header["missing"]), header["information"])


def _read_part(path: Path) -> tuple[dict[str, Any], npt.NDArray[np.int64], npt.NDArray[np.float16]]:
    if not path.exists():
        raise damaged(path, "it is missing", _REMEDY)
    try:
        with zipfile.ZipFile(path) as archive:  # as it was written, so that it takes no more memory than it has bytes
            plain = all(entry.compress_type == zipfile.ZIP_STORED for entry in archive.infolist())
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            names = ("header", "labels", "values") if plain else ()
            text, labels, values = (arrays[name] for name in names)
        header = json.loads(text.tobytes())
        proper = isinstance(header, dict) and labels.dtype == np.int64 and values.dtype == np.float16
        proper = proper and labels.ndim == values.ndim == 1
    except (Exception, MemoryError):  # of any kind: zip, NumPy's headers and JSON each have their own
        proper = False
    if not proper:
        raise damaged(path, "it is truncated, or no predictions of ours", _REMEDY) from None
    if header.get("format") != _FORMAT:
        raise FolderError(f"{path} has format {header.get('format')!r}; this version reads format {_FORMAT}")
    return header, labels, values


def _is_ours(header: Mapping[str, Any]) -> bool:
    """Say whether the header of a first file says what `pack_predictions` lets it say."""
    sets, missing = header.get("sets"), header.get("missing")
    numbered = all(type(header.get(name)) is int and header[name] > 0 for name in ("part", "parts"))
    described = isinstance(sets, list) and bool(sets) and all(map(_is_set, sets))
    named = isinstance(missing, list) and all(isinstance(name, str) for name in missing)
    return numbered and described and named and isinstance(header.get("information"), dict)


def _is_set(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    shape, summed = entry.get("shape"), entry.get("logsumexp", False)
    texts = (entry.get("name"), entry.get("note"), entry.get("content", ""))  # the first files had no content
    if not (isinstance(shape, list) and len(shape) == 3 and all(type(side) is int and side > 0 for side in shape)):
        return False
    return isinstance(summed, bool) and bool(shape[2] > summed) and all(isinstance(text, str) for text in texts)


def _sets(
    values: npt.NDArray[np.float16], described: Sequence[Mapping[str, Any]], labels: npt.NDArray[np.int64]
) -> list[Predictions]:
    sets: list[Predictions] = []
    ends = np.cumsum([math.prod(entry["shape"]) for entry in described])
    for entry, flat in zip(described, np.split(values, ends[:-1]), strict=True):
        rounded, sums = flat.reshape(entry["shape"]), None
        if entry.get("logsumexp"):
            rounded, sums = rounded[:, :, :-1], rounded[:, :, -1].astype(np.float32)
        own = labels if not sets and len(labels) else None
        told = entry["note"], entry.get("content", ""), entry.get("unit", "images")  # the first files had a note alone
        sets.append(Predictions(entry["name"], _normalised(rounded), own, *told, logsumexp=sums))
    return sets


def _normalised(rounded: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return log-probabilities whose probabilities add up to 1 again, one member at a time to save memory."""
    rows = np.empty(rounded.shape, np.float32)
    for row, member in zip(rows, rounded, strict=True):
        precise = member.astype(np.float64)
        row[:] = precise - np.logaddexp.reduce(precise, axis=1, keepdims=True)
    return rows
