"""The page of all methods of the registry: what their runs came to, in one table with what they cost.

Sets are of three groups: noise, natural sets on which a score is chosen together with the noise, and other natural
sets, which have no say. The score of a method is the one with the largest mean AUC on the choosing sets and the noise,
over all seeds. A method that refuses a setting is in the table with its reason, and without figures.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from greedy_ensembles.benchmark import Comparison, Estimate, Evaluation, Method, estimate
from greedy_ensembles.method import METHODS
from greedy_ensembles.paper.method_runs import Job, Setting, jobs
from greedy_ensembles.paper.pages import provenance, write_markdown
from greedy_ensembles.paper.records import KEPT, restored
from greedy_ensembles.report.figure import NORMAL, SMALL, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Column, Entry, Table
from greedy_ensembles.storage import write_bytes

Groups = Mapping[str, Sequence[str]]
GROUPS = ("noise", "choosing", "other")
_MI = "mutual_information"
#: Of the sets of a group, by mutual information and by the chosen score.
_FIGURES = [(group, by, one) for group in GROUPS for by in ("MI", "score") for one in (OOD[0], OOD[2])]
_SUMMARY = ("method", "accuracy", "nll", "other_MI_auc", "other_score_auc", "other_score_fpr95", "score", "steps")
_CAPTION = (
    "Filled: by the score chosen on noise and choosing sets; hollow: by mutual information. Batches of p\\* count too. "
    "Points of one cost stand side by side. Bars: one standard error."
)


class Result(NamedTuple):
    """What is known of one method in one setting."""

    method: str
    evaluations: list[Evaluation]  #: one a seed
    steps: int | None = None  #: of all members together; None: no network is trained
    passes: int | None = None  #: through a network, for one prediction
    parameters: int | None = None  #: of all members, shared ones once

    def chosen(self, groups: Groups) -> str:
        """Return the score that is best on the sets that may choose."""
        names = {*groups["noise"], *groups["choosing"]}

        def area(score: str) -> float:
            found = [
                result.by_score[score].auc for one in self.evaluations for result in one.ood if result.name in names
            ]
            return statistics.fmean(found)

        return max(self.evaluations[0].known_scores, key=area)

    def figure(self, groups: Groups, group: str, score: str, metric: str) -> Estimate | None:
        """Return the mean over the sets of a group for each seed, and then over seeds; None where there is none."""
        names = groups[group]
        first = self.evaluations[0]
        if not names or score not in first.known_scores or (first.members == 1 and score == _MI):
            return None
        return estimate(
            [
                statistics.fmean(getattr(r.by_score[score], metric) for r in one.ood if r.name in names)
                for one in self.evaluations
            ]
        )


def write(out: Path, settings: Sequence[Setting]) -> None:
    """Write the page, its picture and ``methods.json`` from the records of single runs."""
    parts, summary = [], []
    content: dict[str, Any] = {"made": {}}
    found: dict[Setting, list[dict[str, Any]]] = {}
    for setting in settings:
        wanted = jobs([setting])
        records = {job: record for job in wanted if (record := job.record(out)) is not None}
        if not any(record.get("rows") for record in records.values()):
            continue
        facts, found[setting] = made(records), figures(setting, records)
        shown = table(setting, found[setting])
        content["made"][setting.name] = facts
        short = replace(shown, columns=[column for column in shown.columns if column.key in _SUMMARY])
        summary += [f"{setting.title}. *Other*: {setting.other}.", short.to_markdown()]
        notes = [*(f"{name}: {value}" for name, value in facts.items()), *shown.notes]
        failed = {job: record["refused"] for job, record in records.items() if "refused" in record}
        notes += [f"{_label(job.method)}, seed {job.seed}: {why}" for job, why in failed.items()]
        if missing := ", ".join(f"{_label(job.method)} (seed {job.seed})" for job in wanted if job not in records):
            notes.append(f"not run yet: {missing}")
        parts += [f"## {setting.title}", *_narrow(shown), "\n".join(f"- {note}" for note in notes)]
    if not found:
        names = "; ".join(setting.title for setting in settings)
        raise ValueError(f"{out / KEPT} has no figures of {names}. Images need a GPU and their data")
    if left := ", ".join(setting.title for setting in settings if setting not in found):
        parts.append(f"Not run, for want of a GPU or of the data: {left}.")
    parts.append("`greedy-ensembles reproduce methods --page FOLDER` trains and judges all of it, in FOLDER/runs.")
    content |= {setting.name: rows for setting, rows in found.items()}
    write_bytes(out / KEPT / "methods.json", [json.dumps(content, indent=1).encode() + b"\n"])
    write_figure(draw(found), out / "methods.png")
    summary += ["![AUC against the cost of training](methods.png)", f"*{_CAPTION}*"]
    write_markdown(out / "methods.md", "Every method", parts, "\n\n".join(summary))


def figures(setting: Setting, records: Mapping[Job, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table: methods in the order of the registry, then what stands beside them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records.values():
        for name, own in record.get("rows", {}).items():
            found.setdefault(name, []).append(own)
    costs = ("steps", "passes", "parameters")
    results = [
        Result(name, [restored(own["evaluation"]) for own in each], *(each[0].get(cost) for cost in costs))
        for name, each in found.items()
    ]
    try:
        Comparison(tuple(Method(one.method, tuple(one.evaluations)) for one in results), own_scores=True)
    except ValueError as error:
        raise ValueError(f"{setting.title}: {error}. Delete the records of the former, and run again") from None
    groups = next(iter(records.values()))["groups"]
    rows = {result.method: row(groups, result) for result in results}
    for job, record in records.items():
        if "refused" in record:
            rows.setdefault(job.method, {"method": job.method, "refused": record["refused"]})
    places = list(METHODS)
    return sorted(
        rows.values(), key=lambda one: places.index(one["method"]) if one["method"] in METHODS else len(places)
    )


def made(records: Mapping[Job, Mapping[str, Any]]) -> dict[str, str]:
    """Return what was trained and judged on, with which seeds, where, when and by what."""
    first = next(iter(records.values()))
    machines = [record["machine"] for record in records.values() if "machine" in record]
    rows = [own["evaluation"] for record in records.values() for own in record.get("rows", {}).values()]
    notes = {each["name"]: each["note"] for own in rows for each in (own["in_domain"], *own["ood"]) if each["note"]}
    return {
        "sets": "; ".join(f"{', '.join(names)} ({group})" for group, names in first["groups"].items()),
        "examples": ", ".join(f"{name} {count:,}" for name, count in first["examples"].items()),
        **{f"of {name}": note for name, note in notes.items()},
        "seeds": ", ".join(map(str, sorted({job.seed for job in records}))),
        **(provenance(machines) if machines else {}),
    }


def _narrow(table: Table) -> list[str]:
    """Return a table in parts that fit a page: in the domain with what it costs, by MI, and by the chosen score."""
    parts = []
    for title, mark in (("", ""), ("By mutual information:", "_MI_"), ("By the score that was chosen:", "_score_")):
        own = [c for c in table.columns if c.key == "method" or (mark in c.key if mark else c.key.count("_") < 2)]
        parts += [title, replace(table, columns=own).to_markdown()]
    return parts


def row(groups: Groups, result: Result) -> dict[str, Any]:
    """Return what the records have of a method: figures in the domain, on each group by MI and by score, and costs."""
    inside, score = [one.in_domain for one in result.evaluations], result.chosen(groups)
    found: dict[str, Any] = {"method": result.method, "seeds": len(inside), "score": score}
    for key, values in (
        ("accuracy", [each.accuracy for each in inside]),
        ("nll", [each.nll for each in inside]),
        ("lowest", [min(each.member_accuracies, default=math.nan) for each in inside]),
    ):
        found |= {} if any(map(math.isnan, values)) else {key: asdict(estimate(values))}
    for group, by, one in _FIGURES:
        figure = result.figure(groups, group, _MI if by == "MI" else score, one.key)
        found |= {} if figure is None else {f"{group}_{by}_{one.key}": asdict(figure)}
    return found | {key: getattr(result, key) for key in ("steps", "passes", "parameters")}


def table(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each method, from the records."""
    columns = [Column("method"), Column("seeds"), IN_DOMAIN[0], IN_DOMAIN[1]]
    columns += [Column("lowest", "lowest member (%)", 100, 2), Column("score")]
    columns += [Column(f"{group}_{by}_{one.key}", f"{one.heading} {group}, {by}", 1, 3) for group, by, one in _FIGURES]
    columns += [Column("steps", "member-steps"), Column("passes", "passes a prediction"), Column("parameters")]
    entries = [{key: _entry(key, value) for key, value in own.items() if key != "refused"} for own in rows]
    seeds = max(own.get("seeds", 0) for own in rows)
    notes = [
        f"{setting.size} members of {setting.recipe.epochs} epochs for every method, each with its defaults; of "
        f"{seeds} seeds: mean and standard error",
        "score: the one with the largest mean AUC on noise and choosing sets; the other sets had no say",
        "one network: the first member of Deep Ensembles, by scores of its outputs; with features, by any score",
        "MI: by mutual information, which one model alone has not; standing beside it, by the score chosen",
        "member-steps: those of all networks, times how often each row passes; where members meet, p* passes as well",
        *(f"{_label(method)}: {own.what}" for method, own in setting.own.items()),
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
    figure = new_figure(height=0.6 + 3 * len(found))
    panels = figure.subplots(len(found), squeeze=False)[:, 0]
    names = list(dict.fromkeys(own["method"] for rows in found.values() for own in rows if "refused" not in own))
    styles = dict(zip(names, method_styles(len(names)), strict=True))  # the same in every panel
    legend = {}
    for axis, (setting, rows) in zip(panels, found.items(), strict=True):
        judged = [own for own in rows if "refused" not in own]
        costs = [batches(setting, own) for own in judged]
        least = min((cost for cost in costs if cost), default=3.0)
        for own, cost in zip(judged, costs, strict=True):
            style = styles[own["method"]]
            level = [other for other, its in zip(judged, costs, strict=True) if its == cost]
            beside = 1.08 ** (level.index(own) - (len(level) - 1) / 2)  # so that none hides another
            look = {"color": style.colour, "marker": style.marker, "linestyle": "", "markersize": 5}
            for by, filled in (("score", True), ("MI", False)):
                if area := own.get(f"other_{by}_auc"):
                    paint = {} if filled else {"markerfacecolor": "none"}
                    place = (cost or least / 3) * beside
                    drawn = axis.errorbar(place, area["mean"], yerr=area["standard_error"], **look, **paint)
                    if filled:
                        legend[own["method"]] = drawn
        ticks: list[int] = []
        for cost in sorted({round(cost) for cost in costs if cost}):
            ticks += [cost] if not ticks or cost > 1.4 * ticks[-1] else []  # so that labels have room
        axis.set(xscale="log", ylabel=f"AUC, {setting.other}")
        none = {} if all(costs) else {least / 3: "none"}
        axis.set_xticks([*none, *ticks], [*none.values(), *(f"{tick:,}" for tick in ticks)])
        axis.minorticks_off()
        axis.set_title(setting.title.partition(",")[0], fontsize=NORMAL)
        plain(axis)
    panels[-1].set_xlabel("batches through networks in training", fontsize=NORMAL)
    known = {_label(name): legend[name] for name in names if name in legend}
    figure.legend(list(known.values()), list(known), loc="outside right center", frameon=False, fontsize=SMALL)
    return figure
