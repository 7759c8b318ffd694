"""When not to trust a prediction: the threshold of an ensemble's mutual information, found on in-domain inputs.

`judge_inputs` gives classes and uncertainties, `threshold_at` the mutual information from which an input is flagged, so
that in-domain inputs seldom are. A `Calibration` keeps the threshold beside the weights that it was found for: an
ensemble that got more members must be calibrated again.
"""

import math
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles import storage
from greedy_ensembles.checks import check_count, check_number
from greedy_ensembles.data.image_set import check_channels
from greedy_ensembles.ensemble import Ensemble, Uncertainty
from greedy_ensembles.inputs import as_tensor

FILE = "calibration.json"
LARGEST = 4096  #: pixels a side; a file from other people could ask for pictures that fill all memory
_FORMAT = 1
_AT_ONCE = 4096  # inputs whose probabilities, of all members and in double precision, are in memory

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Of n inputs: the class, its probability (the members' mean), and uncertainties in nats, in double precision."""

    classes: np.ndarray
    probability: np.ndarray
    epistemic: np.ndarray  #: mutual information
    aleatoric: np.ndarray
    total: np.ndarray
    outputs: int  #: how many classes there are

    def flagged(self, threshold: float) -> np.ndarray:
        """Return which inputs reach the threshold, (n,): they may be out of distribution."""
        return self.epistemic >= threshold


def judge_inputs(ensemble: Ensemble, values: np.ndarray, batch_size: int = 1024) -> Verdicts:
    """Predict inputs, some at a time, so that memory does not limit how many.

    Args:
        ensemble: what predicts.
        values: inputs, (n, ...), as the ensemble was trained on.
        batch_size: how many of them a member sees at once.
    """
    check_count("batch_size", batch_size, least=1)
    parts = []
    for start in range(0, len(values), _AT_ONCE):
        batch = as_tensor(values[start : start + _AT_ONCE])
        try:
            probs = ensemble.predict_proba(batch, batch_size).double()
        except RuntimeError as error:
            why = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"the ensemble cannot take inputs of shape {tuple(values.shape[1:])} and type {values.dtype}: {why}"
            ) from error
        if not bool(probs.isfinite().all()):
            raise ArithmeticError("a member's outputs are NaN or infinite")
        mean = probs.mean(dim=0)
        parts.append((mean.argmax(dim=1), mean.amax(dim=1), *Uncertainty.of(probs)))
    classes, probability, epistemic, aleatoric, total = (
        np.concatenate([part.numpy() for part in column]) for column in zip(*parts, strict=True)
    )
    return Verdicts(classes, probability, epistemic, aleatoric, total, outputs=mean.shape[1])


def find_threshold(ensemble: Ensemble, values: np.ndarray, fpr: float = 0.05, batch_size: int = 1024) -> float:
    """Return the mutual information that at most a share of `fpr` of new in-domain inputs reaches.

    Args:
        ensemble: two members or more; one cannot disagree with itself.
        values: in-domain inputs, (n, ...), that the ensemble was not trained on.
        fpr: the share of in-domain inputs that may be flagged.
        batch_size: how many inputs a member sees at once.
    """
    if len(ensemble) < 2:
        raise ValueError(
            "the ensemble has one member, whose mutual information is 0 on every input; flags need two members"
        )
    _check_rate(fpr, len(values))  # before the members are put to work
    return threshold_at(judge_inputs(ensemble, values, batch_size).epistemic, fpr)


def threshold_at(scores: np.ndarray, fpr: float) -> float:
    """Return the least threshold that a new in-domain score reaches with a probability of at most `fpr`.

    As everywhere here, a threshold t calls every score >= t out of distribution. It is the number just above the r-th
    smallest of n scores with r = ceil((1 - fpr) (n + 1)), the bound of conformal prediction: if the new score is
    exchangeable with the n, at most a share of fpr lies above, ties or not. Counting n + 1 and not n makes it hold for
    new scores, rather than for those that the threshold was found on.

    >>> threshold_at(np.array([0.1, 0.2, 0.3, 0.4]), 0.2) > 0.4  # one score in five may be new, and above all four
    True
    """
    _check_rate(fpr, len(scores))
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite numbers of shape (n,), got shape {scores.shape}")
    rank = math.ceil((1 - _exact(fpr)) * (len(scores) + 1))
    return math.nextafter(float(np.partition(scores, rank - 1)[rank - 1]), math.inf)


def _check_rate(fpr: float, count: int) -> None:
    """Raise ValueError unless fpr is a rate that so many scores are enough for."""
    check_number("fpr", fpr, above=0)
    if fpr >= 1:
        raise ValueError(f"fpr must be below 1, the share of in-domain inputs that may be flagged; got {fpr}")
    needed = math.ceil(1 / _exact(fpr)) - 1
    if count < needed:
        raise ValueError(
            f"fpr = {fpr:g} needs {needed:,} in-domain inputs or more to be found from, got {count:,}; "
            "give more of them, or ask for a larger fpr"
        )


def _exact(fpr: float) -> Fraction:
    """Return the decimal that a person typed, and not the binary number next to it."""
    return Fraction(str(float(fpr)))


@dataclass(frozen=True)
class ImageForm:
    """Square images of bytes of this shape, (channels, height, width), and the names of their classes.

    None: unknown, or nothing of the kind.
    """

    shape: Shape | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is None:
            return
        channels, height, width = self.shape
        check_channels(channels)
        if height != width or not 0 < height <= LARGEST:
            raise ValueError(f"images must be square, of 1 to {LARGEST} pixels a side, got {height} x {width}")

    @classmethod
    def of_images(cls, images: np.ndarray, classes: tuple[str, ...] | None = None) -> "ImageForm":
        """Return the form of images, (n, channels, height, width); no picture is made into ones that are not square."""
        channels, height, width = images.shape[1:]
        return cls((channels, height, width) if height == width else None, classes)


@dataclass(frozen=True)
class Calibration:
    """From which mutual information on an input is flagged, and where that comes from."""

    threshold: float  #: in nats
    fpr: float  #: the share of in-domain inputs that may be flagged
    inputs: int  #: how many in-domain inputs it was found from
    source: str  #: what they were
    weights: str  #: a checksum of the ensemble's weights
    form: ImageForm

    def write(self, folder: Path) -> None:
        """Keep it beside the weights, in calibration.json."""
        storage.write_json(folder / FILE, {"format": _FORMAT, **asdict(self)})


def read_calibration(folder: Path, weights: str) -> Calibration | None:
    """Return the calibration in a folder; None where there is none, or it is of other weights."""
    file = folder / FILE
    if not file.exists():
        return None
    content = storage.read_json(file)
    if content.pop("format", None) != _FORMAT:
        raise storage.FolderError(f"{file} has another format than {_FORMAT}; delete it and calibrate anew")
    try:
        form = content.pop("form")
        found = Calibration(**content, form=_image_form(form))
        proper = all(isinstance(value, float) for value in (found.threshold, found.fpr))
    except (KeyError, TypeError, ValueError):
        proper = False
    storage.require(proper, file, "it is no calibration of ours")
    return found if found.weights == weights else None


def _image_form(content: dict[str, Any]) -> ImageForm:
    shape, classes = content["shape"], content["classes"]
    if shape is not None:
        channels, height, width = (int(side) for side in shape)
        shape = (channels, height, width)
    return ImageForm(shape, None if classes is None else tuple(str(name) for name in classes))
