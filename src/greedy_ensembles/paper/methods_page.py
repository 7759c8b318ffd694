"""All methods of the registry in one setting: trained, judged, and in one table with what they cost.

A setting is a network on a data set. Sets are of three groups: noise, natural sets on which a score is chosen together
with the noise, and other natural sets, which have no say. The score of a method is the one with the largest mean AUC on
the choosing sets and the noise, over all seeds. A method that refuses a setting is in the table with its reason, and
without figures. Runs in the folder are not trained again.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Estimate, Evaluation, estimate
from greedy_ensembles.method import METHODS, Deep, as_coupling
from greedy_ensembles.paper.pages import provenance, write_markdown
from greedy_ensembles.paper.records import KEPT
from greedy_ensembles.paper.study import SPACING
from greedy_ensembles.report.figure import NORMAL, SMALL, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.storage import FolderError, read_json
from greedy_ensembles.training.events import ProgressBars

GROUPS = ("noise", "choosing", "other")
_MI = "mutual_information"
#: Of the sets of a group, by mutual information and by the chosen score.
_FIGURES = [(group, by, one) for group in GROUPS for by in ("MI", "score") for one in (OOD[0], OOD[2])]
_SUMMARY = ("method", "accuracy", "nll", "other_MI_auc", "other_score_auc", "other_score_fpr95", "score", "steps")
_CAPTION = (
    "Filled: by the score chosen on noise and choosing sets; hollow: by mutual information. Batches of p\\* count too. "
    "Points of one cost stand side by side. Bars: one standard error."
)


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


@dataclass(frozen=True, eq=False)
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
    other: str = "other natural sets"  #: what the group of sets that may not choose is
    detectors: Callable[[Data, int], dict[str, Evaluation]] = lambda data, seed: {}
    own: Mapping[str, Own] = field(default_factory=dict)  #: by method

    def recipe_of(self, method: str) -> ge.Recipe:
        """Return how members of a method are trained."""
        return replace(self.recipe, **self.own[method].recipe) if method in self.own else self.recipe

    def model_of(self, method: str) -> Callable[[], nn.Module]:
        """Return what builds a member of a method."""
        return (self.own[method].make_model if method in self.own else None) or self.make_model


class Result(NamedTuple):
    """What is known of one method in one setting."""

    method: str
    evaluations: list[Evaluation]  #: one a seed; none where the method refuses the setting
    steps: int | None = None  #: of all members together; None: no network is trained
    passes: int | None = None  #: through a network, for one prediction
    parameters: int | None = None  #: of all members, shared ones once
    refused: str = ""  #: why there are no evaluations

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


def run(out: Path, progress: bool, settings: Sequence[Setting]) -> None:
    """Train what is missing in ``out/runs``, and write ``methods.md``, ``.png`` and ``records`` into ``out``."""
    content: dict[str, Any] = {"made": {}}
    for setting in settings:
        if (data := setting.read()) is not None:
            results = judged(setting, data, out / "runs", progress)
            content["made"][setting.name] = made(setting, data, out / "runs")
            content[setting.name] = [row(data, result) for result in results]
    (out / KEPT).mkdir(parents=True, exist_ok=True)
    (out / KEPT / "methods.json").write_text(json.dumps(content, indent=1) + "\n")
    write(out, content, settings)


def write(out: Path, content: Mapping[str, Any], settings: Sequence[Setting]) -> None:
    """Write the page and its picture from what is in ``records``."""
    parts, summary = [], []
    found = {setting: content[setting.name] for setting in settings if setting.name in content}
    for setting, rows in found.items():
        shown, facts = table(setting, rows), content["made"][setting.name]
        short = replace(shown, columns=[column for column in shown.columns if column.key in _SUMMARY])
        summary += [f"{setting.title}. *Other*: {setting.other}.", short.to_markdown()]
        notes = [*(f"{name}: {value}" for name, value in facts.items()), *shown.notes]
        parts += [f"## {setting.title}", *_narrow(shown), "\n".join(f"- {note}" for note in notes)]
    if left := ", ".join(setting.title for setting in settings if setting not in found):
        parts.append(f"Not run, for want of a GPU or of the data: {left}.")
    parts.append("`greedy-ensembles reproduce methods --page FOLDER` trains and judges all of it, in FOLDER/runs.")
    write_figure(draw(found), out / "methods.png")
    summary += ["![AUC against the cost of training](methods.png)", f"*{_CAPTION}*"]
    write_markdown(out / "methods.md", "Every method", parts, "\n\n".join(summary))


def made(setting: Setting, data: Data, runs: Path) -> dict[str, str]:
    """Return what was trained and judged on, with which seeds, where, when and by what."""
    folders = (_folder(setting, method, number, runs) for method in METHODS for number in range(setting.seeds))
    told = [read_json(folder / "run.json") for folder in folders if folder.exists()]
    counts = {"training (a tenth of them held out)": _count(data.train), "test": _count(data.test)}
    counts |= {name: _count((None, inputs)) for name, inputs in data.ood.items()}
    return {
        "sets": "; ".join(f"{', '.join(names)} ({group})" for group, names in data.groups.items()),
        "examples": ", ".join(f"{name} {count:,}" for name, count in counts.items()),
        "seeds": ", ".join(str(number * SPACING) for number in range(setting.seeds)),
        **provenance(told),
    }


def _count(examples: Any) -> int:
    return len(examples[1] if isinstance(examples, tuple) else examples)


def _narrow(table: Table) -> list[str]:
    """Return a table in parts that fit a page: in the domain with what it costs, by MI, and by the chosen score."""
    parts = []
    for title, mark in (("", ""), ("By mutual information:", "_MI_"), ("By the score that was chosen:", "_score_")):
        own = [c for c in table.columns if c.key == "method" or (mark in c.key if mark else c.key.count("_") < 2)]
        parts += [title, replace(table, columns=own).to_markdown()]
    return parts


def _folder(setting: Setting, method: str, number: int, runs: Path) -> Path:
    return runs / f"{setting.name}-{method}-seed{number * SPACING}"


def judged(setting: Setting, data: Data, runs: Path, progress: bool) -> list[Result]:
    """Train and evaluate every method of the registry, and the detectors beside them."""
    results: list[Result] = []
    alone: list[Result] = []
    for method in METHODS:
        try:
            own, *others = _judged(setting, method, data, runs, progress)
            results, alone = [*results, own], [*alone, *others]
        except FolderError:
            raise
        except ValueError as error:  # the method says what it needs
            results.append(Result(method, [], refused=str(error)))
    beside = [setting.detectors(data, number) for number in range(setting.seeds)]
    return [*results, *alone, *(Result(name, [each[name] for each in beside]) for name in beside[0])]


def _judged(setting: Setting, method: str, data: Data, runs: Path, progress: bool) -> list[Result]:
    """Return a method's figures; behind those of Deep Ensembles, those of one network, by its outputs and by all."""
    folders = [_folder(setting, method, number, runs) for number in range(setting.seeds)]
    with ProgressBars() if progress else nullcontext() as bars:
        ensembles = [
            ge.fit(
                setting.model_of(method),
                data.train,
                size=setting.size,
                method=method,
                recipe=setting.recipe_of(method),
                seed=number * SPACING,
                run_dir=folder,
                schedule=schedule_of(method),
                progress=False,
                callbacks=[partial(bars.show, run=folder.name)] if bars else [],
            )
            for number, folder in enumerate(folders)
        ]
    known = {"features": setting.features, "reference": data.reference}
    evaluations = [ge.benchmark.evaluate(ensemble, data.test, data.ood, **known) for ensemble in ensembles]
    held = {p.data_ptr(): p.numel() for member in ensembles[0] for p in member.parameters()}
    steps = member_steps(setting, method, _count(data.train), ensembles[0])
    parameters = sum(held.values())
    results = [Result(method, evaluations, steps, len(ensembles[0]), parameters)]
    if METHODS[method] is Deep:
        one = steps // setting.size, 1, parameters // setting.size
        for name, more in (("one network", {}), ("one network, features", known)):
            alone = [
                ge.benchmark.evaluate(ensemble[:1], data.test, data.ood, score="predictive_entropy", **more)
                for ensemble in ensembles
            ]
            results.append(Result(name, alone, *one))
    return results


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
    steps = math.ceil((examples - math.ceil(0.1 * examples)) / recipe.batch_size)
    return networks * rows * recipe.epochs * steps


