"""Every score of an example that predictions allow, from one pass over them; a higher score means more OOD."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.predictions import Predictions
from greedy_ensembles.checks import check_choice, check_kind

Scores = npt.NDArray[np.float64]

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
