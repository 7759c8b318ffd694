"""Runs of the study of all methods: what is trained and judged on what, each run kept in a record beside the page.

Every registered method has equal budgets: the same network and as many member-epochs, beside detectors without. Three
settings: scikit-learn's digits (classes 0-4 against 5-9 and noise; minutes on a CPU), MNIST and CIFAR-10 (with a GPU,
where their data are). Every method has its defaults, and the network and recipe of the setting; where it cannot have
one of these by its own definition, the setting says what it has instead, and the page says so. One that is added to the
registry is in the table with the next run.

A study goes on from the records of its page alone, wherever they were made.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.neighbors import NearestNeighbors
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Evaluation, judge_probabilities, judge_scores, load_preset
from greedy_ensembles.benchmark.presets import kind_of
from greedy_ensembles.data import SETS, data_root
from greedy_ensembles.data.registry import find
from greedy_ensembles.method import METHODS, as_coupling
from greedy_ensembles.models import named
from greedy_ensembles.paper.images import cut
from greedy_ensembles.paper.records import KEPT
from greedy_ensembles.paper.study import CHOOSING, SPACING
from greedy_ensembles.runs.configuration import describe, describe_method
from greedy_ensembles.storage import FolderError, read_json, write_json
from greedy_ensembles.training.events import ProgressBars

DETECTORS = "detectors"
_REFERENCE = 5_000  # training images that features are compared with
_OOD = 5_000  # images of an OOD set at most: the distances of their features take as long as training does
_MACHINE = ("started", "device", "versions", "git_commit")


class Data(NamedTuple):
    """What methods are trained and judged on."""

    train: Any
    test: Any
    ood: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]  #: by group, names of sets
    reference: Any  #: labelled examples that features are compared with


class Own(NamedTuple):
    """What a method has in a setting in the place of the others' network or recipe, by its own definition."""

    what: str  #: as the page says it
    recipe: Mapping[str, Any] = {}  #: the fields that are others
    make_model: Callable[[], nn.Module] | None = None


_NOTHING = Own("")


@dataclass(frozen=True, eq=False)
class Setting:
    """One network on one data set."""

    name: str
    title: str
    read: Callable[[], Data | None]  #: None where it cannot be run here
    network: str
    make_model: Callable[[], nn.Module]
    features: str  #: the layer before the last
    recipe: ge.Recipe
    size: int = 5
    seeds: int = 3
    other: str = "other natural sets"  #: what the group of sets that may not choose is
    detectors: Callable[[Data, int], dict[str, Evaluation]] | None = None
    own: Mapping[str, Own] = field(default_factory=dict)  #: by method

    def recipe_of(self, method: str) -> ge.Recipe:
        """Return how members of a method are trained."""
        return replace(self.recipe, **self.own.get(method, _NOTHING).recipe)

    def model_of(self, method: str) -> Callable[[], nn.Module]:
        """Return what builds a member of a method."""
        return self.own.get(method, _NOTHING).make_model or self.make_model


class Job(NamedTuple):
    """One run: a method with one seed; or all detectors with one."""

    setting: Setting
    method: str
    seed: int

    @property
    def name(self) -> str:
        """What its record and its run folder are called."""
        return f"{self.setting.name}-{self.method}-seed{self.seed}"

    @property
    def settings(self) -> dict[str, Any]:
        """What its record must have been made with."""
        if self.method == DETECTORS:
            return {}
        described = {"method": describe_method(as_coupling(self.method))}
        described["recipe"] = describe(self.setting.recipe_of(self.method))
        fields = {f"{name}.{key}": value for name, own in described.items() for key, value in own.items()}
        return {"size": self.setting.size, **fields}

    def record(self, out: Path) -> dict[str, Any] | None:
        """Return what is known of the run, None if nothing is; refuse what was made with other settings."""
        file = out / KEPT / f"{self.name}.json"
        if not file.exists():
            return None
        content = read_json(file)
        for key, asked in self.settings.items():  # a version that had fewer of them trained by their defaults
            if (made := content["settings"].get(key, asked)) != asked:
                raise FolderError(f"{file} was made with {key} {made}, not {asked}; delete it to do the run again")
        return content


def jobs(settings: Iterable[Setting]) -> list[Job]:
    """Return all runs of a study; the first seeds of all methods come before the second."""
    return [
        Job(setting, method, number * SPACING)
        for setting in settings
        for number in range(setting.seeds)
        for method in (*METHODS, *([DETECTORS] if setting.detectors else []))
    ]


