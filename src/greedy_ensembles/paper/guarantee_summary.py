"""What the cells of the guarantee study come to: ratios, slack, and their summaries over instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from greedy_ensembles.theory.objective import INAPPROXIMABILITY, RANDOM_GREEDY_FACTOR

ALGORITHMS = ("greedy", "random_greedy", "random_selection", "surrogate_greedy")
AVERAGED = ("random_greedy", "random_selection")  # over sets, so that none of them can be said to be the optimum
_EXACT = 1e-9  # a divergence this close to the least one is it, but for rounding


@dataclass(frozen=True)
class CellResult:
    """The measurements of a cell, one number an instance."""

    generator: str
    candidates: int
    size: int
    measurements: dict[str, list[float]]


@dataclass(frozen=True)
class Summary:
    """One algorithm over the instances of one or more cells."""

    generator: str
    candidates: str
    size: str
    algorithm: str
    instances: int
    value_ratio_mean: float  #: F(found) / F(optimum), with F = C - D
    value_ratio_5_percent: float  #: the quantile
    value_ratio_min: float
    below_factor: float  #: the share of instances below 1/e
    below_hardness: float  #: the share of instances below 0.491
    divergence_ratio_median: float  #: D(found) / min D
    divergence_ratio_95_percent: float
    divergence_ratio_max: float
    optimum_found: float  #: the share of instances; NaN for what is averaged over sets
    slack_min: float  #: of min D / e + (1 - 1/e) max D - D(found)
    slack_median: float
    used_median: float  #: D(found) as a share of that bound


def pooled(results: Sequence[CellResult], generator: str) -> dict[str, np.ndarray]:
    """Return the measurements of all cells of a generator, one after another, and M beside them."""
    chosen = [result for result in results if result.generator == generator]
    together = {name: np.concatenate([cell.measurements[name] for cell in chosen]) for name in chosen[0].measurements}
    together["size"] = np.concatenate([np.full(len(cell.measurements["best"]), cell.size) for cell in chosen])
    return together


def value_ratio(data: dict[str, np.ndarray], algorithm: str) -> np.ndarray:
    """Return F(found) / F(optimum) for F = C - D; 1 where all sets are equally good."""
    room = data["worst"] - data["best"]
    ratios: np.ndarray = np.where(room > 0, (data["worst"] - data[algorithm]) / np.where(room > 0, room, 1), 1.0)
    return ratios


def slack(data: dict[str, np.ndarray], algorithm: str) -> np.ndarray:
    """Return how far D(found) stays below the paper's bound, for the factor 1/e."""
    spare: np.ndarray = bound(data) - data[algorithm]
    return spare


def bound(data: dict[str, np.ndarray]) -> np.ndarray:
    """Return the paper's bound on D(found), min D / e + (1 - 1/e) max D."""
    return np.asarray(RANDOM_GREEDY_FACTOR * data["best"] + (1 - RANDOM_GREEDY_FACTOR) * data["worst"])


def summarise(data: dict[str, np.ndarray], generator: str, candidates: str, size: str, algorithm: str) -> Summary:
    """Return the summary of an algorithm over instances."""
    values, ratio = value_ratio(data, algorithm), data[algorithm] / data["best"]
    spare = slack(data, algorithm)
    numbers = (
        values.mean(),
        np.quantile(values, 0.05),
        values.min(),
        (values < RANDOM_GREEDY_FACTOR).mean(),
        (values < INAPPROXIMABILITY).mean(),
        np.median(ratio),
        np.quantile(ratio, 0.95),
        ratio.max(),
        np.nan if algorithm in AVERAGED else (ratio <= 1 + _EXACT).mean(),
        spare.min(),
        np.median(spare),
        np.median(data[algorithm] / bound(data)),
    )
    return Summary(generator, candidates, size, algorithm, len(values), *map(float, numbers))


_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "f": lambda row: row.generator,
    "algorithm": lambda row: row.algorithm.replace("_", " "),
    "F ratio, mean": lambda row: f"{row.value_ratio_mean:.3f}",
    "5 %": lambda row: f"{row.value_ratio_5_percent:.3f}",
    "least": lambda row: f"{row.value_ratio_min:.3f}",
    "below 1/e": lambda row: f"{row.below_factor:.1%}",
    "below 0.491": lambda row: f"{row.below_hardness:.1%}",
    "D / min D, median": lambda row: f"{row.divergence_ratio_median:.3g}",
    "95 %": lambda row: f"{row.divergence_ratio_95_percent:.3g}",
    "optimum found": lambda row: "" if row.algorithm in AVERAGED else f"{row.optimum_found:.1%}",
    "least slack": lambda row: f"{row.slack_min:.3g}",
    "D / bound, median": lambda row: f"{row.used_median:.2g}",
}


def markdown_table(rows: Sequence[Summary]) -> str:
    """Return summaries as a Markdown table."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    lines += ["| " + " | ".join(column(row) for column in _COLUMNS.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"
