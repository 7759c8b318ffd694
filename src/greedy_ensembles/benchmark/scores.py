"""Scores of how much an image looks out of distribution; of all of them a higher one means more so."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from greedy_ensembles import metrics
from greedy_ensembles.benchmark.predictions import Predictions
from greedy_ensembles.checks import check_choice

Scores = npt.NDArray[np.float64]

#: From probabilities (members, n, classes) in double precision to scores (n,). The paper's is the first.
SCORES: dict[str, Callable[[Scores], Scores]] = {
    "mutual_information": metrics.mutual_information,
    "predictive_entropy": metrics.predictive_entropy,
    "expected_entropy": metrics.expected_entropy,
    "max_probability": lambda probs: 1 - probs.mean(axis=0).max(axis=1),
}


def score(predictions: Predictions, kind: str = "mutual_information") -> Scores:
    """Return the score of every image, (n,), in double precision.

    `max_probability` is 1 - the largest mean probability, so that it, too, grows with doubt.

    >>> sure, torn = np.log([[[1.0, 1e-9], [0.5, 0.5]]]), np.log([[[1.0, 1e-9], [0.1, 0.9]]])
    >>> score(Predictions("two", np.concatenate([sure, torn]).astype(np.float32)), "max_probability").round(3)
    array([0. , 0.3])
    """
    check_choice("score", kind, SCORES)
    return np.concatenate([SCORES[kind](probs) for probs in predictions.probabilities()])
