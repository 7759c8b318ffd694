"""Evaluations of what others made: probabilities of any model, scores of any detector, to stand in the same table."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.evaluation import Evaluation, InDomain, judge, out_of_distribution
from greedy_ensembles.benchmark.predictions import IN_DOMAIN, Predictions
from greedy_ensembles.benchmark.scores import SCORES, Scores, check_score
from greedy_ensembles.checks import as_all, check_kind
from greedy_ensembles.metrics.values import check_probabilities


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
    outside = (out_of_distribution(inside, given, len(own), name, {name: own}) for given, own in each.items())
    return Evaluation(name, 1, inside, tuple(outside))


def _scores(name: str, values: Any) -> Scores:
    found = _numbers(name, values)
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise ValueError(f"{name} must be finite numbers of shape (n,), got {found!r}")
    return found
