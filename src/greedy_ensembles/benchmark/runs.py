"""Which runs are repetitions of each other: the same in everything but the seed; and what to call those that are not.

A run is known here by what its run.json says, so that predictions packed elsewhere will do as well as the folder, and
so is the place that it has among figures that others published.
"""

import json
import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from greedy_ensembles.benchmark.evaluation import Cell
from greedy_ensembles.checks import naming
from greedy_ensembles.method import Deep
from greedy_ensembles.runs.configuration import differences, in_todays_words

#: What tables call the method whose members do not meet, which all others are compared with.
BASELINE = Deep.label
_LARGEST = 256  # pixels a side: several times those of any set that has a name here; more would fill memory
#: What runs with a lambda_M may differ in; and what they may differ in from those without, which draw no p*.
_STRENGTH = {"method.strength"}
_OF_P_STAR = {f"recipe.weighting_{name}" for name in ("batch_size", "statistics", "samples")}
_COUPLING = {"method", "weighting", "distance", *_OF_P_STAR}
_EXPECTED = {"method", "strength", "weighting", "distance", "size"}  # what runs are put side by side for


@dataclass(frozen=True, eq=False)
class RunFacts:
    """What is known of a run without its weights."""

    source: str  #: the folder, or the file of packed predictions
    information: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not {"size", "configuration", "model", "data"} <= self.information.keys():
            raise ValueError(f"{self.source} does not say which run it comes from; pack predictions with its run.json")
        with naming(self.source, "does not say of its run what a run.json says"):  # it may be someone else's
            for name in ("size", "seed", "method", "architecture", "image_shape", "training_note", "but_the_seed"):
                getattr(self, name)
            if self.information["data"] is not None:  # else asking would refuse arrays
                self.dataset  # noqa: B018 (which looks for it)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All arguments that training depended on."""
        return in_todays_words(self.information["configuration"])

    @property
    def size(self) -> int:
        """M."""
        return int(self.information["size"])

    @property
    def seed(self) -> int:
        """Where its random numbers came from."""
        return int(self.configuration["seed"])

    @property
    def strength(self) -> float | None:
        """lambda_M; None for methods without."""
        return self.configuration["method"].get("strength")  # type: ignore[no-any-return]

    @property
    def label(self) -> str:
        """What tables call the method, without its strength."""
        return str(self.configuration["method"]["label"])

    @property
    def is_baseline(self) -> bool:
        """Whether it is what others are compared with."""
        return self.label == BASELINE

    @property
    def method(self) -> str:
        """What tables call the method, its strength included."""
        return self.label if self.strength is None else f"{self.label}, lambda_M = {self.strength:g}"

    @property
    def dataset(self) -> str:
        """The name of the image set it was trained on."""
        if self.information["data"] is None:
            raise ValueError(
                f"{self.source} was trained on arrays, which have no name; name labelled data with --on, or evaluate "
                "it in Python, with ge.benchmark.evaluate"
            )
        return str(self.information["data"]["name"])

    @property
    def architecture(self) -> str:
        """PreResNet20, VGG16BN, MLP(2), ...; of a model of one's own, the name of its factory."""
        model = self.information["model"]
        if not isinstance(model, dict) or "partial" not in model:
            return str(model)
        name, arguments = str(model["partial"]).rpartition(".")[2], [str(argument) for argument in model["args"]]
        if name == "PreResNet" and len(arguments) == 1:  # the one network whose depth is part of its name
            return f"{name}{arguments[0]}"
        return f"{name}({', '.join(arguments)})" if arguments else name

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of the square images it was trained on, None where it does not say.

        A set may have been resized before training, and keeps its name. Runs of older versions tell by their p* alone.
        """
        p_star = self.configuration["weighting"] or {}
        if (data := self.information["data"]) and "shape" in data:
            p_star = {"shape": data["shape"]}
        try:
            described = [value["shape"] for key in ("mean", "std") if isinstance(value := p_star.get(key), dict)]
            given = p_star["x"]["shape"][1:] if "x" in p_star else p_star.get("shape", ())
            channels, height, width = np.broadcast_shapes(*described) if described else map(operator.index, given)
        except (KeyError, TypeError, ValueError):  # of points or of numbers, or from people who write what they like
            return None
        plausible = channels in (1, 3) and 0 < height == width <= _LARGEST
        return (channels, height, width) if plausible else None

    @property
    def training_note(self) -> str:
        """What is partial or a stand-in about the images that it was trained on, else empty."""
        data = self.information["data"]
        return f"trained on {data['name']}: {data['note']}" if data and data["note"] else ""

    @property
    def prediction_note(self) -> str:
        """In what its predictions were made where that was not full single precision, else empty."""
        return "predicted on a GPU with products in TF32" if self.information.get("judged_in") == "tf32" else ""

    @property
    def groups(self) -> int | None:
        """How many members trained together, where that was some of them and they could see each other."""
        count = self.information.get("members_at_once")
        alone = not self.strength or self.configuration.get("schedule", "sequential") == "sequential"
        return None if alone or not isinstance(count, int) or count >= self.size else count

    @property
    def but_the_seed(self) -> dict[str, Any]:
        """All that repetitions of the run have in common."""
        kept = {key: self.information.get(key) for key in ("size", "extended_from")}
        configuration = {key: value for key, value in self.configuration.items() if key != "seed"}
        # configuration["model"] has the shapes of parameters; what made them is the better name for a difference.
        return {**kept, "groups of": self.groups, "factory": self.information["model"], **configuration}


@dataclass(frozen=True)
class Setting:
    """What a published figure belongs to."""

    architecture: str
    dataset: str
    size: int
    method: str  #: a name of the registry, or more where that does not say all
    strength: float | None = None


class Published(Protocol):
    """Figures of others, to be put beside ours where they have the same cell. A module can be one."""

    def setting_of(self, facts: RunFacts, /) -> Setting | None:
        """Return the place of a run in the published tables, None if it has none."""

    def cell(self, setting: Setting | None, metric: str, ood: str = "", /) -> Cell | None:
        """Return a figure; None if there is none.

        Args:
            setting: what it belongs to; None, of which there are no figures, will do.
            metric: its name, such as "auc" or "accuracy".
            ood: the OOD set; empty: within the domain.
        """

    def image_count(self, ood: str, /) -> int | None:
        """Return how many images of a set were used there."""

    def departures(self, facts: RunFacts, /) -> str:
        """Return in what a run was trained otherwise, in words."""


def group(runs: Sequence[RunFacts]) -> dict[str, list[RunFacts]]:
    """Return runs that differ in their seed alone, in order of seeds, by a label that tells the groups apart."""
    groups: dict[str, list[RunFacts]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.but_the_seed, sort_keys=True), []).append(run)
    ordered = sorted((sorted(group, key=lambda run: run.seed) for group in groups.values()), key=_order)
    for repetitions in ordered:
        check_seeds(repetitions)
    return dict(zip(_labels([repetitions[0] for repetitions in ordered]), ordered, strict=True))


def _order(repetitions: Sequence[RunFacts]) -> tuple[str, int, float]:
    run = repetitions[0]
    return run.architecture, run.size, -1.0 if run.strength is None else run.strength


def check_seeds(repetitions: Sequence[RunFacts]) -> None:
    """Raise ValueError where runs, in order of seeds, share members: their standard error would be false."""
    for one, other in pairwise(repetitions):
        if other.seed - one.seed >= one.size:
            continue
        if other.seed == one.seed:
            raise ValueError(f"{one.source} and {other.source} are the same run: all alike, and seed {one.seed}")
        raise ValueError(
            f"{one.source} (seed {one.seed}) and {other.source} (seed {other.seed}) have members that start from the "
            f"same random numbers, since member k takes seed + k - 1; repetitions need seeds at least {one.size} apart"
        )


def check_strength_alone_differs(groups: Sequence[Sequence[RunFacts]]) -> None:
    """Raise ValueError unless groups differ in lambda_M alone, have Deep Ensembles among them, and two seeds each."""
    baseline = [runs[0] for runs in groups if runs[0].is_baseline]
    others = [runs[0] for runs in groups if not runs[0].is_baseline]
    if not baseline or not others:
        lacking = "any lambda_M, to choose from" if baseline else f"{BASELINE}, to compare with"
        train = "--strength" if baseline else "--method deep"
        raise ValueError(f"among the runs there are none of {lacking}; `greedy-ensembles train` with {train} makes one")
    for run in others:
        if run.strength is None:
            raise ValueError(f"{run.source} is of {run.method}, which has no lambda_M to choose; leave it out")
        _check_alike(others[0], run, _STRENGTH)
    for run in (*baseline[1:], others[0]):
        _check_alike(baseline[0], run, _COUPLING)
    for runs in groups:
        if len(runs) < 2:
            raise ValueError(
                f"{runs[0].source} is the only run of its kind; a standard error needs two seeds or more of each, at "
                f"least {runs[0].size} apart"
            )


def _check_alike(one: RunFacts, other: RunFacts, but_for: set[str]) -> None:
    for where, ours, theirs in differences(one.but_the_seed, other.but_the_seed):
        if not {where, where.partition(".")[0]} & but_for:
            raise ValueError(
                f"runs must differ in lambda_M and seed alone, but {where} is {ours} in {one.source} "
                f"and {theirs} in {other.source}"
            )


def _labels(runs: Sequence[RunFacts]) -> list[str]:
    """Return what tables call each configuration: its method, and as much more as tells it from its namesakes."""
    facts = [_flatten(run.but_the_seed) for run in runs]
    keys = [key for key in dict.fromkeys(key for one in facts for key in one) if not key.startswith("model.")]
    labels = ["" for _ in runs]  # alike, so that a network or size that not all share is told of every one
    labels = _told_apart(labels, [{"": run.architecture, "M =": run.size} for run in runs])
    labels = [run.method + label for run, label in zip(runs, labels, strict=True)]
    labels = _told_apart(labels, [{key: one.get(key) for key in keys} for one in facts])
    return _told_apart(labels, [{"in": run.source} for run in runs])  # where they differ in nothing that has a name


def _told_apart(labels: Sequence[str], details: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return labels with those of their details added in which runs of the same label differ."""
    result = []
    for label, own in zip(labels, details, strict=True):
        namesakes = [other for name, other in zip(labels, details, strict=True) if name == label]
        telling = [key for key in own if any(other[key] != own[key] for other in namesakes)]
        result.append(", ".join([label, *(f"{key} {_short(own[key])}".strip() for key in telling)]))
    return result


