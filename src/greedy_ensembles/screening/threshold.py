"""The score from which on an input is flagged, so that in-domain ones seldom are.

As everywhere here, a threshold t calls every score >= t out of distribution.
"""

import math
from fractions import Fraction

import numpy as np

from greedy_ensembles.checks import check_number


def threshold_at(scores: np.ndarray, fpr: float) -> float:
    """Return the least threshold that a new in-domain score reaches with a probability of at most `fpr`.

    That is the number just above the r-th smallest of n scores with r = ceil((1 - fpr) (n + 1)), the bound of conformal
    prediction: if the new score is exchangeable with the n, at most a share of fpr lies above, ties or not. Counting
    n + 1 and not n is what makes it hold for new scores, rather than for those that the threshold was found on.

    >>> threshold_at(np.array([0.1, 0.2, 0.3, 0.4]), 0.2) > 0.4  # one score in five may be new, and above all four
    True
    """
    check_rate(fpr, len(scores))
    if scores.ndim != 1 or not np.isfinite(scores).all():
        raise ValueError(f"scores must be finite numbers of shape (n,), got shape {scores.shape}")
    rank = math.ceil((1 - _exact(fpr)) * (len(scores) + 1))
    return math.nextafter(float(np.partition(scores, rank - 1)[rank - 1]), math.inf)


def check_rate(fpr: float, count: int) -> None:
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
