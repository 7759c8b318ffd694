"""Every registered method on equal budgets: the same network and as many member-epochs, beside detectors without.

Three settings: scikit-learn's digits (classes 0-4 against 5-9 and noise; minutes on a CPU), MNIST and CIFAR-10 (with a
GPU, where their data are). Every method has its defaults. Sets are of three groups: noise, natural sets on which a
score is chosen together with the noise, and other natural sets, which have no say. The score of a method is the one
with the largest mean AUC on the choosing sets and the noise, over all seeds.

One that is added to the registry is in the table with the next run; runs in the folder are not trained again.
"""

import json
import math
import statistics
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.neighbors import NearestNeighbors
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Estimate, Evaluation, estimate, judge_probabilities, judge_scores, load_preset
from greedy_ensembles.data import SETS, data_root
from greedy_ensembles.data.registry import find
from greedy_ensembles.method import METHODS, as_coupling
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import write_markdown
from greedy_ensembles.paper.studies.default_p_star import CHOOSING, NOISE
from greedy_ensembles.paper.study import SPACING, Study
from greedy_ensembles.report.figure import SMALL, entitle, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Column, Entry, Table

GROUPS = ("noise", "choosing", "other")
_MI = "mutual_information"
_REFERENCE = 5_000  # training images that features are compared with


class Data(NamedTuple):
    """What methods are trained and judged on."""

    train: Any
    test: Any
    ood: Mapping[str, Any]
    groups: Mapping[str, tuple[str, ...]]  #: by group, names of sets
    reference: Any  #: labelled examples that features are compared with


@dataclass(frozen=True)
class Setting:
    """One network on one data set."""

    name: str
    title: str
    read: Callable[[], Data | None]  #: None where it cannot be run here
    make_model: Callable[[], nn.Module]
    features: str  #: the layer before the last
    recipe: ge.Recipe
    size: int = 5
    seeds: int = 3
    detectors: Callable[[Data, int], dict[str, Evaluation]] = lambda data, seed: {}


class Result(NamedTuple):
    """What is known of one method in one setting."""

    method: str
    evaluations: list[Evaluation]  #: one a seed
    steps: int | None = None  #: of all members together; None: no network is trained
    passes: int | None = None  #: through a network, for one prediction
    parameters: int | None = None  #: of all members, shared ones once

    def chosen(self, data: Data) -> str:
        """Return the score that is best on the sets that may choose."""
        names = {*data.groups["noise"], *data.groups["choosing"]}

        def area(score: str) -> float:
            found = [
                result.by_score[score].auc for one in self.evaluations for result in one.ood if result.name in names
            ]
            return statistics.fmean(found)

        return max(self.evaluations[0].known_scores, key=area)

    def figure(self, data: Data, group: str, score: str, metric: str) -> Estimate | None:
        """Return the mean over the sets of a group for each seed, and then over seeds; None where there is none."""
        names = data.groups[group]
        first = self.evaluations[0]
        if not names or score not in first.known_scores or (first.members == 1 and score == _MI):
            return None
        return estimate(
            [
                statistics.fmean(getattr(r.by_score[score], metric) for r in one.ood if r.name in names)
                for one in self.evaluations
            ]
        )


def network() -> nn.Module:
    """Return the network for digits; the dropout is there for the methods that need one, and all have it."""
    return nn.Sequential(
        OrderedDict(body=ge.models.MLP(64, (64,), 64), relu=nn.ReLU(), dropout=nn.Dropout(0.1), last=nn.Linear(64, 5))
    )


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
    ood, _ = load_preset(dataset, test)
    noise = tuple(name for name in ood if name in (*NOISE, "blobs"))
    choosing = tuple(name for name in CHOOSING[dataset] if name in ood and name not in noise)
    other = tuple(name for name in ood if name not in (*noise, *choosing))
    groups = {"noise": noise, "choosing": choosing, "other": other}
    return Data(train, test, ood, groups, train.take(np.arange(_REFERENCE)))


SETTINGS = (
    Setting(
        "digits",
        "scikit-learn's digits, an MLP of 64 and 64 with dropout, M = 5, 30 epochs",
        digits,
        network,
        "relu",
        ge.Recipe(epochs=30, batch_size=32),
        detectors=detectors,
    ),
    Setting(
        "mnist",
        "MNIST, PreResNet8, M = 5",
        partial(images, "mnist"),
        named("PreResNet8", classes=10, channels=1),
        "norm",
        ge.Recipe.paper("mnist", "PreResNet8", weighting_statistics="batch"),
    ),
    Setting(
        "cifar10",
        "CIFAR-10, VGG16BN, M = 5, 30 epochs",
        partial(images, "cifar10"),
        named("VGG16BN", classes=10, channels=3),
        "head.5",
        ge.Recipe.paper("cifar10", "VGG16BN", epochs=30, weighting_statistics="batch"),
    ),
)