def other_differences(groups: Mapping[str, Sequence[RunFacts]]) -> list[str]:
    """Return, as sentences, in what the groups of one architecture differ beside method, lambda_M, p* and size."""
    notes = []
    for architecture in dict.fromkeys(runs[0].architecture for runs in groups.values()):
        peers = {label: runs[0] for label, runs in groups.items() if runs[0].architecture == architecture}
        facts = {label: _flatten(run.but_the_seed | _counted(run)) for label, run in peers.items()}
        keys = dict.fromkeys(key for one in facts.values() for key in one)
        for key in (key for key in keys if key.partition(".")[0] not in _EXPECTED):
            values = {label: _short(one.get(key)) for label, one in facts.items()}
            if len(set(values.values())) > 1:
                listed = ", ".join(f"{value} ({label})" for label, value in values.items())
                notes.append(f"the runs differ in {key}, too: {listed}")
    return notes


def _counted(run: RunFacts) -> dict[str, Any]:
    """Return how large a network is, in the place of the shapes of all its parameters."""
    shapes = run.configuration.get("model")
    if not isinstance(shapes, Mapping):
        return {}
    return {"model": f"{sum(map(math.prod, shapes.values())):,} parameters in {len(shapes)} tensors"}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:8] if re.fullmatch("[0-9a-f]{64}", text) else text


def _flatten(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = (_flatten(item, f"{path}.{name}".strip(".")) for name, item in value.items())
        return {key: item for part in parts for key, item in part.items()}
    return {path: value}
