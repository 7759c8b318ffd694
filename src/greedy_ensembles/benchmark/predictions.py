"""What the members of an ensemble say of an image set, as log-probabilities: made, kept, and packed to be moved.

Log-probabilities and not probabilities, because a confident member's probability of another class is smaller than
single precision can hold, and the negative log-likelihood of a 0 is infinite. Each member's are computed once: with a
cache folder they are kept there under a hash of the member (weights, layers, normalisation) and one of the images.
Another member, or other images, have another name, so an ensemble that grew computes what is new and nothing stale is
read.

Packed, they are small files to be moved from the machine that trained to the one that evaluates. Log-probabilities are
rounded to half precision, 11 significant bits: a probability p moves by a factor of exp(+-|log p| / 2048) at most.
What is read back is normalised again in double precision. `docs/evaluation.md` says what that does to figures. All
values of all sets follow each other in one line, which is cut into as many files as the limit needs. Every file says
which of how many it is, and holds a checksum of the whole.
"""

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from greedy_ensembles import storage
from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.data.labelled import Labels
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.prediction import can_capture
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.inputs import Normalize, as_tensor, device_of
from greedy_ensembles.storage import FolderError, damaged, digest_of_tensor, write_bytes

#: In what products are computed on a GPU.
Arithmetic = Literal["float32", "tf32"]
#: Images at once, by the kind of device: what lies in a processor's cache is predicted twice as fast.
_BATCHES = {"cpu": 64, "cuda": 1024}
_ELEMENTS = 1 << 21  # of probabilities in double precision at a time

#: Bytes of a file of packed predictions.
LIMIT = 16 << 20
_FORMAT = 1
_FRAME = 4096  # bytes that the .npz format itself may take
_REMEDY = "Pack or copy the predictions again"


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of every member on one image set."""

    name: str
    log_probs: npt.NDArray[np.float32]  #: (members, n, classes)
    labels: Labels | None = None  #: (n,)
    note: str = ""  #: what a reader of any figure on this set must know, else empty
    content: str = ""  #: a hash of the images, else empty; predictions are compared only on the same ones

    def __post_init__(self) -> None:
        if self.log_probs.ndim != 3 or self.log_probs.dtype != np.float32 or 0 in self.log_probs.shape:
            raise ValueError(
                f"log_probs of {self.name} must be float32 of shape (members, n, classes), none of them 0, "
                f"got {self.log_probs.dtype} of shape {self.log_probs.shape}"
            )

    def __len__(self) -> int:
        return int(self.log_probs.shape[1])

    @property
    def members(self) -> int:
        """How many members the ensemble has."""
        return int(self.log_probs.shape[0])

    def probabilities(self) -> Iterator[npt.NDArray[np.float64]]:
        """Return the probabilities, (members, some, classes) in double precision, some images at a time."""
        members, count, classes = self.log_probs.shape
        step = max(_ELEMENTS // (members * classes), 1)
        for start in range(0, count, step):
            yield np.exp(self.log_probs[:, start : start + step].astype(np.float64))

    def mean_probabilities(self) -> npt.NDArray[np.float64]:
        """Return the ensemble's prediction, the mean over members, (n, classes)."""
        return np.concatenate([probs.mean(axis=0) for probs in self.probabilities()])


def predict(
    ensemble: Ensemble,
    images: LabelledSet,
    *,
    batch_size: int | None = None,
    cache: Path | None = None,
    precision: Arithmetic = "float32",
) -> Predictions:
    """Return what each member says of the images, out of the cache folder where it is there.

    Args:
        ensemble: what predicts.
        images: what is predicted.
        batch_size: how many images a member sees at once; None: 64 on the CPU, 1,024 on CUDA.
        cache: a folder in which each member's predictions are kept, and found again while its weights stay the same.
        precision: in "float32" a GPU says what a CPU does. With "tf32" factors are rounded to ten bits, for its tensor
            cores: enough for members that were trained in so many, or in bf16, which has fewer.
    """
    batch_size = fitting_batch_size(ensemble) if batch_size is None else batch_size
    check_count("batch_size", batch_size, least=1)
    check_choice("precision", precision, get_args(Arithmetic))
    if not len(images):
        raise ValueError(f"{images.name} holds no {images.unit}; there is nothing to predict")
    pixels = as_tensor(images.inputs)
    content = digest_of_tensor(pixels)
    how = _How(batch_size, precision if device_of(ensemble[0]).type == "cuda" else "float32")
    caches = [_Cached.of(member, ensemble.normalize, how.precision, content, cache) for member in ensemble]
    rows = {position: kept for position, cached in enumerate(caches) if (kept := cached.read()) is not None}
    for group in _groups(ensemble, [position for position in range(len(ensemble)) if position not in rows]):
        part = ensemble
        if len(group) < len(ensemble):
            part = Ensemble([ensemble[k] for k in group], ensemble.normalize, inputs=ensemble.inputs)
        for position, computed in zip(group, _compute(part, how, pixels), strict=True):
            rows[position] = computed
            caches[position].write(computed)
    log_probs = np.stack([rows[position] for position in range(len(ensemble))])
    return Predictions(images.name, log_probs, images.labels, images.note, content)


