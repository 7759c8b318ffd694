"""A figure measured over several seeds, as pictures take it."""

from collections.abc import Iterable
from dataclasses import dataclass

from greedy_ensembles.checks import check_count, check_number


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and its standard error; None where there is none to give, as with one seed."""

    mean: float
    standard_error: float | None
    seeds: int

    def __post_init__(self) -> None:
        check_number("mean", self.mean)
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


def describe_seeds(estimates: Iterable[Estimate]) -> str:
    """Return what the estimates are, in words for a caption.

    >>> describe_seeds([Estimate(0.5, None, 1)]), describe_seeds([Estimate(0.5, 0.1, 3), Estimate(0.5, 0.1, 5)])
    ('1 seed', 'mean of 3 to 5 seeds')
    """
    seeds = count_seeds(estimate.seeds for estimate in estimates)
    return seeds if seeds == "1 seed" else f"mean of {seeds}"


def count_seeds(counts: Iterable[int]) -> str:
    """Return counts of seeds in words.

    >>> count_seeds([5, 5]), count_seeds([1, 5]), count_seeds([1, 1])
    ('5 seeds', '1 to 5 seeds', '1 seed')
    """
    distinct = set(counts)
    low, high = min(distinct), max(distinct)
    number = f"{low} to {high}" if low < high else f"{low}"
    return f"{number} seed" if high == 1 else f"{number} seeds"
