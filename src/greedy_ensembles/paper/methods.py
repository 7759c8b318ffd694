"""The study of all methods of the registry: what their runs came to, in one table with what they cost.

Sets are of three groups: noise, natural sets on which a score is chosen together with the noise, and other natural
sets, which have no say. A method that refuses a setting is in the table with its reason, and without figures.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from greedy_ensembles.benchmark import Comparison, Estimate, Evaluation, Method, estimate
from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.method import METHODS
from greedy_ensembles.paper.method_runs import SETTINGS, Job, Setting, jobs, work
from greedy_ensembles.paper.pages import Page, provenance, publish
from greedy_ensembles.paper.records import KEPT, restored
from greedy_ensembles.paper.sections import bullets
from greedy_ensembles.paper.study import Study, only
from greedy_ensembles.report.figure import NORMAL, SMALL, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Column, Entry, Table

Groups = Mapping[str, Sequence[str]]
GROUPS = ("noise", "choosing", "other")
_MI = "mutual_information"
_COSTS = ("steps", "passes", "parameters")
#: Of the sets of a group, by mutual information and by the chosen score.
_FIGURES = [(group, by, one) for group in GROUPS for by in ("MI", "score") for one in (OOD[0], OOD[2])]
_SUMMARY = ("method", "accuracy", "nll", "other_MI_auc", "other_score_auc", "other_score_fpr95", "score", "steps")
_CAPTION = (
    "Filled: by the score chosen on noise and choosing sets; hollow: by mutual information. Batches of p\\* count too. "
    "Points of one cost stand side by side. Bars: one standard error."
)


def _run(
    folder: Path,
    progress: bool,
    seeds: int = 3,
    model: Sequence[str] | None = None,
    part: str | None = None,
    page_only: bool = False,
) -> None:
    check_count("--seeds", seeds, least=1)
    for name in model or ():
        check_choice("--model", name, [setting.network for setting in SETTINGS])
    asked = [replace(setting, seeds=seeds) for setting in SETTINGS if not model or setting.network in model]
    wanted = jobs(asked) if part is None else only(jobs(asked), part)
    if not page_only:
        work(folder, wanted, progress)
    write(folder, [replace(setting, seeds=max(seeds, setting.seeds)) for setting in SETTINGS])


STUDY = Study(
    "methods",
    "Every method",
    "not in the paper",
    (),
    seeds=3,
    special=_run,
    takes=("mnist, cifar10", "an hour on a GPU"),
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
        content["made"][setting.name] = facts = made(records)
        content[setting.name] = found[setting] = figures(setting, records)
        shown = table(setting, found[setting])
        short = replace(shown, columns=[column for column in shown.columns if column.key in _SUMMARY])
        summary += [f"{setting.title}. *Other*: {setting.other}.", short.to_markdown()]
        notes = [*(f"{name}: {value}" for name, value in facts.items()), *shown.notes]
        refused = {job: record["refused"] for job, record in records.items() if "refused" in record}
        notes += [f"{_label(job.method)}, seed {job.seed}: {why}" for job, why in refused.items()]
        if missing := ", ".join(f"{_label(job.method)} (seed {job.seed})" for job in wanted if job not in records):
            notes.append(f"not run yet: {missing}")
        parts += [f"## {setting.title}", *_narrow(shown), bullets(notes)]
    if not found:
        names = "; ".join(setting.title for setting in settings)
        raise ValueError(f"{out / KEPT} has no figures of {names}. Images need a GPU and their data")
    if left := ", ".join(setting.title for setting in settings if setting not in found):
        parts.append(f"Not run, for want of a GPU or of the data: {left}.")
    parts.append("`greedy-ensembles reproduce methods --page FOLDER` trains and judges all of it, in FOLDER/runs.")
    write_figure(draw(found), out / "methods.png")
    summary += ["![AUC against the cost of training](methods.png)", f"*{_CAPTION}*"]
    publish(out, "methods", Page(STUDY.title, parts, "\n\n".join(summary)), content)


def figures(setting: Setting, records: Mapping[Job, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a table: methods in the order of the registry, then what stands beside them."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for record in records.values():
        for name, own in record.get("rows", {}).items():
            found.setdefault(name, []).append(own)
    judged = {name: [restored(own["evaluation"]) for own in each] for name, each in found.items()}
    try:
        Comparison(tuple(Method(name, tuple(each)) for name, each in judged.items()), own_scores=True)
    except ValueError as error:
        raise ValueError(f"{setting.title}: {error}. Delete the records of the former, and run again") from None
    groups = next(iter(records.values()))["groups"]
    rows = {
        name: {"method": name, **row(groups, each), **{cost: found[name][0].get(cost) for cost in _COSTS}}
        for name, each in judged.items()
    }
    for job, record in records.items():
        if "refused" in record:
            rows.setdefault(job.method, {"method": job.method, "refused": record["refused"]})
    return [rows.pop(name) for name in METHODS if name in rows] + list(rows.values())


def row(groups: Groups, evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """Return what one evaluation a seed comes to: figures in the domain, and on each group by MI and by score."""
    inside, score = [one.in_domain for one in evaluations], chosen(groups, evaluations)
    found: dict[str, Any] = {"seeds": len(inside), "score": score}
    for key, values in (
        ("accuracy", [each.accuracy for each in inside]),
        ("nll", [each.nll for each in inside]),
        ("lowest", [min(each.member_accuracies, default=math.nan) for each in inside]),
    ):
        found |= {} if any(map(math.isnan, values)) else {key: asdict(estimate(values))}
    for group, by, one in _FIGURES:
        found_there = figure(groups[group], evaluations, _MI if by == "MI" else score, one.key)
        found |= {} if found_there is None else {f"{group}_{by}_{one.key}": asdict(found_there)}
    return found


def chosen(groups: Groups, evaluations: Sequence[Evaluation]) -> str:
    """Return the score that is best on the sets that may choose."""
    names = {*groups["noise"], *groups["choosing"]}

    def area(score: str) -> float:
        return statistics.fmean(r.by_score[score].auc for one in evaluations for r in one.ood if r.name in names)

    return max(evaluations[0].known_scores, key=area)


def figure(names: Sequence[str], evaluations: Sequence[Evaluation], score: str, metric: str) -> Estimate | None:
    """Return the mean over some sets for each seed, and then over seeds; None where there is none."""
    first = evaluations[0]
    if not names or score not in first.known_scores or (first.members == 1 and score == _MI):
        return None
    return estimate(
        [
            statistics.fmean(getattr(r.by_score[score], metric) for r in one.ood if r.name in names)
            for one in evaluations
        ]
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


def table(setting: Setting, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each method, from the records."""
    columns = [Column("method"), Column("seeds"), IN_DOMAIN[0], IN_DOMAIN[1]]
    columns += [Column("lowest", "lowest member (%)", 100, 2), Column("score")]
    columns += [Column(f"{group}_{by}_{one.key}", f"{one.heading} {group}, {by}", 1, 3) for group, by, one in _FIGURES]
    columns += [Column("steps", "member-steps"), Column("passes", "passes a prediction"), Column("parameters")]
    entries = [
        {
            key: Entry(Estimate(**value) if isinstance(value, dict) else value)
            for key, value in (own | {"method": _label(own["method"])}).items()
            if key != "refused"
        }
        for own in map(dict, rows)
    ]
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
            place = (cost or least / 3) * 1.08 ** (level.index(own) - (len(level) - 1) / 2)  # none hides another
            look = {"color": style.colour, "marker": style.marker, "linestyle": "", "markersize": 5}
            for by, paint in (("MI", {"markerfacecolor": "none"}), ("score", {})):
                if area := own.get(f"other_{by}_auc"):
                    drawn = axis.errorbar(place, area["mean"], yerr=area["standard_error"], **look, **paint)
                    legend[own["method"]] = drawn  # the filled one, which comes last
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