def _groups(ensemble: Ensemble, positions: list[int]) -> list[list[int]]:
    """Return which members are predicted together: all that a GPU runs side by side, else each is kept by itself."""
    if positions and can_capture(list(ensemble)):
        return [positions]
    return [[position] for position in positions]


def fitting_batch_size(ensemble: Ensemble) -> int:
    """Return how many images at once suit the device that an ensemble lies on."""
    return _BATCHES.get(device_of(ensemble[0]).type, 64)


class _How(NamedTuple):
    batch_size: int
    precision: Arithmetic


class _Cached(NamedTuple):
    """Where one member's predictions on one set are kept, if they are."""

    file: Path | None
    identity: dict[str, str]

    @classmethod
    def of(
        cls, member: nn.Module, normalize: Normalize | None, precision: Arithmetic, content: str, cache: Path | None
    ) -> "_Cached":
        if cache is None:
            return cls(None, {})
        rounded: dict[str, str] = {} if precision == "float32" else {"precision": precision}
        identity = {"member": _digest_of_member(member, normalize), "images": content, **rounded}
        name = "-".join([identity["member"][:16], identity["images"][:16], *rounded.values()])
        return cls(cache / f"{name}.safetensors", identity)

    def read(self) -> npt.NDArray[np.float32] | None:
        """Return what is kept, None where there is nothing, or something else."""
        if self.file is None or not self.file.exists():
            return None
        try:
            tensors, metadata = storage.read_tensors(self.file)
        except FolderError as error:
            warnings.warn(f"predictions are computed again: {str(error).partition('. ')[0]}", stacklevel=4)
            return None
        return tensors["log_probs"].numpy() if metadata == self.identity else None

    def write(self, log_probs: npt.NDArray[np.float32]) -> None:
        """Keep predictions, where that is possible."""
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            storage.write_tensors(self.file, {"log_probs": torch.from_numpy(log_probs)}, self.identity)
        except OSError as error:  # a folder that is read-only, or a full disk, costs time and no result
            warnings.warn(f"predictions were not kept for the next time: {error}", stacklevel=3)


def _compute(ensemble: Ensemble, how: _How, pixels: Tensor) -> npt.NDArray[np.float32]:
    # As asked for: by default a GPU's convolutions round to ten bits, and the CPU would say otherwise.
    with Execution(device_of(ensemble[0]), how.precision).settings():
        log_probs = in_batches(ensemble, pixels, how.batch_size)
    for member in log_probs:
        if bad := int(member.isnan().any(dim=1).sum()):
            raise ArithmeticError(f"a member's outputs are NaN or infinite on {bad:,} of {len(pixels):,} images")
    return log_probs.float().numpy()


