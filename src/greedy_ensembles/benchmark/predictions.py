"""What the members of an ensemble say of a set, of any kind of inputs, as log-probabilities: made, and kept.

Log-probabilities and not probabilities, because a confident member's probability of another class is smaller than
single precision can hold, and the negative log-likelihood of a 0 is infinite. Beside them stands what softmax takes
out of the logits, each member's logsumexp, which an energy needs. A cache folder keeps them under a hash of the member
and one of the images, so an ensemble that grew computes what is new, and nothing stale is read.
"""

import hashlib
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from greedy_ensembles import storage
from greedy_ensembles.benchmark.presets import load_preset
from greedy_ensembles.checks import as_path, check_choice, check_count, check_flag, check_kind
from greedy_ensembles.data import ImageSet, LabelledSet
from greedy_ensembles.data.image_set import Labels, as_labels
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.prediction import FeatureFunction, LogitsWithFeatures, Statement, can_capture, logits
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.forms import admit, check_columns, columns_of
from greedy_ensembles.inputs import Normalize, as_inputs, as_tensor, batches_of, device_of, dtype_of, entries
from greedy_ensembles.storage import FolderError, digest_of_tensor
from greedy_ensembles.training.examples import ArrayExamples, DatasetExamples, Reread
from greedy_ensembles.training.validate import as_examples

#: What tables call in-domain data that have no name.
IN_DOMAIN = "in-domain"
#: In what products are computed on a GPU.
Arithmetic = Literal["float32", "tf32"]


@dataclass(frozen=True, eq=False)
class InputSet:
    """Inputs of any kind, as `Ensemble.predict_proba` takes them."""

    name: str
    x: Any
    labels: Labels | None = None  #: (n,)
    note: str = ""  #: what a reader of any figure on this set must know, else empty
    unit: str = "examples"  #: what is counted
    argument: str = "x"  #: what messages call it
    columns: tuple[str, ...] | None = None  #: names of a table's columns, if it has them

    @classmethod
    def of(cls, argument: str, data: Any, name: str = "", labelled: bool = False) -> "InputSet":
        """Return data under a name, sets of ge.data under their own where none is given; or refuse it.

        Messages call it `argument`. Where labels are needed, data are what `ge.fit` takes.
        """
        if isinstance(data, InputSet):
            return data
        if isinstance(data, LabelledSet):
            if labelled and data.labels is None:
                raise ValueError(f"{data.name} has no labels; accuracy and calibration in the domain need them")
            return cls(name or data.name, data.inputs, data.labels, data.note, data.unit, argument, columns_of(data))
        with _naming(argument):
            if not labelled:
                read = data.dataset if isinstance(data, DataLoader) else data
                if isinstance(read, IterableDataset) and not hasattr(read, "__len__"):
                    raise TypeError("a stream has no length; give an array, or a Dataset that has one")
                return cls(name, as_inputs(data), argument=argument, columns=columns_of(data))
            examples = as_examples(data)
            x = examples.x if isinstance(examples, ArrayExamples) else as_inputs(data)
            x = Reread(examples) if isinstance(examples, DatasetExamples) else x
            return cls(name, x, examples.labels.cpu().numpy(), argument=argument, columns=columns_of(data))

    def check(self, ensemble: Ensemble) -> None:
        """Refuse inputs that members cannot take; those of a Dataset or DataLoader are seen as they are predicted."""
        if isinstance(self.x, Dataset | DataLoader):
            return
        given = batches_of(self.x, 1024, type(ensemble.inputs) is tuple)
        with _naming(self.argument):
            check_columns(self, ensemble.inputs)
            deque(admit(given, ensemble.inputs, ensemble.normalize, dtype_of(ensemble[0])), maxlen=0)

    @property
    def count(self) -> int:
        """How many inputs there are."""
        held: Any = self.x.dataset if isinstance(self.x, DataLoader) else self.x
        return len(entries(held)[0][1])

    @property
    def shape(self) -> tuple[int, ...] | None:
        """That of one input, None where nothing says it before it is read."""
        return tuple(self.x.shape[1:]) if isinstance(self.x, Tensor | np.ndarray) else None

    def digest(self) -> str:
        """Return a hash of the inputs, empty for those that are read one by one."""
        return digest_of_tensor(as_tensor(self.x)) if isinstance(self.x, Tensor | np.ndarray) else ""