def row(data: Data, result: Result) -> dict[str, Any]:
    """Return what the records have of a method: figures in the domain, on each group by MI and by score, and costs."""
    if result.refused:
        return {"method": result.method, "refused": result.refused}
    inside, score = [one.in_domain for one in result.evaluations], result.chosen(data)
    found: dict[str, Any] = {"method": result.method, "seeds": len(inside), "score": score}
    for key, values in (
        ("accuracy", [each.accuracy for each in inside]),
        ("nll", [each.nll for each in inside]),
        ("lowest", [min(each.member_accuracies, default=math.nan) for each in inside]),
    ):
        found |= {} if any(map(math.isnan, values)) else {key: asdict(estimate(values))}
    for group, by, one in _FIGURES:
        figure = result.figure(data, group, _MI if by == "MI" else score, one.key)
        found |= {} if figure is None else {f"{group}_{by}_{one.key}": asdict(figure)}
    return found | {key: getattr(result, key) for key in ("steps", "passes", "parameters")}


def table(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each method, from the records."""
    columns = [Column("method"), Column("seeds"), IN_DOMAIN[0], IN_DOMAIN[1]]
    columns += [Column("lowest", "lowest member (%)", 100, 2), Column("score")]
    columns += [Column(f"{group}_{by}_{one.key}", f"{one.heading} {group}, {by}", 1, 3) for group, by, one in _FIGURES]
    columns += [Column("steps", "member-steps"), Column("passes", "passes a prediction"), Column("parameters")]
    entries = [{key: _entry(key, value) for key, value in own.items() if key != "refused"} for own in rows]
    notes = [
        f"{setting.size} members of {setting.recipe.epochs} epochs for every method, each with its defaults; of "
        f"{setting.seeds} seeds: mean and standard error",
        "score: the one with the largest mean AUC on noise and choosing sets; the other sets had no say",
        "one network: the first member of Deep Ensembles, by scores of its outputs; with features, by any score",
        "MI: by mutual information, which one model alone has not; standing beside it, by the score chosen",
        "member-steps: those of all networks, times how often each row passes; where members meet, p* passes as well",
        *(f"{_label(method)}: {own.what}" for method, own in setting.own.items()),
        *(f"{_label(own['method'])} refuses this setting: {own['refused']}" for own in rows if "refused" in own),
    ]
    return Table(setting.title, columns, entries, notes)


def _entry(key: str, value: Any) -> Entry:
    if key == "method":
        return Entry(value, text=_label(value))
    return Entry(Estimate(**value) if isinstance(value, dict) else value)


def _label(method: str) -> str:
    """Return what tables and pictures call a method; detectors are called as the setting calls them."""
    return METHODS[method].label if method in METHODS else method


def batches(setting: Setting, own: Mapping[str, Any]) -> float:
    """Return how many batches go through networks in training, those of p* included where members meet."""
    method, recipe = own["method"], setting.recipe
    sees = METHODS[method].sees if method in METHODS else "none"
    meet = {"none": 0.0, "earlier": 1 - 1 / setting.size, "all": 1.0}[sees]
    share = (recipe.weighting_batch_size or recipe.batch_size) / recipe.batch_size
    return float((own.get("steps") or 0) * (1 + meet * share))


def draw(found: Mapping[Setting, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw AUC on the other sets against the cost of training: a panel a setting, a colour and marker a method."""
    figure = new_figure(height=3.6)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (setting, rows) in zip(panels, found.items(), strict=True):
        judged = [own for own in rows if "refused" not in own]
        costs = [batches(setting, own) for own in judged]
        least = min(cost for cost in costs if cost)
        for own, cost, style in zip(judged, costs, method_styles(len(judged)), strict=True):
            level = [other for other, its in zip(judged, costs, strict=True) if its == cost]
            beside = 1.08 ** (level.index(own) - (len(level) - 1) / 2)  # so that none hides another
            look = {"color": style.colour, "marker": style.marker, "linestyle": "", "markersize": 5}
            for by, filled in (("score", True), ("MI", False)):
                if area := own.get(f"other_{by}_auc"):
                    label = _label(own["method"]) if filled else None
                    paint = {} if filled else {"markerfacecolor": "none"}
                    place = (cost or least / 3) * beside
                    axis.errorbar(place, area["mean"], yerr=area["standard_error"], label=label, **look, **paint)
        ticks: list[int] = []
        for cost in sorted({round(cost) for cost in costs if cost}):
            ticks += [cost] if not ticks or cost > 1.4 * ticks[-1] else []  # so that labels have room
        axis.set(xscale="log", xlabel="batches through networks in training", ylabel=f"AUC, {setting.other}")
        axis.set_xticks([least / 3, *ticks], ["none", *(f"{tick:,}" for tick in ticks)])
        axis.minorticks_off()
        axis.set_title(setting.title.partition(",")[0], fontsize=NORMAL)
        plain(axis)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", frameon=False, fontsize=SMALL)
    return figure
