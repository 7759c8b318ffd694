"""What is known of one ensemble: how good it is in its domain, and how well its uncertainty finds what lies outside.

OOD images are the positive class. AP depends on how many of them there are for each in-domain image, so every result
carries both counts. `judging` makes evaluations.
"""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from greedy_ensembles import metrics
from greedy_ensembles.checks import as_all, check_choice, check_count, check_number

Scores = npt.NDArray[np.float64]

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


class Cell(NamedTuple):
    """A figure as others printed it; the standard error is None where it was left out."""

    mean: float
    standard_error: float | None


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
