"""The benchmark of one ensemble: how good it is in its domain, and how well its uncertainty finds what lies outside.

OOD images are the positive class. AP depends on how many of them there are for each in-domain image, so every result
carries both counts. Everything is computed from log-probabilities (`predictions`), so it can be had from an ensemble
(`evaluate`) as well as from predictions that came from another machine (`judge`). `estimate` turns the figures of
several seeds into a mean and its standard error.
"""

import dataclasses
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.predictions import Predictions, predict
from greedy_ensembles.benchmark.presets import kind_of, load_preset
from greedy_ensembles.checks import check_choice, check_count, check_number
from greedy_ensembles.data import ImageSet
from greedy_ensembles.ensemble import Ensemble

Scores = npt.NDArray[np.float64]

#: From probabilities (members, n, classes) in double precision to scores (n,). The paper's is the first.
SCORES: dict[str, Callable[[Scores], Scores]] = {
    "mutual_information": metrics.mutual_information,
    "predictive_entropy": metrics.predictive_entropy,
    "expected_entropy": metrics.expected_entropy,
    "max_probability": lambda probs: 1 - probs.mean(axis=0).max(axis=1),
}

#: Names of figures, in the order of tables.
IN_DOMAIN_METRICS = ("accuracy", "nll", "brier", "ace", "ece")
OOD_METRICS = ("auc", "ap", "fpr95")
KINDS = ("synthetic", "natural", "all")
ONE_MEMBER = (
    "mutual information of one member is 0 on every image, so it tells none apart (AUC 0.5); take another score, or "
    "more members"
)


@dataclasses.dataclass(frozen=True)
class InDomain:
    """Figures on the labelled in-domain images, of the members' mean probabilities."""

    name: str
    images: int
    note: str
    accuracy: float
    nll: float  #: in nats, mean over images
    brier: float  #: 0 to 2
    ace: float  #: class-wise, 30 ranges of equal count
    ece: float  #: top label, 15 bins of equal width
    scores: Scores = dataclasses.field(repr=False, compare=False)
    content: str = ""  #: a hash of the images, if it is known
    member_accuracies: tuple[float, ...] = ()  #: of each member alone, if they are known