def in_batches(ensemble: Ensemble, pixels: Tensor, batch_size: int) -> Tensor:
    """Return log-probabilities, from batches of half the size where memory does not hold these."""
    try:
        return ensemble.predict_log_proba(pixels, batch_size)
    except torch.OutOfMemoryError:
        if batch_size == 1:
            raise
    return in_batches(ensemble, pixels, batch_size // 2)  # after the handler, which would keep what failed


def _digest_of_member(member: nn.Module, normalize: Normalize | None) -> str:
    """Return a hash of all that a member's predictions depend on: its layers, weights, statistics and inputs' scale."""
    digest = hashlib.sha256(f"{member!r} {normalize}".encode())
    saved = member.state_dict()
    unsaved = {name: value for name, value in member.named_buffers() if name not in saved}
    for name, value in (saved | unsaved).items():
        digest.update(f"{name} {digest_of_tensor(value)}".encode())
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class PackedPredictions:
    """Predictions on an in-domain set and on OOD sets, and what is known of the ensemble that made them."""

    in_domain: Predictions
    ood: tuple[Predictions, ...]
    missing: tuple[str, ...]
    information: dict[str, Any]


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
    file = Path(file).expanduser()
    if file.suffix != ".npz":
        raise ValueError(f"predictions are packed into .npz files, got {file.name}")
    sets, parts, labels = [], [], np.empty(0, np.int64)
    for number, predictions in enumerate([in_domain, *ood]):
        with np.errstate(over="ignore"):  # below -65504 a log-probability becomes -inf: a probability of 0 either way
            parts.append(predictions.log_probs.astype("<f2").reshape(-1))
        if number == 0:
            labels = np.empty(0, np.int64) if predictions.labels is None else predictions.labels
        shape = predictions.log_probs.shape
        known = {"name": predictions.name, "note": predictions.note, "content": predictions.content}
        sets.append({**known, "shape": shape})
    values = np.concatenate(parts)
    header = {
        "format": _FORMAT,
        "sets": sets,
        "missing": list(missing),
        "information": dict(information or {}),
        "sha256": hashlib.sha256(values.tobytes() + labels.tobytes()).hexdigest(),
    }
    overhead = len(json.dumps(header)) + labels.nbytes + _FRAME
    room = (limit - overhead) // values.itemsize
    if room < 1:
        raise ValueError(f"limit must be above the {overhead:,} bytes of labels and names, got {limit:,}")
    return _write(file, header, labels, np.split(values, range(room, len(values), room)))


def _write(
    file: Path,
    header: Mapping[str, Any],
    labels: npt.NDArray[np.int64],
    pieces: Sequence[npt.NDArray[np.float16]],
) -> list[Path]:
    file.parent.mkdir(parents=True, exist_ok=True)
    paths = [_part(file, number) for number in range(1, len(pieces) + 1)]
    for number, (path, piece) in enumerate(zip(paths, pieces, strict=True), start=1):
        buffer = io.BytesIO()
        text = json.dumps({**header, "parts": len(pieces), "part": number})
        np.savez(buffer, header=np.frombuffer(text.encode(), np.uint8), labels=labels, values=piece)
        write_bytes(path, [buffer.getbuffer()])
    return paths


def _part(file: Path, number: int) -> Path:
    return file if number == 1 else file.with_name(f"{file.stem}.{number}.npz")


def unpack_predictions(file: str | Path) -> PackedPredictions:
    """Read what `pack_predictions` wrote, from the first file on, or refuse it; nothing in it is executed."""
    file = Path(file).expanduser()
    header, labels, piece = _read_part(file)
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
    sets = _sets(values, header["sets"], labels)
    return PackedPredictions(sets[0], tuple(sets[1:]), tuple(header["missing"]), header["information"])


def _read_part(path: Path) -> tuple[dict[str, Any], npt.NDArray[np.int64], npt.NDArray[np.float16]]:
    if not path.exists():
        raise damaged(path, "it is missing", _REMEDY)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            header = json.loads(arrays["header"].tobytes())
            content = header, arrays["labels"], arrays["values"]
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile):
        raise damaged(path, "it is truncated, or no predictions of ours", _REMEDY) from None
    if header.get("format") != _FORMAT:
        raise FolderError(f"{path} has format {header.get('format')}; this version reads format {_FORMAT}")
    return content


def _sets(
    values: npt.NDArray[np.float16], described: Sequence[Mapping[str, Any]], labels: npt.NDArray[np.int64]
) -> list[Predictions]:
    sets, start = [], 0
    for number, entry in enumerate(described):
        count = int(np.prod(entry["shape"]))
        rounded = values[start : start + count].reshape(entry["shape"])
        own = labels if number == 0 and len(labels) else None
        content = entry.get("content", "")  # the first files did not say
        sets.append(Predictions(entry["name"], _normalised(rounded), own, entry["note"], content))
        start += count
    return sets


def _normalised(rounded: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return log-probabilities whose probabilities add up to 1 again, one member at a time to save memory."""
    rows = np.empty(rounded.shape, np.float32)
    for row, member in zip(rows, rounded, strict=True):
        precise = member.astype(np.float64)
        row[:] = precise - np.logaddexp.reduce(precise, axis=1, keepdims=True)
    return rows
