"""The benchmark of one ensemble: how good it is in its domain, and how well its uncertainty finds what lies outside.

OOD images are the positive class. AP depends on how many of them there are for each in-domain image, so every result
carries both counts. Everything is computed from log-probabilities (`predictions`), so it can be had from an ensemble
(`evaluate`) as well as from predictions that came from another machine (`judge`); `elsewhere` takes what others made.
All scores are computed and kept. One of them is chosen, and `Evaluation.by` chooses another. `estimate` turns the
figures of several seeds into a mean and its standard error.
"""

import dataclasses
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.predictions import InputSet, Predictions, as_sets, predict
from greedy_ensembles.benchmark.presets import kind_of
from greedy_ensembles.benchmark.scores import NEIGHBOUR, SCORES, Scores, check_score, scores_of
from greedy_ensembles.checks import as_all, as_path, check_choice, check_count, check_kind, check_number
from greedy_ensembles.engines.prediction import FeatureFunction, check_features
from greedy_ensembles.ensemble import Ensemble

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
    """Figures on the labelled in-domain images, of the members' mean probabilities; NaN where none are known."""

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
    every_score: Mapping[str, Scores] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    unit: str = "images"  #: what `images` counts


class Detection(NamedTuple):
    """How well one score tells OOD images, the positive class, from in-domain ones."""

    auc: float  #: area under the ROC curve
    ap: float  #: average precision
    fpr95: float  #: false-positive rate where 95 % of OOD images are found

    @classmethod
    def of(cls, inside: Scores, outside: Scores) -> "Detection":
        """Return the figures of scores of in-domain and of OOD images."""
        return cls(
            float(metrics.auroc(inside, outside)),
            float(metrics.average_precision(inside, outside)),
            float(metrics.fpr_at_tpr(inside, outside, tpr=0.95)),
        )


