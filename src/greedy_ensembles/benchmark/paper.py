"""The paper's figures, to be put beside ours where it has the same cell.

The tables are in `reference/` as they were printed: two decimals, and no standard error where it was below 0.01. A
cell belongs to an architecture, an in-domain set, a size M, a method and, for the greedy one, a lambda_M. Of
PreResNet20 and of M = 3, 5 and 7 on CIFAR the paper does not say which lambda_M it chose, so any is compared.
"""

import csv
import dataclasses
import functools
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple

_SETS = {"C10": "cifar10", "C100": "cifar100", "SVHN": "svhn", "places": "places365"}
_METHODS = {"DE": "deep", "greedy": "greedy", "greedy+outlier_exposure": "greedy, lambda_M = 1, p* = cifar10"}
_SIZE = 11  # M of all tables that do not name it
#: Columns of in-domain tables: our name of the figure, and what theirs is to be divided by.
_IN_DOMAIN = {
    "accuracy": ("accuracy", 100),
    "nll_x100": ("nll", 100),
    "ace_percent": ("ace", 100),
    "ece_percent": ("ece", 100),
}
_OOD = ("auc", "ap", "fpr95")


@dataclass(frozen=True)
class Setting:
    """What a cell of the paper belongs to."""

    architecture: str
    dataset: str
    size: int
    method: str  #: deep or greedy; of outlier exposure, whose p* no run records, with its lambda_M and p*
    strength: float | None = None


class Cell(NamedTuple):
    """A figure as printed; the standard error is None where it was left out."""

    mean: float
    standard_error: float | None


class _Key(NamedTuple):
    architecture: str
    dataset: str
    size: int
    method: str
    ood: str  #: empty for in-domain figures
    metric: str


def cell(setting: Setting | None, metric: str, ood: str = "") -> Cell | None:
    """Return the paper's figure for a setting, None where it has none; without `ood`, one of the in-domain figures.

    >>> cell(Setting("PreResNet164", "cifar100", 11, "greedy", 5.0), "auc", "uniform")
    Cell(mean=1.0, standard_error=None)
    >>> cell(Setting("PreResNet164", "cifar100", 11, "greedy", 3.0), "auc", "uniform")  # the paper chose 5
    """
    if setting is None:
        return None
    if setting.method == "greedy" and _chosen(setting) not in (None, setting.strength):
        return None
    key = _Key(setting.architecture, setting.dataset, setting.size, setting.method, ood, metric)
    return _cells().get(key)


def mean_cell(setting: Setting | None, metric: str, names: Iterable[str]) -> Cell | None:
    """Return the mean of the paper's figures over OOD sets, None unless it has all of them.

    Over the sets that we have, since a mean over other ones would be no comparison. Its cells are rounded, so it may
    be off by 0.005 and, over all ten, differ from the paper's own mean in the second decimal.
    """
    cells = [cell(setting, metric, name) for name in names]
    found = [value.mean for value in cells if value is not None]
    return Cell(statistics.fmean(found), None) if found and len(found) == len(cells) else None


def of_nearest_size(setting: Setting) -> Setting:
    """Return the setting at the nearest M of which the paper has figures, the larger of two; as it is if there is none.

    >>> of_nearest_size(Setting("VGG16BN", "svhn", 5, "deep")).size
    11
    >>> [of_nearest_size(Setting(name, "cifar10", 5, "deep")).size for name in ("PreResNet164", "mine")]
    [5, 5]
    """
    place = setting.architecture, setting.dataset, setting.method
    sizes = {key.size for key in _cells() if (key.architecture, key.dataset, key.method) == place}
    nearest = min(sizes, key=lambda other: (abs(other - setting.size), -other), default=setting.size)
    return dataclasses.replace(setting, size=nearest)


def strength_is_known(setting: Setting) -> bool:
    """Say whether the paper names the lambda_M that it took; Deep Ensembles have none to be named.

    >>> strength_is_known(Setting("PreResNet20", "cifar10", 11, "greedy", 3.0))
    False
    """
    return setting.method != "greedy" or _chosen(setting) is not None


def _chosen(setting: Setting) -> float | None:
    return _strengths().get((setting.architecture, setting.dataset, setting.size))


def image_count(ood: str) -> int | None:
    """Return how many images of a set the paper counts.

    >>> image_count("svhn"), image_count("mine")
    (73257, None)
    """
    counts = {row["dataset"]: int(row["samples"]) for row in table("ood_datasets")}
    return counts.get(ood)


@functools.cache
def table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of one of the paper's tables."""
    text = (resources.files("greedy_ensembles.benchmark") / "reference" / f"{name}.csv").read_text()
    return tuple(csv.DictReader(text.splitlines()))


@functools.cache
def _strengths() -> dict[tuple[str, str, int], float]:
    """Return lambda_M by architecture, in-domain set and size, where the paper names it."""
    named = {
        (row["architecture"], _SETS[row["dataset"]], _SIZE): float(row["lambda_m"])
        for row in table("in_domain")
        if row["lambda_m"]
    }
    mnist = {("PreResNet8", "mnist", int(row["size"])): 0.1 for row in table("in_domain_mnist")}
    return named | mnist


@functools.cache
def _cells() -> dict[_Key, Cell]:
    return dict(
        entry
        for name in (
            *("in_domain", "in_domain_mnist", "small_ensembles"),
            *("ood_outlier_exposure", "ood_c10", "ood_c100", "ood_svhn", "ood_mnist", "ood_preresnet20"),
        )
        for row in table(name)
        for entry in _entries(row, name)
    )


def _entries(row: dict[str, str], name: str) -> Iterator[tuple[_Key, Cell]]:
    mnist = "mnist" in name
    unnamed = {"ood_preresnet20": "PreResNet20", "in_domain_mnist": "PreResNet8", "ood_mnist": "PreResNet8"}
    fallback = unnamed.get(name, "PreResNet164")
    dataset = "mnist" if mnist else _SETS[row.get("dataset", "C100")]
    place = row.get("architecture", fallback), dataset, int(row.get("size", _SIZE)), _METHODS[row["method"]]
    ood = _SETS.get(row.get("ood", ""), row.get("ood", ""))
    for column, (metric, divisor) in _IN_DOMAIN.items():
        if row.get(column):
            yield _Key(*place, "", metric), _cell(row, column, divisor)
    for metric in _OOD:
        if row.get(metric):
            yield _Key(*place, ood, metric), _cell(row, metric)
        for other in ("svhn", "lsun"):  # columns of their own in the table of small ensembles
            if row.get(f"{other}_{metric}"):
                yield _Key(*place, other, metric), _cell(row, f"{other}_{metric}")


def _cell(row: dict[str, str], column: str, divisor: float = 1) -> Cell:
    error = row[f"{column}_se"]
    return Cell(float(row[column]) / divisor, float(error) / divisor if error else None)
