"""The tables of a study's page: a summary, targets, training times, corrupted images, what is missing, and the runs."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean as _mean

from greedy_ensembles.benchmark import Comparison, Estimate, estimate
from greedy_ensembles.benchmark.comparison import Figure, Row
from greedy_ensembles.data.cifar import SEVERITIES
from greedy_ensembles.paper import cost, published
from greedy_ensembles.paper.images import NOTE, is_generated
from greedy_ensembles.paper.records import Gathered, Record
from greedy_ensembles.paper.study import DEEP, Job, Target
from greedy_ensembles.report.results import IN_DOMAIN, OOD, plural, spelled
from greedy_ensembles.report.table import Column, Entry, markdown_table

_INSIDE = {"accuracy": "accuracy", "nll": "minus NLL"}  # targets of the in-domain set
#: Of the summary: how the names of means end, and what is shown of each.
_SUMMARY = (("synthetic", OOD[0]), ("natural", OOD[0]), ("natural", OOD[2]))
_CORRUPTED = (*IN_DOMAIN[:2], IN_DOMAIN[3], Column("mi", "MI (nats)", 1, 3))


def summary_table(sections: Sequence[Gathered]) -> str:
    """Return the main figures of all sections in one table, and below it which sets are stand-ins, or not whole."""
    found = {gathered.section.title: gathered.comparison for gathered in sections if gathered.comparison is not None}
    if not found:
        return ""
    shown = [f"{column.heading}, {kind}" for kind, column in _SUMMARY]
    heading = ["", "method", "seeds", *(column.heading for column in IN_DOMAIN[:2]), *shown, "OOD sets"]
    rows = [[title, *row] for title, comparison in found.items() for row in _summary_rows(comparison)]
    about = dict.fromkeys(f"- {one.name}: {one.note}" for each in found.values() for one in each.first.sets if one.note)
    words = "Means over OOD sets, detected by mutual information. In brackets: the paper's figures, of the same sets."
    return "\n\n".join(part for part in (markdown_table(heading, rows), words, "\n".join(about)) if part)


def _summary_rows(comparison: Comparison) -> Iterator[list[str]]:
    inside = {row.method: row.figures for row in comparison.in_domain_rows}
    judged, absent = len(comparison.first.ood), len(comparison.first.missing)
    for method in comparison.methods:
        means = {row.set.rpartition(" ")[2]: row for row in comparison.mean_rows if row.method == method.label}
        known = [_both(inside[method.label][column.key], column) for column in IN_DOMAIN[:2]]
        areas = [_both(means[kind].figures[one.key], one) if kind in means else "" for kind, one in _SUMMARY]
        sets = f"{judged} of {judged + absent}" if absent else f"{judged}"
        yield [method.label, str(len(method.evaluations)), *known, *areas, sets]


def _both(figure: Figure, column: Column) -> str:
    return Entry(figure.ours, figure.paper).both(column)


def targets_table(sections: Sequence[Gathered]) -> str:
    """Return what sections are to reach, and whether each method does; empty where nothing is asked."""
    rows = [
        [gathered.section.title, _spelled(target), *row]
        for gathered in sections
        if gathered.comparison is not None
        for target in gathered.section.targets
        for row in _target_rows(target, gathered.comparison)
    ]
    return markdown_table(["", "target", "method", "found", "outcome"], rows) if rows else ""


def _spelled(target: Target) -> str:
    area = "AUC by predictive entropy" if target.metric == "auc_predictive_entropy" else "AUC"
    where = f"{'mean ' * target.mean}{area} on {', '.join(target.sets)}" if target.sets else "mean AUC of all sets"
    name = _INSIDE.get(target.metric, where)
    return f"{name} >= {target.least:g}" if target.gain is None else f"{name} >= {DEEP} {target.gain:+g}"


def _target_rows(target: Target, comparison: Comparison) -> Iterator[list[str]]:
    """Yield method, figures and outcome, for every method that it is about: Deep Ensembles where it is no gain."""
    labels = [method.label for method in comparison.methods]
    before = _values(target, comparison, DEEP) if DEEP in labels else {}
    of_all = target.metric == "auc" and not target.sets
    left_out = comparison.left_out if of_all else ()  # sets that are there, and would count
    for label in labels:
        if label == DEEP and (target.gain is not None or target.metric != "accuracy"):
            continue
        values, sign = _values(target, comparison, label), ""
        if target.gain is not None:
            values, sign = {name: value - before[name] for name, value in values.items() if name in before}, "+"
        absent = [name for name in (*target.sets, *left_out) if name not in values and not (target.mean and values)]
        bound = target.least if target.gain is None else target.gain
        missed = bound is not None and any(value < bound for value in values.values()) and not left_out
        outcome = "missed" if missed else "not known" if absent or not values else "reached"
        found = [*(f"{name} {value:{sign}.4f}" for name, value in values.items()), *(f"no {name}" for name in absent)]
        yield [label, ", ".join(found), outcome]


def _values(target: Target, comparison: Comparison, label: str) -> dict[str, float]:
    """Return the figures of a method that a target is about, by what each is of."""
    if target.metric in _INSIDE:
        value = _of(comparison.in_domain_rows, label)[0].figures[target.metric].ours.mean
        return {_INSIDE[target.metric]: -value if target.metric == "nll" else value}
    rows = _of([*comparison.ood_rows, *comparison.mean_rows], label)
    if target.sets:
        rows = [row for name in target.sets for row in rows if row.set == name]
    else:
        rows = [row for row in rows if row.kind == "mean" and row.set.endswith("sets")]
    found = {row.set: row.figures[target.metric].ours.mean for row in rows if target.metric in row.figures}
    if target.mean:
        return {"mean": _mean(found.values())} if len(found) == len(target.sets) else {}
    return found


def _of(rows: Iterable[Row], label: str) -> list[Row]:
    return [row for row in rows if row.method == label]


def overhead_table(sections: Sequence[Gathered]) -> str:
    """Return seconds of training and of prediction by section and method, with how much more the greedy one takes."""
    paper = {row["architecture"]: f"+{row['overhead_percent']} %" for row in published.table("overhead")}
    rows, notes = [], []
    for gathered in sections:
        seconds = {label: _mean(r.epoch_seconds for r in records) for label, records in _by_method(gathered).items()}
        for label, records in _by_method(gathered).items():
            more = f"{100 * (seconds[label] / seconds[DEEP] - 1):+.1f} %" if DEEP in seconds else ""
            beside = ["", ""] if label == DEEP else [more, paper.get(gathered.section.cases[0].model, "")]
            times = [1000 * r.prediction["seconds"] / r.prediction["images"] for r in records if r.prediction]
            image = f"{_mean(times):.3f}" if times else ""
            rows.append([gathered.section.title, label, f"{len(records)}", f"{seconds[label]:.3f}", *beside, image])
        if any(job.recipe.epochs == 1 for job in gathered.done):
            notes.append("seconds are those of the first epoch")
        notes += [record.facts.training_note for record in gathered.done.values()]
    heading = ["", "method", "runs", "seconds a member and epoch", f"more than {DEEP}", "the paper's (V100)"]
    return markdown_table([*heading, "ms an image, all members"], rows) + _noted(notes) if rows else ""


def corruption_table(gathered: Gathered) -> str:
    """Return accuracy, NLL, ACE and MI by severity, with the corruptions that they are means over."""
    found, methods = severities(gathered), _by_method(gathered)
    rows = []
    for number, severity in enumerate(SEVERITIES):
        for label, figures in found.items():
            shown = [Entry(figures[column.key][number]).shown(column) for column in _CORRUPTED]
            rows.append([str(severity), label, str(len(methods[label])), *shown])
    names = _names(gathered)
    kinds = dict.fromkeys(name.partition("/")[0] for name in names)
    notes = [f"means over {plural(len(kinds), 'corruption')} ({', '.join(kinds)}), ± standard error over seeds"]
    if any(map(is_generated, names)):
        notes.append(f"the corruptions are {NOTE}")
    heading = ["severity", "method", "seeds", *(column.heading for column in _CORRUPTED)]
    notes += [record.facts.training_note for record in gathered.done.values()]
    return markdown_table(heading, rows) + _noted(notes)


def severities(gathered: Gathered) -> dict[str, dict[str, list[Estimate]]]:
    """Return figures by method and severity: the mean over corruptions of each seed, and then over seeds."""

    def of(record: Record, severity: int, metric: str) -> float:
        corruptions = (record.corruptions or {}).items()
        return _mean(values[metric] for name, values in corruptions if name.endswith(f"/{severity}"))

    return {
        label: {
            column.key: [estimate([of(record, severity, column.key) for record in records]) for severity in SEVERITIES]
            for column in _CORRUPTED
        }
        for label, records in _by_method(gathered).items()
    }


def _names(gathered: Gathered) -> list[str]:
    """Return the corruptions by name and severity, which must be the same in all runs."""
    (first, found), *rest = ((job.name, list(record.corruptions or {})) for job, record in gathered.done.items())
    for name, other in rest:
        if set(other) != set(found):
            raise ValueError(
                f"{gathered.section.title}: {name} was judged on other corruptions than {first}. Delete the records of "
                "the former, and run again: runs whose folders are there are judged anew, and not trained"
            )
    return found


def _noted(notes: Iterable[str]) -> str:
    """Return notes below a table, each once."""
    lines = [f"- {note}" for note in dict.fromkeys(notes) if note]
    return "\n".join(["\n", *lines]) if lines else ""


def _by_method(gathered: Gathered) -> dict[str, list[Record]]:
    methods: dict[str, list[Record]] = {}
    for job, record in gathered.done.items():
        methods.setdefault(gathered.section.label(job.case), []).append(record)
    return methods


def missing_table(sections: Sequence[Gathered], records: Mapping[Job, Record], device: cost.Device) -> str:
    """Return which runs are still to be done, and what they would take on a device; empty where there are none."""
    prices: dict[Job, float] = {}
    rows = []
    for gathered in sections:
        for case in dict.fromkeys(job.case for job in gathered.missing):
            own = {job: cost.price(job, device, records) for job in gathered.missing if job.case == case}
            prices |= own
            seeds = ", ".join(str(job.seed) for job in own)
            seconds = spelled(sum(own.values()))
            rows.append([gathered.section.title, gathered.section.label(case), seeds, seconds])
    if not rows:
        return ""
    rows.append(["all", "", f"runs: {len(prices)}", spelled(cost.makespan(prices))])
    return markdown_table(["", "method", "seeds", f"estimate, {device.basis}"], rows)


def runs_table(records: Mapping[Job, Record]) -> str:
    """Return by which commands, where and when runs were trained, those alike in a row."""
    alike: dict[tuple[str, ...], list[tuple[Job, Record]]] = {}
    for job, record in records.items():
        machine = record.machine
        versions = ", ".join(f"{name} {version}" for name, version in (machine.get("versions") or {}).items())
        commit = str(machine.get("git_commit") or "unknown")[:12]
        place = f"`{shlex.join(machine.get('command') or [])}`", str(machine.get("device")), _judged_in(record)
        alike.setdefault((*place, versions, commit), []).append((job, record))
    rows = []
    for facts, own in alike.items():
        started = sorted(str(record.machine.get("started", "")) for _, record in own)
        seconds: dict[tuple[str, str], float] = {}  # records of one training have the seconds of its first members
        for job, record in own:
            training = job.run, str(record.machine.get("started"))
            seconds[training] = max(seconds.get(training, 0.0), record.seconds)
        days = dict.fromkeys((started[0][:16], started[-1][:16]))
        rows.append([f"{len(own)}", *facts, " to ".join(days), spelled(sum(seconds.values()))])
    heading = ["runs", "trained by", "on", "judged in", "versions", "commit", "started", "training"]
    return markdown_table(heading, rows) if rows else ""


def _judged_in(record: Record) -> str:
    judged = [name for name in ("evaluation", "corruptions", "prediction") if getattr(record, name) is not None]
    return record.judged_in.get(judged[0], "float32") if judged else ""
