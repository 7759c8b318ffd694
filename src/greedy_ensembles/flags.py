"""From a number to a decision: what an ensemble learns from in-domain inputs that it was not trained on.

A `Calibration` holds three things, each found from the members as they are, so that none depends on another.

- A threshold of a score, by split conformal prediction: at most a share `fpr` of new in-domain inputs reaches it.
- With labels, a temperature T of the members' mean (which is taken first: a mean of calibrated members would be too
  little certain).
- With labels, the mean's probability of each, from which conformal sets follow for any `alpha`.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from greedy_ensembles import metrics, storage
from greedy_ensembles.checks import check_choice, check_limit, check_number, limit
from greedy_ensembles.data.image_set import check_channels

FILE = "calibration.json"
#: What may be thresholded, by the names of `Uncertainty`.
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "epistemic": metrics.mutual_information,
    "aleatoric": metrics.expected_entropy,
    "total": metrics.predictive_entropy,
}
_FORMAT = 2  # the first, of versions up to 0.2, had mutual information alone
_TEMPERATURES = (0.01, 100.0)

Shape = tuple[int, int, int]


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
        if height != width or height < 1:
            raise ValueError(f"images must be square, of 1 to {limit('side')} pixels a side, got {height} x {width}")
        check_limit("side", height, f"images must be of 1 to {limit('side')} pixels a side")

    @classmethod
    def of_images(cls, images: np.ndarray, classes: tuple[str, ...] | None = None) -> "ImageForm":
        """Return the form of images, (n, channels, height, width); no picture is made into ones that are not square."""
        channels, height, width = images.shape[1:]
        return cls((channels, height, width) if height == width else None, classes)


@dataclass(frozen=True)
class Calibration:
    """What `Ensemble.calibrate` found, and from what."""

    threshold: float  #: inputs whose score reaches it are flagged; in nats
    fpr: float  #: the share of in-domain inputs that may be flagged
    inputs: int  #: how many in-domain inputs it was found from
    score: str = "epistemic"  #: what is thresholded
    temperature: float | None = None  #: of the members' mean; None without labels
    of_labels: tuple[float, ...] | None = field(default=None, repr=False)  #: the mean's probability of each, sorted
    source: str = "inputs given in Python"  #: what they were
    form: ImageForm = ImageForm()  #: what pictures are made into, where the command line calibrated

    @classmethod
    def found(cls, probs: Tensor, scores: Tensor, labels: Any, fpr: float, score: str) -> "Calibration":
        """Find it.

        Args:
            probs: the members' mean, (n, classes).
            scores: (n,), of the same inputs.
            labels: theirs, (n,), or None.
            fpr: the share of in-domain inputs that may be flagged.
            score: the name of the score.
        """
        threshold = threshold_at(scores.double().numpy(), fpr)
        if labels is None:
            return cls(threshold, float(fpr), len(scores), score)
        true = _as_labels(labels, *probs.shape)
        of_labels = probs.double().gather(1, true[:, None])[:, 0].sort().values
        return cls(threshold, float(fpr), len(scores), score, best_temperature(probs, true), tuple(of_labels.tolist()))

    def flags(self, probs: Tensor) -> Tensor:
        """Return which of n inputs reach the threshold, bool (n,), from what members say, (members, n, classes)."""
        return SCORES[self.score](probs.double()) >= self.threshold

    def sets(self, probs: Tensor, alpha: float) -> Tensor:
        """Return which classes may be that of each input, bool (n, classes), from what members say.

        A class is left out where the mean's probability of it is so low that only a share of alpha of labels is as low.
        """
        if self.of_labels is None:
            raise ValueError("y was not given to calibrate, and sets of classes are found from labels: calibrate(x, y)")
        # Least probable is most strange, as in threshold_at.
        return -probs.double().mean(dim=0) < threshold_at(-np.array(self.of_labels), alpha, "alpha")

    def tempered(self, mean: Tensor) -> Tensor:
        """Return the members' mean (n, classes) to the power of 1/T, adding up to 1; as it is without a temperature."""
        return mean if self.temperature is None else (mean.log() / self.temperature).softmax(dim=1)

    def write(self, folder: Path, weights: str) -> None:
        """Keep it in calibration.json, together with the `fingerprint` of the weights beside it."""
        storage.write_json(folder / FILE, {"format": _FORMAT, "weights": weights, **asdict(self)})


def threshold_at(scores: np.ndarray, rate: float, name: str = "fpr") -> float:
    """Return the least threshold that a new in-domain score reaches with a probability of at most `rate`.

    As everywhere here, a threshold t calls every score >= t out of distribution. It is the number just above the r-th
    smallest of n scores with r = ceil((1 - rate) (n + 1)), the bound of conformal prediction: if the new score is
    exchangeable with the n, at most a share of `rate` lies above, ties or not. Counting n + 1 and not n makes it hold
    for new scores, rather than for those that the threshold was found on.

    >>> threshold_at(np.array([0.1, 0.2, 0.3, 0.4]), 0.2) > 0.4  # one score in five may be new, and above all four
    True
    """
    check_rate(rate, name)
    exact = Fraction(str(float(rate)))  # the decimal that a person typed, and not the binary number next to it
    needed = math.ceil(1 / exact) - 1
    if len(scores) < needed:
        raise ValueError(
            f"{name} = {rate:g} needs {needed:,} in-domain inputs or more to be found from, got {len(scores):,}; "
            f"give more of them, or ask for a larger {name}"
        )
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite numbers of shape (n,), got shape {scores.shape}")
    rank = math.ceil((1 - exact) * (len(scores) + 1))
    return math.nextafter(float(np.partition(scores, rank - 1)[rank - 1]), math.inf)


