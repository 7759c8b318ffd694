"""From predictions to figures: of an ensemble, of predictions from another machine, and of what others made.

Every score of an example that predictions allow comes from one pass over them; a higher score means more OOD.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.evaluation import ONE_MEMBER, Detection, Evaluation, InDomain, OutOfDistribution, Scores
from greedy_ensembles.benchmark.predictions import IN_DOMAIN, InputSet, Predictions, as_sets, predict
from greedy_ensembles.benchmark.presets import kind_of
from greedy_ensembles.checks import as_all, check_choice, check_kind
from greedy_ensembles.engines.prediction import FeatureFunction, check_features
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.metrics.values import check_probabilities

#: From probabilities (members, n, classes) in double precision to scores (n,). The paper's is the first.
_OF_PROBABILITIES: dict[str, Callable[[Scores], Scores]] = {
    "mutual_information": metrics.mutual_information,
    "predictive_entropy": metrics.predictive_entropy,
    "expected_entropy": metrics.expected_entropy,
    "max_probability": lambda probs: -metrics.max_probability(probs),
    "mean_pairwise_kl": metrics.mean_pairwise_kl,
}
#: Every score by its name, with what it needs beside probabilities.
SCORES: dict[str, str] = {
    **dict.fromkeys(_OF_PROBABILITIES, ""),
    "energy": "logits",
    "energy_of_mean": "logits",
    "knn": "features",
    "mahalanobis": "features",
}
#: The neighbour that `knn` takes the distance to.
NEIGHBOUR = 50


def scores_of(predictions: Predictions, reference: Predictions | None = None) -> dict[str, Scores]:
    """Return all scores that can be had, (n,) each in double precision, by name and in the order of `SCORES`.

    `max_probability` is the negative of the largest mean probability. `energy`, the members' mean, and
    `energy_of_mean`, that of their mean logits, need predictions that know each member's logsumexp; they differ by the
    mean KL divergence to members from their normalised geometric mean. `knn` (k = 50) and `mahalanobis` need features,
    and those of labelled in-domain examples, the `reference`; they are means over members.

    >>> sure, torn = np.log([[[1.0, 1e-9], [0.5, 0.5]]]), np.log([[[1.0, 1e-9], [0.1, 0.9]]])
    >>> two = Predictions("two", np.concatenate([sure, torn]).astype(np.float32))
    >>> {name: values.round(3).tolist() for name, values in scores_of(two).items() if name == "max_probability"}
    {'max_probability': [-1.0, -0.7]}
    """
    check_kind("predictions, and each of ood,", predictions, Predictions, "Predictions")
    parts = [{name: score(probs) for name, score in _OF_PROBABILITIES.items()} for probs in predictions.probabilities()]
    found = {name: np.concatenate([part[name] for part in parts]) for name in _OF_PROBABILITIES}
    if predictions.logsumexp is not None:
        sums = predictions.logsumexp.astype(np.float64)
        found["energy"] = -sums.mean(axis=0)
        if len(sums) > 1:  # of one member it is the same
            logits = (logs + own[:, None] for logs, own in zip(predictions.log_probs, sums, strict=True))
            found["energy_of_mean"] = metrics.energy(sum(logits)[None] / len(sums))
    if predictions.features is not None and reference is not None:
        if reference.features is None or reference.labels is None:
            raise ValueError(f"reference must hold features and labels; {reference.name} does not")
        pairs, labels = list(zip(predictions.features, reference.features, strict=True)), reference.labels
        found["knn"] = np.mean([metrics.knn_distance(own, known, NEIGHBOUR) for own, known in pairs], axis=0)
        found["mahalanobis"] = np.mean([metrics.mahalanobis_distance(*pair, labels) for pair in pairs], axis=0)
    return found


def check_score(name: str, argument: str = "score", features: bool = False) -> None:
    """Raise ValueError unless there is such a score, and features where it needs them."""
    check_choice(argument, name, SCORES)
    if SCORES[name] == "features" and not features:
        raise ValueError(f"{argument}={name!r} needs features= (a layer's name) and reference= (labelled examples)")


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

    def predicted(given: InputSet) -> Predictions:
        return predict(ensemble, given, batch_size=batch_size, cache=cache, features=features)

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
    outside = tuple(
        _outside(inside, scores_of(each, reference), score, each.name, each.note, each.content) for each in ood
    )
    evaluation = Evaluation(score, in_domain.members, inside, outside, tuple(missing))
    if evaluation.says_nothing:
        warnings.warn(ONE_MEMBER, stacklevel=2)
    return evaluation


def _in_domain(predictions: Predictions, score: str, reference: Predictions | None) -> InDomain:
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
        _chosen(every, score, predictions.name),
        predictions.content,
        tuple(float(metrics.accuracy(np.exp(member), labels)) for member in predictions.log_probs),
        every,
        predictions.unit,
    )


def _chosen(every: Mapping[str, Scores], score: str, name: str) -> Scores:
    if score not in every:
        raise ValueError(f"score={score!r} needs {SCORES[score]}, which the predictions on {name} come without")
    return every[score]


def _outside(
    inside: InDomain, every: Mapping[str, Scores], score: str, name: str, note: str = "", content: str = ""
) -> OutOfDistribution:
    own = _chosen(every, score, name)
    found = {each: Detection.of(inside.every_score[each], every[each]) for each in inside.every_score if each in every}
    return OutOfDistribution(name, kind_of(name), len(own), note, *found[score], own, content, found, every)


def judge_probabilities(
    name: str, probs: Any, labels: Any, ood: Mapping[str, Any], *, score: str = "predictive_entropy"
) -> Evaluation:
    """Evaluate probabilities that anything made: another library, a server, samples of a posterior.

    Args:
        name: what predicted them, for messages.
        probs: of labelled in-domain examples, (members or samples, n, classes), or (n, classes) of one model.
        labels: of these, whole numbers of shape (n,).
        ood: the same of OOD sets, by name.
        score: the one that is chosen, of those that probabilities allow.

    >>> found = judge_probabilities("mine", np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1]),
    ...                             {"noise": np.array([[0.5, 0.5]])})
    >>> found.in_domain.accuracy, found.ood[0].auc
    (1.0, 1.0)
    """
    check_kind("name", name, str, "a text")
    check_score(score, features=True)  # whatever it needs is refused here
    if SCORES[score]:
        raise ValueError(f"score={score!r} needs {SCORES[score]}, and {name} has probabilities alone")
    inside = _probabilities(f"{name}: probs", probs)
    outside = {given: _probabilities(f"{name}: probs of {given}", values) for given, values in _by_name(ood)}
    for given, values in outside.items():
        if (len(values), values.shape[2]) != (len(inside), inside.shape[2]):
            raise ValueError(
                f"{name}: probs of {given} are of {len(values)} members and {values.shape[2]} classes, and those in "
                f"the domain of {len(inside)} and {inside.shape[2]}"
            )
    true = _as_array(labels)
    metrics.accuracy(inside[0], true)  # refuses labels that will not do
    sets = (_predictions(given, values) for given, values in outside.items())
    return judge(_predictions(IN_DOMAIN, inside, true), sets, score=score)


def _by_name(ood: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    if not isinstance(ood, Mapping):
        raise TypeError(f"ood must be a dict by the names of sets, got {type(ood).__name__}")
    as_all("names of ood", ood, str, "texts")
    return ood.items()


def _as_array(values: Any) -> npt.NDArray[Any]:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # which numpy has not
    return np.asarray(values)


def _numbers(name: str, values: Any) -> Scores:
    """Return a copy, which may be written to, in double precision."""
    found = _as_array(values)
    if found.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers, got {found.dtype}")
    return found.astype(np.float64)


def _probabilities(name: str, probs: Any) -> Scores:
    values = _numbers(name, probs)
    values = values[None] if values.ndim == 2 else values
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"{name} must be of shape (members, n, classes) or (n, classes), got {values.shape}")
    check_probabilities(name, torch.from_numpy(values))
    values /= values.sum(axis=2, keepdims=True)
    return values


def _predictions(name: str, probs: Scores, labels: npt.NDArray[Any] | None = None) -> Predictions:
    with np.errstate(divide="ignore"):  # a probability may be 0
        return Predictions(name, np.log(probs).astype(np.float32), labels)


def judge_scores(name: str, in_scores: Any, ood: Mapping[str, Any]) -> Evaluation:
    """Evaluate the scores of any detector, which need no probabilities; higher means more OOD.

    Args:
        name: what the score is called.
        in_scores: of in-domain examples, (n,).
        ood: the same of OOD sets, by name.

    >>> judge_scores("norm", np.array([0.1, 0.2, 0.3]), {"far": np.array([0.25, 9.0])}).ood[0].auc
    0.8333333333333334
    """
    check_kind("name", name, str, "a text")
    scores = _scores(f"{name}: in_scores", in_scores)
    none = math.nan
    inside = InDomain(IN_DOMAIN, len(scores), "", none, none, none, none, none, scores, every_score={name: scores})
    each = {given: _scores(f"{name}: scores of {given}", values) for given, values in _by_name(ood)}
    return Evaluation(name, 1, inside, tuple(_outside(inside, {name: own}, name, given) for given, own in each.items()))


def _scores(name: str, values: Any) -> Scores:
    found = _numbers(name, values)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite numbers of shape (n,), got {found!r}")
    return found