def run(out: Path, progress: bool = True, settings: tuple[Setting, ...] = SETTINGS) -> None:
    """Train what is missing in ``out/runs``, and write ``methods.md``, ``.json`` and ``.png`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    read = {setting: data for setting in settings if (data := setting.read()) is not None}
    found = {setting: (data, judged(setting, data, out / "runs", progress)) for setting, data in read.items()}
    parts, records = ["![AUC on other natural sets against training cost](methods.png)"], {}
    for setting, (data, (results, refused)) in found.items():
        shown = table(setting, data, results)
        started = ge.load_run(_folder(setting, next(iter(METHODS)), 0, out / "runs"), setting.make_model).information
        versions = ", ".join(f"{name} {version}" for name, version in started["versions"].items())
        machine = f"started {started['started']} on {started['device']}; {versions}"
        notes = "\n".join(f"- {fact}" for fact in (*shown.notes, *refused, machine))
        parts += [f"## {setting.title}", *_narrow(shown), notes]
        records[setting.name] = [_plain(row) for row in shown.rows]
    if left := ", ".join(setting.title for setting in settings if setting not in found):
        parts.append(f"Not run, for want of a GPU or of the data: {left}.")
    parts.append("`greedy-ensembles reproduce methods --page FOLDER` trains and judges all of it, in FOLDER/runs.")
    write_figure(draw({setting: (data, own) for setting, (data, (own, _)) in found.items()}), out / "methods.png")
    (out / "methods.json").write_text(json.dumps(records, indent=1) + "\n")
    write_markdown(out / "methods.md", "Every method", parts)


def _narrow(table: Table) -> list[str]:
    """Return a table in parts that fit a page: in the domain with what it costs, by MI, and by the chosen score."""
    parts = []
    for title, mark in (("", ""), ("By mutual information:", "_MI_"), ("By the score that was chosen:", "_score_")):
        own = [c for c in table.columns if c.key == "method" or (mark in c.key if mark else c.key.count("_") < 2)]
        parts += [title, replace(table, columns=own).to_markdown()]
    return parts


def _plain(row: Mapping[str, Entry]) -> dict[str, Any]:
    values = ((key, entry.value) for key, entry in row.items())
    return {key: asdict(value) if isinstance(value, Estimate) else value for key, value in values}


def _folder(setting: Setting, method: str, number: int, runs: Path) -> Path:
    return runs / f"{setting.name}-{method}-seed{number * SPACING}"


def judged(setting: Setting, data: Data, runs: Path, progress: bool) -> tuple[list[Result], list[str]]:
    """Train and evaluate every method of the registry and the detectors beside them; also return what was refused."""
    results, refused = [], []
    for method in METHODS:
        try:
            results.append(_judged(setting, method, data, runs, progress))
        except ValueError as error:  # a network without dropout, a recipe with a warm-up: the method says what it needs
            refused.append(f"{method} refuses this setting: {error}")
    beside = [setting.detectors(data, number) for number in range(setting.seeds)]
    return [*results, *(Result(name, [each[name] for each in beside]) for name in beside[0])], refused


def _judged(setting: Setting, method: str, data: Data, runs: Path, progress: bool) -> Result:
    folders = [_folder(setting, method, number, runs) for number in range(setting.seeds)]
    ensembles = [
        ge.fit(
            setting.make_model,
            data.train,
            size=setting.size,
            method=method,
            recipe=setting.recipe,
            seed=number * SPACING,
            run_dir=folder,
            schedule="concurrent" if METHODS[method].sees == "all" else "sequential",
            progress=progress,
        )
        for number, folder in enumerate(folders)
    ]
    known = {"features": setting.features, "reference": data.reference}
    evaluations = [ge.benchmark.evaluate(ensemble, data.test, data.ood, **known) for ensemble in ensembles]
    held = {p.data_ptr(): p.numel() for member in ensembles[0] for p in member.parameters()}
    examples = len(data.train[1] if isinstance(data.train, tuple) else data.train)
    steps = member_steps(setting, method, examples, ensembles[0])
    return Result(method, evaluations, steps, len(ensembles[0]), sum(held.values()))


def member_steps(setting: Setting, method: str, examples: int, ensemble: ge.Ensemble) -> int:
    """Return the steps of all networks that are trained, each times how often it takes a row of the batch.

    A tenth of the examples is held out. BatchEnsemble takes every row once a member, in one network.
    """
    coupling = as_coupling(method)
    coupling.size = setting.size
    example = torch.zeros(2, *ensemble.inputs.shape)  # type: ignore[union-attr]  # arrays and images have a shape
    with torch.no_grad():
        rows = len(coupling.build(setting.make_model(), 1, 0).train()(example)) // 2
    networks = 1 if coupling.one_network else setting.size
    steps = math.ceil((examples - math.ceil(0.1 * examples)) / setting.recipe.batch_size)
    return networks * rows * setting.recipe.epochs * steps


def table(setting: Setting, data: Data, results: list[Result]) -> Table:
    """Return a row for each method: figures in the domain, on each group by MI and by the chosen score, and costs."""
    columns = [Column("method"), Column("seeds"), IN_DOMAIN[0], IN_DOMAIN[1]]
    columns += [Column("lowest", "lowest member (%)", 100, 2), Column("score")]
    keys = [(group, by, one) for group in GROUPS for by in ("MI", "score") for one in (OOD[0], OOD[2])]
    columns += [Column(f"{group}_{by}_{one.key}", f"{one.heading} {group}, {by}", 1, 3) for group, by, one in keys]
    columns += [Column("steps", "member-steps"), Column("passes", "passes a prediction"), Column("parameters")]
    rows = []
    for result in results:
        inside, score = [one.in_domain for one in result.evaluations], result.chosen(data)
        row = {"method": Entry(result.method), "seeds": Entry(len(inside)), "score": Entry(score)}
        for key, values in (
            ("accuracy", [each.accuracy for each in inside]),
            ("nll", [each.nll for each in inside]),
            ("lowest", [min(each.member_accuracies, default=math.nan) for each in inside]),
        ):
            row |= {} if any(map(math.isnan, values)) else {key: Entry(estimate(values))}
        for group, by, one in keys:
            figure = result.figure(data, group, _MI if by == "MI" else score, one.key)
            row |= {} if figure is None else {f"{group}_{by}_{one.key}": Entry(figure)}
        row |= {key: Entry(getattr(result, key)) for key in ("steps", "passes", "parameters")}
        rows.append(row)
    sets = "; ".join(f"{group}: {', '.join(names)}" for group, names in data.groups.items())
    notes = [
        sets,
        f"{setting.size} members of {setting.recipe.epochs} epochs for every method, each with its defaults; of "
        f"{setting.seeds} seeds: mean and standard error",
        "score: the one with the largest mean AUC on noise and choosing sets; the other sets had no say",
        "MI: by mutual information, which one model alone has not; standing beside it, by the score chosen",
        "member-steps: those of all networks, times how often each row passes; where members meet, p* passes as well",
    ]
    return Table(setting.title, columns, rows, notes)


def draw(found: Mapping[Setting, tuple[Data, list[Result]]]) -> Figure:
    """Draw AUC on the other natural sets, by the chosen score, against member-steps: a panel for each setting."""
    figure = new_figure(height=3.2)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (setting, (data, results)) in zip(panels, found.items(), strict=True):
        for number, (result, style) in enumerate(zip(results, method_styles(len(results)), strict=True)):
            area = result.figure(data, "other", result.chosen(data), "auc")
            if area is not None:
                equals = [each.steps for each in results[:number]].count(result.steps)  # which must not hide it
                place = (result.steps or 0) * (1 + 0.015 * equals)
                look: dict[str, Any] = {"color": style.colour, "marker": style.marker, "linestyle": ""}
                axis.errorbar(place, area.mean, area.error, label=result.method, **look)
        axis.set(xlabel="member-steps of training", ylabel="AUC, other natural sets")
        axis.set_title(setting.title, fontsize=SMALL)
        plain(axis)
        axis.legend(frameon=False, fontsize=SMALL, loc="center left", bbox_to_anchor=(1, 0.5))
    bars = "Bars: one standard error over seeds; what trains no network stands at 0, equal costs a little apart."
    entitle(figure, "", f"By the score chosen on noise and choosing sets. {bars}")
    return figure


STUDY = Study(
    "methods", "Every method", "not in the paper", (), seeds=3, special=lambda folder, progress: run(folder, progress)
)
