"""A figure measured over several seeds: mean, standard error, and how many seeds there were."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from greedy_ensembles.checks import check_count, check_number


@dataclass(frozen=True)
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