@contextmanager
def _naming(argument: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{argument}: {error}") from error


def as_sets(
    in_domain: Any, ood: Mapping[str, Any] | str, root: str | Path | None = None
) -> tuple[InputSet, list[InputSet], tuple[str, ...]]:
    """Return labelled in-domain data, OOD sets by name, and what a preset lacks; or refuse what cannot be compared."""
    missing: tuple[str, ...] = ()
    if isinstance(ood, str):
        if not isinstance(in_domain, ImageSet):
            raise TypeError(f"ood={ood!r} names a preset, which needs in_domain to be an ImageSet; give sets by name")
        ood, missing = load_preset(ood, in_domain, root)
    inside = InputSet.of("in_domain", in_domain, "" if isinstance(in_domain, LabelledSet) else IN_DOMAIN, labelled=True)
    if not isinstance(ood, Mapping):
        raise TypeError(f"ood must be a dict of sets by name, or a preset's name; got {type(ood).__name__}")
    if inside.name in ood:
        raise ValueError(f"ood[{inside.name!r}] has the name of the in-domain data; give it another")
    outside = [InputSet.of(f"ood[{name!r}]", data, name) for name, data in ood.items()]
    for given in outside:
        if None not in (given.shape, inside.shape) and given.shape != inside.shape:
            hint = "; ImageSet.resized and with_channels change them" if isinstance(in_domain, ImageSet) else ""
            raise ValueError(
                f"inputs of {given.name} are {given.shape} and those of {inside.name} are {inside.shape}{hint}"
            )
    return inside, outside, missing


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of every member on one image set."""

    name: str
    log_probs: npt.NDArray[np.float32]  #: (members, n, classes)
    labels: Labels | None = None  #: (n,)
    note: str = ""  #: what a reader of any figure on this set must know, else empty
    content: str = ""  #: a hash of the images, else empty; predictions are compared only on the same ones
    unit: str = "images"  #: what there are n of
    kept: int = 0  #: of how many members they were read from a cache folder, and not made
    logsumexp: npt.NDArray[np.float32] | None = None  #: of each member's logits, (members, n), if they are known
    features: npt.NDArray[np.float32] | None = None  #: of each member, (members, n, d), if they were asked for

    def __post_init__(self) -> None:
        check_kind(f"log_probs of {self.name}", self.log_probs, np.ndarray, "an array")
        if self.log_probs.ndim != 3 or self.log_probs.dtype != np.float32 or 0 in self.log_probs.shape:
            raise ValueError(
                f"log_probs of {self.name} must be float32 of shape (members, n, classes), none of them 0, "
                f"got {self.log_probs.dtype} of shape {self.log_probs.shape}"
            )
        if self.labels is not None:
            own = as_labels(self.labels, len(self), None, self.name, "images")
            object.__setattr__(self, "labels", own)

    def __len__(self) -> int:
        return int(self.log_probs.shape[1])

    @property
    def members(self) -> int:
        """How many members the ensemble has."""
        return int(self.log_probs.shape[0])

    def probabilities(self, elements: int = 1 << 21) -> Iterator[npt.NDArray[np.float64]]:
        """Return the probabilities, (members, some, classes) in double precision, so many numbers at a time."""
        members, count, classes = self.log_probs.shape
        step = max(elements // (members * classes), 1)
        for start in range(0, count, step):
            yield np.exp(self.log_probs[:, start : start + step].astype(np.float64))

    def mean_probabilities(self) -> npt.NDArray[np.float64]:
        """Return the ensemble's prediction, the mean over members, (n, classes)."""
        return np.concatenate([probs.mean(axis=0) for probs in self.probabilities()])


def predict(
    ensemble: Ensemble,
    images: LabelledSet | InputSet,
    *,
    batch_size: int | None = None,
    cache: str | Path | None = None,
    precision: Arithmetic = "float32",
    fresh: bool = False,
    features: str | FeatureFunction | None = None,
) -> Predictions:
    """Return what each member says of the images, or of other inputs, out of the cache folder where it is there.

    Args:
        ensemble: what predicts.
        images: what is predicted.
        batch_size: how many images a member sees at once; None: 64 on the CPU, 1,024 on CUDA.
        cache: a folder in which each member's predictions are kept, and found again while its weights stay the same;
            those of a Dataset or DataLoader, and features, are not.
        precision: in "float32" a GPU says what a CPU does. With "tf32" factors are rounded to ten bits, for its tensor
            cores: enough for members that were trained in so many, or in bf16, which has fewer.
        fresh: whether to make predictions anew, and to replace those in the cache folder.
        features: a layer's name, or a function of a member and a batch as it takes it, whose outputs are kept, too.
    """
    check_kind("ensemble", ensemble, Ensemble, "a ge.Ensemble")
    if ensemble.targets == "labels":
        raise ValueError("ensemble predicts independent labels, and predictions here are of one class an input")
    check_flag("fresh", fresh)
    cache = None if cache is None else as_path("cache", cache)
    name = images.name if isinstance(images, LabelledSet) else "images"
    given = images if isinstance(images, InputSet) else InputSet.of(name, images)
    batch_size = fitting_batch_size(ensemble) if batch_size is None else batch_size
    check_count("batch_size", batch_size, least=1)
    check_choice("precision", precision, get_args(Arithmetic))
    if not given.count:
        raise ValueError(f"{given.name} holds no {given.unit}; there is nothing to predict")
    content = given.digest()
    x = as_tensor(given.x) if content else given.x
    precision = precision if device_of(ensemble[0]).type == "cuda" else "float32"
    places: list[_Place] = []
    if cache is not None and content and features is None:
        places = [_Place.of(member, ensemble.normalize, precision, content, cache) for member in ensemble]
    rows: dict[int, _Row] = {}
    for position, place in enumerate([] if fresh else places):
        if (row := place.read(given.count)) is not None:
            rows[position] = row
    kept, left = len(rows), [position for position in range(len(ensemble)) if position not in rows]
    # Together go members that a GPU runs side by side, and all where a loader may shuffle: they see one pass of it.
    # Others go one by one, so that each is kept before the next.
    together = not content or can_capture(list(ensemble))
    for group in [left] if left and together else [[position] for position in left]:
        part = ensemble
        if len(group) < len(ensemble):
            part = Ensemble([ensemble[k] for k in group], ensemble.normalize, inputs=ensemble.inputs)
        with _naming(given.argument):
            for position, computed in zip(group, _compute(part, x, batch_size, precision, features), strict=True):
                rows[position] = computed
                if places:
                    places[position].write(computed)
    log_probs, sums, seen = zip(*(rows[position] for position in range(len(ensemble))), strict=True)
    said = np.stack(log_probs), given.labels, given.note, content, given.unit, kept, np.stack(sums)
    return Predictions(given.name, *said, None if features is None else np.stack(seen))


def fitting_batch_size(ensemble: Ensemble) -> int:
    """Return how many images at once suit a device: what lies in a processor's cache is predicted twice as fast."""
    return 1024 if device_of(ensemble[0]).type == "cuda" else 64


class _Row(NamedTuple):
    """What one member says of a set."""

    log_probs: npt.NDArray[np.float32]
    logsumexp: npt.NDArray[np.float32]
    features: npt.NDArray[np.float32] | None = None


class _Place(NamedTuple):
    """Where one member's predictions on one set are kept."""

    file: Path
    identity: dict[str, str]

    @classmethod
    def of(
        cls, member: nn.Module, normalize: Normalize | None, precision: Arithmetic, content: str, cache: Path
    ) -> "_Place":
        rounded: dict[str, str] = {} if precision == "float32" else {"precision": precision}
        identity = {"member": digest_of_member(member, normalize), "images": content, **rounded}
        name = "-".join([identity["member"][:16], identity["images"][:16], *rounded.values()])
        return cls(cache / f"{name}.safetensors", identity)

    def read(self, images: int) -> _Row | None:
        """Return what is kept of so many images, None where there is nothing, or something else."""
        if not self.file.exists():
            return None
        try:
            tensors, metadata = storage.read_tensors(self.file)
            row = tensors.get("log_probs", torch.empty(0))
            proper = row.dtype == torch.float32 and row.ndim == 2 and len(row) == images and row.shape[1] > 0
            storage.require(proper and metadata == self.identity, self.file, "it holds other predictions")
            storage.require(bool((row.logsumexp(dim=1).abs() < 1e-3).all()), self.file, "it holds no probabilities")
            if (sums := tensors.get("logsumexp")) is None:  # a file of version 0.1
                return None
            proper = sums.dtype == torch.float32 and sums.shape == (images,) and bool(sums.isfinite().all())
            storage.require(proper, self.file, "its logsumexp are not one number for each image")
        except FolderError as error:
            warnings.warn(f"predictions are computed again: {str(error).partition('. ')[0]}", stacklevel=3)
            return None
        return _Row(row.numpy(), sums.numpy())

    def write(self, row: _Row) -> None:
        """Keep predictions, where that is possible."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            kept = {"log_probs": torch.from_numpy(row.log_probs), "logsumexp": torch.from_numpy(row.logsumexp)}
            storage.write_tensors(self.file, kept, self.identity)
        except OSError as error:  # a folder that is read-only, or a full disk, costs time and no result
            warnings.warn(f"predictions were not kept for the next time: {error}", stacklevel=3)


def _compute(
    ensemble: Ensemble, x: Any, batch_size: int, precision: Arithmetic, features: str | FeatureFunction | None
) -> Iterator[_Row]:
    say = logits if features is None else LogitsWithFeatures(features)
    # As asked for: by default a GPU's convolutions round to ten bits, and the CPU would say otherwise.
    with Execution(device_of(ensemble[0]), precision).settings():
        said = in_batches(ensemble, x, batch_size, say)
    classes = say.classes if isinstance(say, LogitsWithFeatures) else said.shape[2]
    for member in said.cpu():
        log_probs = member[:, :classes].log_softmax(dim=1)
        if bad := int(log_probs.isnan().any(dim=1).sum()):
            raise ArithmeticError(f"a member's outputs are NaN or infinite on {bad:,} of {len(member):,} images")
        sums = member[:, :classes].logsumexp(dim=1)
        seen = None if features is None else member[:, classes:].float().numpy()
        yield _Row(log_probs.float().numpy(), sums.float().numpy(), seen)


def in_batches(ensemble: Ensemble, x: Any, batch_size: int, say: Statement = logits) -> Tensor:
    """Return what members say, from batches of half the size where memory does not hold these."""
    try:
        return ensemble.apply(say, x, batch_size)
    except torch.OutOfMemoryError:
        if batch_size == 1:
            raise
    return in_batches(ensemble, x, batch_size // 2, say)  # after the handler, which would keep what failed


def digest_of_member(member: nn.Module, normalize: Normalize | None) -> str:
    """Return a hash of all that a member's predictions depend on: its layers, weights, statistics and inputs' scale."""
    digest = hashlib.sha256(f"{member!r} {normalize}".encode())
    saved = member.state_dict()
    unsaved = {name: value for name, value in member.named_buffers() if name not in saved}
    for name, value in (saved | unsaved).items():
        digest.update(f"{name} {digest_of_tensor(value)}".encode())
    return digest.hexdigest()
