"""The paper's figures, to be put beside ours where it has the same cell.

The tables are in `reference/` as they were printed: two decimals, and no standard error where it was below 0.01. A
cell belongs to an architecture, an in-domain set, a size M, a method and, for the greedy one, a lambda_M. Of
PreResNet20 and of M = 3, 5 and 7 on CIFAR the paper does not say which lambda_M it chose, so any is compared.
"""

import csv
import dataclasses
import functools
from collections.abc import Iterator
from importlib import resources
from typing import Any, NamedTuple

from greedy_ensembles.benchmark.evaluation import Cell
from greedy_ensembles.benchmark.runs import RunFacts, Setting
from greedy_ensembles.method import METHODS
from greedy_ensembles.runs.configuration import describe, differences
from greedy_ensembles.training import Recipe

#: By name, in what the paper's networks differ from ours of that name: the published code builds them so.
PUBLISHED: dict[str, dict[str, Any]] = {
    "PreResNet164": {"blocks_per_stage": 27},
    "WideResNet28x10": {"published": True},
}
_NO_MATTER = {"deterministic", "members_at_once"}  # the one changes rounding; the other is told with the schedule
_OF_P_STAR = {"weighting_batch_size", "weighting_statistics", "weighting_samples"}  # which Deep Ensembles never draw
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


class _Key(NamedTuple):
    architecture: str
    dataset: str
    size: int
    method: str
    ood: str  #: empty for in-domain figures
    metric: str


def setting_of(facts: RunFacts) -> Setting | None:
    """Return the place of a run in the paper's tables; None for networks, p* or distances that are not the paper's."""
    configuration, p_star = facts.configuration, facts.configuration["weighting"] or {}
    published = (p_star.get("class"), p_star.get("overflow"), p_star.get("scale")) == ("Gaussian", "wrap", 5.0)
    distance = configuration["distance"] == "probabilities"
    if facts.information["data"] is None or not is_published(facts) or configuration.get("earlier") is not None:
        return None
    names = {kind.label: name for name, kind in METHODS.items()}
    method = names.get(configuration["method"]["label"], "")
    if method != "deep" and not (method == "greedy" and published and distance):
        return None
    return Setting(facts.architecture, facts.dataset, facts.size, method, facts.strength)


def is_published(facts: RunFacts) -> bool:
    """Say whether the network is one of ours as the paper has it; one of the same name from elsewhere may be any."""
    model = facts.information["model"]
    if not isinstance(model, dict) or not str(model.get("partial")).startswith("greedy_ensembles.models."):
        return False
    others = {name: value for name, value in model["keywords"].items() if name not in ("classes", "channels")}
    return others == PUBLISHED.get(facts.architecture, {})


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


def _chosen(setting: Setting) -> float | None:
    return strengths().get((setting.architecture, setting.dataset, setting.size))


def departures(facts: RunFacts) -> str:
    """Return in what a run was trained otherwise than the paper's, empty for the paper's own and for what it lacks."""
    if not _is_trained_there(facts):
        return ""
    told = []
    if found := differing(facts):
        told.append(f"trained otherwise than in the paper: {', '.join(found)}")
    if facts.architecture in PUBLISHED and not is_published(facts):
        settings = ", ".join(f"{name}={value}" for name, value in PUBLISHED[facts.architecture].items())
        told.append(f"the paper's {facts.architecture} has {settings}, so its figures are not beside these")
    if (place := setting_of(facts)) is not None and place.method == "greedy" and _chosen(place) is None:
        told.append("the paper does not say which lambda_M it took here")
    return "; ".join(told)


def differing(facts: RunFacts) -> list[str]:
    """Return the settings of a run that are not those of the authors' code, each with both values."""
    if not _is_trained_there(facts):
        return []
    published = describe(Recipe.paper(facts.dataset, facts.architecture))
    own = facts.configuration["recipe"]
    recipe = {name: own[name] for name in published if name in own}
    no_matter = _NO_MATTER | (_OF_P_STAR if facts.strength is None else set())
    found = [
        f"{where} {ours} instead of {theirs}"
        for where, ours, theirs in differences(recipe, {name: published[name] for name in recipe})
        if where not in no_matter
    ]
    shape = (facts.information["data"] or {}).get("shape")
    if facts.dataset == "mnist" and shape and shape[0] != 3:
        found.append(f"images of {shape[0]} channel instead of three equal ones")
    if facts.strength and facts.configuration.get("schedule", "sequential") != "sequential":
        groups = "" if facts.groups is None else f" in groups of {facts.groups}"
        found.append(f"schedule {facts.configuration['schedule']}{groups} instead of sequential")
    if facts.information.get("extended_from"):
        found.append("grown from fewer members")
    return found


def _is_trained_there(facts: RunFacts) -> bool:
    try:
        Recipe.paper(facts.dataset, facts.architecture)
    except ValueError:
        return False
    return True


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
    text = (resources.files("greedy_ensembles.paper") / "reference" / f"{name}.csv").read_text()
    return tuple(csv.DictReader(text.splitlines()))


@functools.cache
def strengths() -> dict[tuple[str, str, int], float]:
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