@dataclasses.dataclass(frozen=True)
class OutOfDistribution:
    """How well the score tells one OOD set from the in-domain images."""

    name: str
    kind: str  #: synthetic (noise that is made) or natural
    images: int
    note: str
    auc: float
    ap: float
    fpr95: float
    scores: Scores = dataclasses.field(repr=False, compare=False)
    content: str = ""  #: a hash of the images, if it is known


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """All figures of one ensemble."""

    score: str
    members: int
    in_domain: InDomain
    ood: tuple[OutOfDistribution, ...]
    missing: tuple[str, ...] = ()  #: sets of the preset without a result: not in the data folder, or left out

    @property
    def sets(self) -> tuple[InDomain | OutOfDistribution, ...]:
        """The results on all sets, the in-domain one first."""
        return (self.in_domain, *self.ood)

    @property
    def says_nothing(self) -> bool:
        """Whether the OOD figures are those of chance by definition."""
        return bool(self.ood) and self.members == 1 and self.score == "mutual_information"

    def of_kind(self, kind: str) -> tuple[OutOfDistribution, ...]:
        """Return the results on the sets of a kind: synthetic, natural or all."""
        return tuple(result for result in self.ood if kind in ("all", result.kind))

    def mean(self, metric: str, kind: str = "all") -> float | None:
        """Return the mean of auc, ap or fpr95 over the sets of a kind, each set counting the same."""
        values = [getattr(result, metric) for result in self.of_kind(kind)]
        return float(np.mean(values)) if values else None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds, which may be infinite, and its standard error; None where there is none, as with one seed."""

    mean: float
    standard_error: float | None
    seeds: int

    def __post_init__(self) -> None:
        if math.isnan(self.mean):
            raise ValueError("mean must be a number, got NaN")
        check_count("seeds", self.seeds, least=1)
        if self.standard_error is None:
            return
        check_number("standard_error", self.standard_error, least=0)
        if self.seeds == 1:
            raise ValueError(f"standard_error of one seed must be None: it has none, got {self.standard_error}")

    @property
    def error(self) -> float:
        """The standard error, 0 where there is none: what bars and bands are drawn with."""
        return self.standard_error or 0.0


def evaluate(
    ensemble: Ensemble,
    in_domain: ImageSet,
    ood: Mapping[str, ImageSet] | str | None = None,
    *,
    score: str = "mutual_information",
    batch_size: int | None = None,
    cache: str | Path | None = None,
    root: str | Path | None = None,
) -> Evaluation:
    """Evaluate an ensemble on labelled in-domain images that it has not seen, and on OOD sets.

    Args:
        ensemble: one that was trained on images of the same kind.
        in_domain: test images with labels.
        ood: sets by name; or the name of a preset (mnist, cifar10, cifar100, svhn), whose sets are read from the data
            folder `root`, those that are not there becoming `missing`; None: in-domain figures alone.
        score: mutual_information, predictive_entropy, expected_entropy or max_probability.
        batch_size: how many images a member sees at once; None: 64 on the CPU, 1,024 on CUDA.
        cache: a folder in which each member's predictions are kept, and found again while its weights stay the same.
        root: the data folder.

    >>> import torch
    >>> dark, bright = (np.full((4, 1, 2, 2), value, np.uint8) for value in (0, 255))
    >>> members = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)) for _ in range(3)]
    >>> with torch.no_grad():
    ...     for member, slope in zip(members, (-9.0, 0.0, 9.0)):  # they agree on dark images alone
    ...         _, _ = member[1].weight.copy_(torch.tensor([[slope], [0.0]])), member[1].bias.copy_(torch.zeros(2))
    >>> tiny = ImageSet(dark, np.array([0, 0, 0, 1]), "dark")
    >>> result = evaluate(Ensemble.from_members(members), tiny, {"bright": ImageSet(bright, None, "bright")})
    >>> result.in_domain.accuracy, result.ood[0].auc, result.ood[0].images, result.mean("fpr95", "natural")
    (0.75, 1.0, 4, 0.0)
    """
    missing: tuple[str, ...] = ()
    _check_set("in_domain", in_domain)
    ood = {} if ood is None else ood
    if isinstance(ood, str):
        ood, missing = load_preset(ood, in_domain, root)
    folder = None if cache is None else Path(cache).expanduser()
    _check_shapes(in_domain, ood)
    inside = predict(ensemble, in_domain, batch_size=batch_size, cache=folder)
    outside = (
        predict(ensemble, images.replace(name=name), batch_size=batch_size, cache=folder)
        for name, images in ood.items()
    )
    return judge(inside, outside, score=score, missing=missing)


def _check_set(name: str, images: object) -> None:
    if not isinstance(images, ImageSet):
        raise TypeError(
            f"{name} must be an ImageSet, got {type(images).__name__}; ge.data.ImageSet(x, y, 'name') makes one of "
            "uint8 images (n, channels, height, width) and labels. For other data, the functions of ge.metrics take "
            "what ensemble.predict_proba(x) returns"
        )


def _check_shapes(in_domain: ImageSet, ood: Mapping[str, ImageSet]) -> None:
    if not isinstance(ood, Mapping):
        raise TypeError(f"ood must be a dict of image sets by name, or a preset's name; got {type(ood).__name__}")
    shape = in_domain.images.shape[1:]
    for name, images in ood.items():
        _check_set(f"ood[{name!r}]", images)
        if images.images.shape[1:] != shape:
            raise ValueError(
                f"images of {name} are {images.images.shape[1:]} and those of {in_domain.name} are {shape}; "
                "ImageSet.resized and with_channels change them"
            )


def judge(
    in_domain: Predictions,
    ood: Iterable[Predictions],
    *,
    score: str = "mutual_information",
    missing: Iterable[str] = (),
) -> Evaluation:
    """Evaluate predictions; those on OOD sets may be made one at a time, and are not kept."""
    inside = _in_domain(in_domain, score)
    outside = tuple(_out_of_distribution(inside, predictions, score) for predictions in ood)
    evaluation = Evaluation(score, in_domain.members, inside, outside, tuple(missing))
    if evaluation.says_nothing:
        warnings.warn(ONE_MEMBER, stacklevel=2)
    return evaluation


def _in_domain(predictions: Predictions, kind: str) -> InDomain:
    scores = score(predictions, kind)
    if predictions.labels is None:
        raise ValueError(
            f"{predictions.name} has no labels; in-domain accuracy and calibration need one for each image"
        )
    probs, labels = predictions.mean_probabilities(), predictions.labels
    return InDomain(
        predictions.name,
        len(predictions),
        predictions.note,
        float(metrics.accuracy(probs, labels)),
        float(metrics.negative_log_likelihood(probs, labels)),
        float(metrics.brier_score(probs, labels)),
        float(metrics.adaptive_calibration_error(probs, labels)),
        float(metrics.expected_calibration_error(probs, labels)),
        scores,
        predictions.content,
        tuple(float(metrics.accuracy(np.exp(member), labels)) for member in predictions.log_probs),
    )


def _out_of_distribution(inside: InDomain, predictions: Predictions, kind: str) -> OutOfDistribution:
    scores = score(predictions, kind)
    return OutOfDistribution(
        predictions.name,
        kind_of(predictions.name),
        len(predictions),
        predictions.note,
        float(metrics.auroc(inside.scores, scores)),
        float(metrics.average_precision(inside.scores, scores)),
        float(metrics.fpr_at_tpr(inside.scores, scores, tpr=0.95)),
        scores,
        predictions.content,
    )


def score(predictions: Predictions, kind: str = "mutual_information") -> Scores:
    """Return the score of every image, (n,), in double precision.

    `max_probability` is 1 - the largest mean probability, so that it, too, grows with doubt.

    >>> sure, torn = np.log([[[1.0, 1e-9], [0.5, 0.5]]]), np.log([[[1.0, 1e-9], [0.1, 0.9]]])
    >>> score(Predictions("two", np.concatenate([sure, torn]).astype(np.float32)), "max_probability").round(3)
    array([0. , 0.3])
    """
    check_choice("score", kind, SCORES)
    return np.concatenate([SCORES[kind](probs) for probs in predictions.probabilities()])


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value a seed, and its standard error: the standard deviation (n - 1) over sqrt(n).

    An infinite value (the NLL of an impossible label) makes the mean infinite, and leaves no standard error.

    >>> estimate([1.0, 3.0]), estimate([0.5])
    (Estimate(mean=2.0, standard_error=1.0, seeds=2), Estimate(mean=0.5, standard_error=None, seeds=1))
    """
    if not values:
        raise ValueError("values must hold at least one seed's, got none")
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return Estimate(math.fsum(values) / len(values), None, len(values))
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values))