def work(out: Path, wanted: Sequence[Job], progress: bool) -> None:
    """Do the runs that have no record yet, as far as they can be done here."""
    missing = [job for job in wanted if job.record(out) is None]
    for setting, own in groupby(missing, key=lambda job: job.setting):
        if (data := setting.read()) is not None:
            (out / KEPT).mkdir(parents=True, exist_ok=True)
            for job in own:
                write_json(out / KEPT / f"{job.name}.json", done(job, data, out, progress))


def done(job: Job, data: Data, out: Path, progress: bool) -> dict[str, Any]:
    """Train and judge a run, and return its record: figures by the names of rows; or why there are none."""
    groups = {name: list(sets) for name, sets in data.groups.items()}
    counts = {"training (a tenth of them held out)": count(data.train), "test": count(data.test)}
    counts |= {name: len(x) for name, x in data.ood.items()}
    known = {"settings": job.settings, "groups": groups, "examples": counts}
    if job.method == DETECTORS:
        assert job.setting.detectors is not None
        found = job.setting.detectors(data, job.seed // SPACING)
        return {**known, "rows": {name: {"evaluation": one.without_scores()} for name, one in found.items()}}
    try:
        ensemble = trained(job, data, out / "runs" / job.name, progress)
    except FolderError:
        raise
    except (ValueError, ArithmeticError) as error:  # the method says what it needs, or training left the numbers
        return {**known, "refused": str(error)}
    told = read_json(out / "runs" / job.name / "run.json")
    machine = {name: told.get(name) for name in _MACHINE}
    return {**known, "machine": machine, "rows": judged(job, data, ensemble)}


def trained(job: Job, data: Data, folder: Path, progress: bool) -> ge.Ensemble:
    """Return the ensemble of a run; what its folder holds is not trained again."""
    with ProgressBars() if progress else nullcontext() as bars:
        return ge.fit(
            job.setting.model_of(job.method),
            data.train,
            size=job.setting.size,
            method=job.method,
            recipe=job.setting.recipe_of(job.method),
            seed=job.seed,
            run_dir=folder,
            schedule=schedule_of(job.method),
            progress=False,
            callbacks=[partial(bars.show, run=job.name)] if bars else [],
        )


def judged(job: Job, data: Data, ensemble: ge.Ensemble) -> dict[str, Any]:
    """Return a method's figures and costs; beside those of Deep Ensembles, one network's, by its outputs and by all."""
    known = {"features": job.setting.features, "reference": data.reference}
    held = {p.data_ptr(): p.numel() for member in ensemble for p in member.parameters()}
    steps, parameters = member_steps(job.setting, job.method, count(data.train), ensemble), sum(held.values())

    def row(own: ge.Ensemble, score: str, networks: int, more: Mapping[str, Any]) -> dict[str, Any]:
        evaluation = ge.benchmark.evaluate(own, data.test, data.ood, score=score, **more)
        costs = {"steps": steps // networks, "passes": len(own), "parameters": parameters // networks}
        return {"evaluation": evaluation.without_scores(), **costs}

    found = {job.method: row(ensemble, "mutual_information", 1, known)}
    if job.method == "deep":
        for name, more in (("one network", {}), ("one network, features", known)):
            found[name] = row(ensemble[:1], "predictive_entropy", len(ensemble), more)
    return found


def schedule_of(method: str) -> str:
    """Return the schedule that a method can have: members that all meet each other must train together."""
    return "concurrent" if METHODS[method].sees == "all" else "sequential"


def member_steps(setting: Setting, method: str, examples: int, ensemble: ge.Ensemble) -> int:
    """Return the steps of all networks that are trained, each times how often it takes a row of the batch.

    A tenth of the examples is held out. BatchEnsemble takes every row once a member, in one network.
    """
    coupling = as_coupling(method)
    coupling.size = setting.size
    example = torch.zeros(2, *ensemble.inputs.shape)  # type: ignore[union-attr]  # arrays and images have a shape
    with torch.no_grad():
        rows = len(coupling.build(setting.model_of(method)(), 1, 0).train()(example)) // 2
    networks = 1 if coupling.one_network else setting.size
    recipe = setting.recipe_of(method)
    steps = ceil((examples - ceil(0.1 * examples)) / recipe.batch_size)
    return networks * rows * recipe.epochs * steps


def count(examples: Any) -> int:
    """Return how many examples there are."""
    return len(examples[1] if isinstance(examples, tuple) else examples)


def network() -> nn.Module:
    """Return the network for digits; the dropout is there for the methods that need one, and all have it."""
    return nn.Sequential(
        OrderedDict(body=ge.models.MLP(64, (64,), 64), relu=nn.ReLU(), dropout=nn.Dropout(0.1), last=nn.Linear(64, 5))
    )


def with_dropout(depth: int, classes: int, channels: int) -> nn.Module:
    """Return a PreResNet with dropout before its last layer."""
    model = ge.models.PreResNet(depth, classes, channels)
    model.add_module("linear", nn.Sequential(nn.Dropout(0.1), model.linear))
    return model


def digits() -> Data:
    """Return classes 0-4, half of them to train on; of the others 5 and 6 may choose a score."""
    content = load_digits()
    x, y = (content.data / 16).astype(np.float32), content.target
    order = np.random.default_rng(0).permutation(np.flatnonzero(y < 5))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    rng = np.random.default_rng(1)
    uniform = rng.uniform(size=(400, 64)).astype(np.float32)
    shuffled = rng.permuted(x[test], axis=1)  # the pixels of each image in another order
    return Data(
        (x[train], y[train]),
        (x[test], y[test]),
        {"uniform": uniform, "shuffled": shuffled, **{f"digit {label}": x[y == label] for label in range(5, 10)}},
        {
            "noise": ("uniform", "shuffled"),
            "choosing": ("digit 5", "digit 6"),
            "other": ("digit 7", "digit 8", "digit 9"),
        },
        (x[train], y[train]),
    )


def detectors(data: Data, seed: int) -> dict[str, Evaluation]:
    """Return what needs no ensemble of networks: entropy of a random forest, an isolation forest, near neighbours."""
    (x, y), (x_test, y_test) = data.train, data.test
    forest = RandomForestClassifier(random_state=seed).fit(x, y)
    isolation = IsolationForest(random_state=seed).fit(x)
    known = NearestNeighbors(n_neighbors=5).fit(x)

    def everywhere(score: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: score(inputs) for name, inputs in data.ood.items()}

    def far(inputs: Any) -> Any:
        return known.kneighbors(inputs)[0][:, -1]

    def odd(inputs: Any) -> Any:
        return -isolation.score_samples(inputs)

    probs = forest.predict_proba
    return {
        "random forest": judge_probabilities("random forest", probs(x_test), y_test, everywhere(probs)),
        "isolation forest": judge_scores("isolation", odd(x_test), everywhere(odd)),
        "5 neighbours": judge_scores("distance", far(x_test), everywhere(far)),
    }


def images(dataset: str) -> Data | None:
    """Return an image set with its preset; None without a GPU, or without the data."""
    if not torch.cuda.is_available() or find(SETS[dataset], "train", data_root()) is None:
        return None
    train, test = ge.data.load(dataset, "train"), ge.data.load(dataset, "test")
    ood = {name: cut(each, _OOD) for name, each in load_preset(dataset, test)[0].items()}
    noise = tuple(name for name in ood if kind_of(name) == "synthetic")
    choosing = tuple(name for name in CHOOSING[dataset] if name in ood and name not in noise)
    other = tuple(name for name in ood if name not in (*noise, *choosing))
    groups = {"noise": noise, "choosing": choosing, "other": other}
    return Data(train, test, ood, groups, train.take(np.arange(_REFERENCE)))


SETTINGS = (
    Setting(
        "digits",
        "scikit-learn's digits, an MLP of 64 and 64 with dropout, M = 5, 30 epochs",
        digits,
        "MLP",
        network,
        "relu",
        ge.Recipe(epochs=30, batch_size=32),
        other="unseen digits 7 to 9",
        detectors=detectors,
    ),
    Setting(
        "mnist",
        "MNIST, PreResNet8, M = 5, bf16",
        partial(images, "mnist"),
        "PreResNet8",
        named("PreResNet8", classes=10, channels=1),
        "norm",
        ge.Recipe.paper("mnist", "PreResNet8", weighting_statistics="batch", precision="bf16"),
        own={
            "dropout": Own(
                "nn.Dropout(0.1) before the last layer: PreResNet8 has no dropout",
                make_model=partial(with_dropout, 8, 10, 1),
            )
        },
    ),
    Setting(
        "cifar10",
        "CIFAR-10, VGG16BN, M = 5, 30 epochs, bf16",
        partial(images, "cifar10"),
        "VGG16BN",
        named("VGG16BN", classes=10, channels=3),
        "head.5",
        ge.Recipe.paper("cifar10", "VGG16BN", epochs=30, weighting_statistics="batch", precision="bf16"),
        own={"snapshot": Own("no warm-up: its cycles are its learning rate", {"warmup_epochs": 0})},
    ),
)