def check_rate(rate: float, name: str = "fpr") -> None:
    """Raise ValueError unless it is a share above 0 and below 1."""
    check_number(name, rate, above=0)
    if rate >= 1:
        raise ValueError(f"{name} must be below 1, a share of in-domain inputs; got {rate}")


def check_order(x: Any) -> None:
    """Refuse inputs that come in another order at every reading, which no labels beside them can have."""
    sampler = getattr(x, "sampler", None)
    if isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler):
        raise ValueError(
            f"x is a DataLoader with a {type(sampler).__name__}, in whose order y does not come; give one with "
            "shuffle=False, or arrays"
        )


def check_score(score: str, members: int) -> None:
    """Refuse a score that is none, or that is 0 on every input."""
    check_choice("score", score, SCORES)
    if score == "epistemic" and members < 2:
        raise ValueError(
            "the ensemble has one member, whose mutual information is 0 on every input; flags need two members, or "
            "score='total'"
        )


def best_temperature(mean: Tensor, labels: Tensor) -> float:
    """Return the T, from 0.01 to 100, at which probabilities (n, classes) to the power of 1/T fit the labels (n,) best.

    The mean log-likelihood is concave in 1/T, so that there is one best T. Where every label is the most probable class
    already, no T is too small, and nothing says how sure to be: then it is 1.
    """
    from scipy.optimize import brentq  # slow to import, and seldom needed

    logs = mean.double().clamp_min(torch.finfo(torch.float32).tiny).log()
    of_labels = logs.gather(1, labels[:, None])[:, 0]
    if bool((logs.amax(dim=1) == of_labels).all()):
        return 1.0

    def slope(temperature: float) -> float:
        """Return minus the derivative of the mean log-likelihood by 1/T."""
        expected = ((logs / temperature).softmax(dim=1) * logs).sum(dim=1)
        return float((expected - of_labels).mean())

    least, most = _TEMPERATURES
    if slope(most) >= 0:  # no better than equal probabilities
        return most
    if slope(least) <= 0:
        return least
    return math.exp(brentq(lambda log: slope(math.exp(log)), math.log(least), math.log(most), xtol=1e-10))


def _as_labels(y: Any, count: int, classes: int) -> Tensor:
    """Return class indices as a tensor on the CPU, or refuse them."""
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.shape != (count,) or labels.dtype.kind not in "iu":
        found = f"{labels.dtype} of shape {labels.shape}"
        raise ValueError(f"y must hold a class index for each of the {count:,} inputs of x, shape (n,); got {found}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise ValueError(f"y must be from 0 to {classes - 1}, got some from {low} to {high}")
    return torch.from_numpy(labels.astype(np.int64))


def fingerprint(checksums: list[str]) -> str:
    """Return a hash of the checksums of all members: another after any change, or with more members."""
    return hashlib.sha256(json.dumps(checksums).encode()).hexdigest()


def read_calibration(folder: Path, weights: str) -> Calibration | None:
    """Return the calibration in a folder; None where there is none, or it is of other weights."""
    file = folder / FILE
    if not file.exists():
        return None
    content = storage.read_json(file)
    version: Any = content.pop("format", None)
    if version not in (1, _FORMAT) or isinstance(version, bool):
        raise storage.FolderError(f"{file} has another format than 1 and {_FORMAT}; delete it and calibrate anew")
    with storage.reading(file, "it is no calibration of ours"):
        of_weights, form, of_labels = content.pop("weights"), content.pop("form"), content.pop("of_labels", None)
        found = Calibration(
            **content, form=_image_form(form), of_labels=None if of_labels is None else tuple(map(float, of_labels))
        )
        proper = _is_proper(found) and isinstance(of_weights, str)
    storage.require(proper, file, "it is no calibration of ours")
    return found if of_weights == weights else None


def _is_proper(found: Calibration) -> bool:
    numbers = [found.threshold, found.fpr, *([] if found.temperature is None else [found.temperature])]
    return (
        all(isinstance(value, float) and math.isfinite(value) for value in numbers)
        and type(found.inputs) is int
        and found.score in SCORES
        and (found.temperature is None or found.temperature > 0)
        and (found.of_labels is None or len(found.of_labels) == found.inputs)
    )


def _image_form(content: dict[str, Any]) -> ImageForm:
    shape, classes = content["shape"], content["classes"]
    if shape is not None:
        channels, height, width = (int(side) for side in shape)
        shape = (channels, height, width)
    return ImageForm(shape, None if classes is None else tuple(str(name) for name in classes))
