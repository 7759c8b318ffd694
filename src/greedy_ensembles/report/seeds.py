"""How many seeds figures are over, in words for captions."""

from collections.abc import Iterable

from greedy_ensembles.benchmark.evaluation import Estimate


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