@dataclasses.dataclass(frozen=True)
class OutOfDistribution:
    """How well the chosen score, and every other, tells one OOD set from the in-domain images."""

    name: str
    kind: str  #: synthetic (noise that is made) or natural
    images: int
    note: str
    auc: float
    ap: float
    fpr95: float
    scores: Scores = dataclasses.field(repr=False, compare=False)
    content: str = ""  #: a hash of the images, if it is known
    by_score: Mapping[str, Detection] = dataclasses.field(default_factory=dict)  #: of all scores, the chosen one too
    every_score: Mapping[str, Scores] = dataclasses.field(default_factory=dict, repr=False, compare=False)


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

    @property
    def known_scores(self) -> tuple[str, ...]:
        """The scores that there are figures of, in the order of tables."""
        return tuple(self.ood[0].by_score if self.ood else ()) or (self.score,)

    def by(self, score: str) -> "Evaluation":
        """Return the evaluation with another score chosen, whose figures are there already."""
        if score == self.score:
            return self
        check_choice("score", score, self.known_scores)
        none = np.empty(0)  # scores of single images are not kept in records

        def chosen(result: OutOfDistribution) -> OutOfDistribution:
            figures = result.by_score[score]._asdict()
            return dataclasses.replace(result, **figures, scores=result.every_score.get(score, none))

        inside = dataclasses.replace(self.in_domain, scores=self.in_domain.every_score.get(score, none))
        return dataclasses.replace(self, score=score, in_domain=inside, ood=tuple(map(chosen, self.ood)))

    def without_scores(self) -> dict[str, Any]:
        """Return all of it as JSON has it, but the scores of single images."""
        content = dataclasses.asdict(self)
        for result in (content["in_domain"], *content["ood"]):
            del result["scores"], result["every_score"]
        return json.loads(json.dumps(content))  # type: ignore[no-any-return]

    def of_kind(self, kind: str) -> tuple[OutOfDistribution, ...]:
        """Return the results on the sets of a kind: synthetic, natural or all."""
        check_choice("kind", kind, KINDS)
        return tuple(result for result in self.ood if kind in ("all", result.kind))

    def mean(self, metric: str, kind: str = "all") -> float | None:
        """Return the mean of auc, ap or fpr95 over the sets of a kind, each set counting the same."""
        check_choice("metric", metric, OOD_METRICS)
        values = [getattr(result, metric) for result in self.of_kind(kind)]
        return float(np.mean(values)) if values else None


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over seeds, which may be infinite, and its standard error; None where there is none, as with one seed."""

    mean: float
    standard_error: float | None
    seeds: int  #: how many the mean is over

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
    in_domain: Any,
    ood: Mapping[str, Any] | str | None = None,
    *,
    score: str = "mutual_information",
    features: str | FeatureFunction | None = None,
    reference: Any = None,
    batch_size: int | None = None,
    cache: str | Path | None = None,
    root: str | Path | None = None,
) -> Evaluation:
    """Evaluate an ensemble on labelled in-domain data that it has not seen, and on OOD sets.

    Args:
        ensemble: one that was trained on data of the same kind.
        in_domain: test data with labels, an image set or what else `ge.fit` takes; a DataLoader is held in memory.
        ood: inputs by name; or the name of a preset (mnist, cifar10, cifar100, svhn), whose sets are read from the data
            folder `root`, those that are not there becoming `missing`; None: in-domain figures alone.
        score: the one that is chosen, a name of `SCORES`; all others that can be had are computed, too.
        features: for the scores knn and mahalanobis: a layer's name, or a function of a member and a batch as it takes
            it. Outputs of convolutions are averaged over pixels.
        reference: with `features`, labelled examples that features are compared with: those that it was trained on.
        batch_size: how many inputs a member sees at once; None: 64 on the CPU, 1,024 on CUDA.
        cache: a folder in which each member's predictions are kept, and found again while its weights stay the same.
        root: the data folder.

    >>> import torch
    >>> dark, bright = (np.full((4, 1, 2, 2), value, np.uint8) for value in (0, 255))
    >>> members = [torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)) for _ in range(3)]
    >>> with torch.no_grad():
    ...     for member, slope in zip(members, (-9.0, 0.0, 9.0)):  # they agree on dark images alone
    ...         _, _ = member[1].weight.copy_(torch.tensor([[slope], [0.0]])), member[1].bias.copy_(torch.zeros(2))
    >>> result = evaluate(Ensemble.from_members(members), (dark, np.array([0, 0, 0, 1])), {"bright": bright})
    >>> result.in_domain.accuracy, result.ood[0].auc, result.ood[0].images, result.mean("fpr95", "natural")
    (0.75, 1.0, 4, 0.0)
    """
    check_kind("ensemble", ensemble, Ensemble, "a ge.Ensemble")
    check_score(score, features=features is not None)
    inside, outside, missing = as_sets(in_domain, {} if ood is None else ood, root)
    known = as_reference(ensemble, features, reference)
    for each in (inside, *outside):
        each.check(ensemble)
    folder = None if cache is None else as_path("cache", cache)

    def predicted(given: InputSet) -> Predictions:
        return predict(ensemble, given, batch_size=batch_size, cache=folder, features=features)

    compared_with = None if known is None else predicted(known)
    return judge(predicted(inside), map(predicted, outside), score=score, missing=missing, reference=compared_with)


def as_reference(ensemble: Ensemble, features: str | FeatureFunction | None, reference: Any) -> InputSet | None:
    """Return the examples that features are compared with, None where none are asked for; or refuse them."""
    if (features is None) != (reference is None):
        raise ValueError("features and reference go together: what is compared, and the examples it is compared with")
    if features is None:
        return None
    check_features(ensemble, features)
    known = InputSet.of("reference", reference, "reference", labelled=True)
    if known.count < NEIGHBOUR:
        raise ValueError(f"reference must hold at least {NEIGHBOUR} examples, got {known.count}")
    known.check(ensemble)
    return known


def judge(
    in_domain: Predictions,
    ood: Iterable[Predictions],
    *,
    score: str = "mutual_information",
    missing: Iterable[str] = (),
    reference: Predictions | None = None,
) -> Evaluation:
    """Evaluate predictions; those on OOD sets may be made one at a time, and are not kept.

    Args:
        in_domain: predictions on labelled examples.
        ood: predictions on OOD sets.
        score: the one that is chosen.
        missing: names of sets that should be there and are not.
        reference: predictions with features on labelled examples, which features of the others are compared with.
    """
    check_kind("in_domain", in_domain, Predictions, "Predictions")
    check_kind("ood", ood, Iterable, "a list of Predictions")
    missing = as_all("missing", missing, str, "names of sets")
    check_score(score, features=reference is not None)
    inside = _in_domain(in_domain, score, reference)
    outside = tuple(_out_of_distribution(inside, each, score, reference) for each in ood)
    evaluation = Evaluation(score, in_domain.members, inside, outside, tuple(missing))
    if evaluation.says_nothing:
        warnings.warn(ONE_MEMBER, stacklevel=2)
    return evaluation


def _in_domain(predictions: Predictions, kind: str, reference: Predictions | None) -> InDomain:
    if predictions.labels is None:
        raise ValueError(
            f"{predictions.name} has no labels; in-domain accuracy and calibration need one for each image"
        )
    every = scores_of(predictions, reference)
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
        _chosen(every, kind, predictions.name),
        predictions.content,
        tuple(float(metrics.accuracy(np.exp(member), labels)) for member in predictions.log_probs),
        every,
        predictions.unit,
    )


def _chosen(every: Mapping[str, Scores], kind: str, name: str) -> Scores:
    if kind not in every:
        raise ValueError(f"score={kind!r} needs {SCORES[kind]}, which the predictions on {name} come without")
    return every[kind]


def _out_of_distribution(
    inside: InDomain, own: Predictions, kind: str, reference: Predictions | None
) -> OutOfDistribution:
    every = scores_of(own, reference)
    return out_of_distribution(inside, own.name, len(own), kind, every, own.note, own.content)


def out_of_distribution(
    inside: InDomain, name: str, count: int, kind: str, every: Mapping[str, Scores], note: str = "", content: str = ""
) -> OutOfDistribution:
    """Return the figures of all scores that in-domain and OOD images have."""
    own = _chosen(every, kind, name)
    by_score = {
        each: Detection.of(inside.every_score[each], every[each]) for each in inside.every_score if each in every
    }
    return OutOfDistribution(name, kind_of(name), count, note, *by_score[kind], own, content, by_score, every)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value a seed, and its standard error: the standard deviation (n - 1) over sqrt(n).

    An infinite value (the NLL of an impossible label) makes the mean infinite, and leaves no standard error.

    >>> estimate([1.0, 3.0]), estimate([0.5])
    (Estimate(mean=2.0, standard_error=1.0, seeds=2), Estimate(mean=0.5, standard_error=None, seeds=1))
    """
    values = as_all("values", values, Real, "numbers")
    if not values:
        raise ValueError("values must hold at least one seed's, got none")
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return Estimate(math.fsum(values) / len(values), None, len(values))
    return Estimate(statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)), len(values))
