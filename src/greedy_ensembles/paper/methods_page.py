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
from greedy_ensembles.method import METHODS, as_coupling
from greedy_ensembles.paper.pages import provenance, write_markdown
from greedy_ensembles.paper.records import KEPT
from greedy_ensembles.paper.study import SPACING
from greedy_ensembles.report.figure import SMALL, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.storage import FolderError, read_json
from greedy_ensembles.training.events import ProgressBars

GROUPS = ("noise", "choosing", "other")
_MI = "mutual_information"
_CAPTION = "By mutual information, and by the score chosen on noise and choosing sets. Bars: one standard error."


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
    out.mkdir(parents=True, exist_ok=True)
    read = {setting: data for setting in settings if (data := setting.read()) is not None}
    found = {setting: (data, judged(setting, data, out / "runs", progress)) for setting, data in read.items()}
    parts = []
    content: dict[str, Any] = {"made": {}}
    for setting, (data, results) in found.items():
        shown, facts = table(setting, data, results), made(setting, data, out / "runs")
        notes = [*shown.notes, *(f"{name}: {value}" for name, value in facts.items())]
        parts += [f"## {setting.title}", *_narrow(shown), "\n".join(f"- {note}" for note in notes)]
        content["made"][setting.name] = facts
        content[setting.name] = [_plain(row) for row in shown.rows]
    if left := ", ".join(setting.title for setting in settings if setting not in found):
        parts.append(f"Not run, for want of a GPU or of the data: {left}.")
    parts.append("`greedy-ensembles reproduce methods --page FOLDER` trains and judges all of it, in FOLDER/runs.")
    write_figure(draw(found), out / "methods.png")
    (out / KEPT).mkdir(exist_ok=True)
    (out / KEPT / "methods.json").write_text(json.dumps(content, indent=1) + "\n")
    write_markdown(out / "methods.md", "Every method", parts, f"![AUC by method](methods.png)\n\n*{_CAPTION}*")


def made(setting: Setting, data: Data, runs: Path) -> dict[str, str]:
    """Return what was trained and judged on, with which seeds, where, when and by what."""
    folders = (_folder(setting, method, number, runs) for method in METHODS for number in range(setting.seeds))
    told = [read_json(folder / "run.json") for folder in folders if folder.exists()]
    counts = {"training (a tenth of them held out)": _count(data.train), "test": _count(data.test)}
    counts |= {name: _count((None, inputs)) for name, inputs in data.ood.items()}
    return {
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


def _plain(row: Mapping[str, Entry]) -> dict[str, Any]:
    values = ((key, entry.value) for key, entry in row.items())
    return {key: asdict(value) if isinstance(value, Estimate) else value for key, value in values}


def _folder(setting: Setting, method: str, number: int, runs: Path) -> Path:
    return runs / f"{setting.name}-{method}-seed{number * SPACING}"


def judged(setting: Setting, data: Data, runs: Path, progress: bool) -> list[Result]:
    """Train and evaluate every method of the registry, and the detectors beside them."""
    results = []
    for method in METHODS:
        try:
            results.append(_judged(setting, method, data, runs, progress))
        except FolderError:
            raise
        except ValueError as error:  # the method says what it needs
            results.append(Result(method, [], refused=str(error)))
    beside = [setting.detectors(data, number) for number in range(setting.seeds)]
    return [*results, *(Result(name, [each[name] for each in beside]) for name in beside[0])]


def _judged(setting: Setting, method: str, data: Data, runs: Path, progress: bool) -> Result:
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
    return Result(method, evaluations, steps, len(ensembles[0]), sum(held.values()))


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


def table(setting: Setting, data: Data, results: list[Result]) -> Table:
    """Return a row for each method: figures in the domain, on each group by MI and by the chosen score, and costs."""
    columns = [Column("method"), Column("seeds"), IN_DOMAIN[0], IN_DOMAIN[1]]
    columns += [Column("lowest", "lowest member (%)", 100, 2), Column("score")]
    keys = [(group, by, one) for group in GROUPS for by in ("MI", "score") for one in (OOD[0], OOD[2])]
    columns += [Column(f"{group}_{by}_{one.key}", f"{one.heading} {group}, {by}", 1, 3) for group, by, one in keys]
    columns += [Column("steps", "member-steps"), Column("passes", "passes a prediction"), Column("parameters")]
    rows = []
    for result in results:
        if result.refused:
            rows.append({"method": Entry(result.method)})
            continue
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
        *(f"{method} has {own.what}" for method, own in setting.own.items()),
        *(f"{result.method} refuses this setting: {result.refused}" for result in results if result.refused),
    ]
    return Table(setting.title, columns, rows, notes)


def draw(found: Mapping[Setting, tuple[Data, list[Result]]]) -> Figure:
    """Draw AUC on the other natural sets by both scores, a row for each method, the best first: a panel a setting."""
    most = max(len(results) for _, results in found.values())
    figure = new_figure(height=1 + 0.22 * most)
    panels = figure.subplots(1, len(found), squeeze=False)[0]
    for axis, (setting, (data, results)) in zip(panels, found.items(), strict=True):
        judged = [result for result in results if not result.refused]
        areas = {
            result.method: [result.figure(data, "other", by, "auc") for by in (_MI, result.chosen(data))]
            for result in judged
        }
        order = sorted(areas, key=lambda method: -max(area.mean for area in areas[method] if area))
        for number, (label, style) in enumerate(zip(("MI", "chosen score"), method_styles(2), strict=True)):
            rows = [(row, area) for row, method in enumerate(order) if (area := areas[method][number])]
            places = {"x": [area.mean for _, area in rows], "y": [row for row, _ in rows]}
            errors = [area.error for _, area in rows]
            axis.errorbar(**places, xerr=errors, color=style.colour, marker=style.marker, linestyle="", label=label)
        axis.set(xlabel="AUC, other natural sets", yticks=range(len(order)))
        axis.set_yticklabels(order)
        axis.invert_yaxis()
        axis.set_title(setting.title, fontsize=SMALL)
        plain(axis)
    panels[0].legend(frameon=False, fontsize=SMALL)
    return figure
