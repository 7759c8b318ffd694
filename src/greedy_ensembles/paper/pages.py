"""The page of a study: what a person wrote of it, then tables and pictures, and all of it as CSV, JSON and LaTeX.

STUDY.md          the page
SECTION-*.png     pictures of a section
records/          reading.md: yours: the answer, which stands first, and below a heading what comes after the summary;
                  every run: figures, settings, seed, machine, date, seconds, versions, commit;
                  SECTION.csv, .json, .tex: figures of a section, unrounded;
                  study.json: what was asked for, which runs there are, and which are missing
"""

import dataclasses
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from greedy_ensembles.benchmark import Comparison
from greedy_ensembles.benchmark.comparison import Figure, Row
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.machine import __version__
from greedy_ensembles.paper import cost
from greedy_ensembles.paper.records import KEPT, Gathered, Record, keep
from greedy_ensembles.paper.sections import bullets, overhead_table, section_parts
from greedy_ensembles.paper.study import DEEP, Job, Protocol, Study, Target
from greedy_ensembles.report.results import IN_DOMAIN, OOD, spelled
from greedy_ensembles.report.table import Column, Entry, markdown_table
from greedy_ensembles.storage import write_bytes

_CURVE = 3  # values of lambda_M: what a line needs at the least
_INSIDE = {"accuracy": "accuracy", "nll": "minus NLL"}  # targets of the in-domain set
#: Of the summary: how the names of means end, and what is shown of each.
_SUMMARY = (("synthetic", OOD[0]), ("natural", OOD[0]), ("natural", OOD[2]))


class Page(NamedTuple):
    """A page in Markdown: its title, what stands first, and the parts below."""

    title: str
    parts: Sequence[str]
    summary: str = ""

    def text(self, reading: str = "") -> str:
        """Return it with what a person wrote: the answer before the summary, the rest, from its first heading, after.

        A heading of the first level takes the place of the title.
        """
        title, reading = self.title, reading.strip()
        if reading.startswith("# "):
            title, _, reading = reading.removeprefix("# ").partition("\n")
        answer, heading, rest = f"\n{reading}".partition("\n## ")  # the first line may be a heading
        every = (f"# {title}", answer.strip(), self.summary.strip(), f"{heading}{rest}".strip(), *self.parts)
        return "\n\n".join(part for part in every if part) + "\n"


def publish(folder: Path, stem: str, page: Page, content: object = None, name: str = "") -> str:
    """Write STEM.md, and its content as JSON into its records, under another name if one is given; return the text.

    STEM-reading.md or else reading.md of its records is what a person wrote.
    """
    readings = (folder / KEPT / f"{which}reading.md" for which in (f"{stem}-", ""))
    text = page.text(next((own.read_text() for own in readings if own.exists()), ""))
    write_bytes(folder / f"{stem}.md", [text.encode()])
    if content is not None:
        (folder / KEPT).mkdir(parents=True, exist_ok=True)
        write_bytes(folder / KEPT / f"{name or stem}.json", [json.dumps(content, indent=1).encode() + b"\n"])
    return text


def provenance(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return where, when and by what runs were started, out of what each run.json says."""

    def every(texts: Iterable[str]) -> str:
        return "; ".join(dict.fromkeys(texts))

    started = sorted(str(run["started"]) for run in runs)
    versions = (", ".join(f"{name} {version}" for name, version in run["versions"].items()) for run in runs)
    return {
        "machine": every(str(run["device"]) for run in runs),
        "started": " to ".join(dict.fromkeys((started[0], started[-1]))),
        "commit": every(str(run.get("git_commit") or "unknown")[:12] for run in runs),
        "versions": every(versions),
    }


def write_page(
    study: Study,
    protocol: Protocol,
    sections: Sequence[Gathered],
    folder: Path,
    command: Sequence[str],
    device: cost.Device,
    images: Mapping[str, Mapping[str, Bytes]] | None = None,
) -> Path:
    """Write the page of a study and all that belongs to it into a folder, and return the page's path.

    The cost of what is missing is given for the device, unless there are runs from another. `images` are those of OOD
    sets, by in-domain set and then by name, for galleries of examples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = {job: record for each in sections for job, record in (each.done | each.diverged).items()}
    devices = [own for record in records.values() if (own := cost.device_of(record)).kind in cost.MILLISECONDS]
    diverged = {job.name: record.message for each in sections for job, record in each.diverged.items()}
    shown = [each for each in sections if each.done and _tells_more(each)]
    parts = _headed("Targets", targets_table(sections))
    for gathered in shown:
        if not study.timed:
            parts.append(f"## {gathered.section.title}")
            parts += section_parts(study, gathered, folder, images or {})
    parts += _headed("Diverged", markdown_table(["run", "why"], diverged.items()) if diverged else "")
    parts += _headed("Missing with these settings", missing_table(sections, records, (devices or [device])[-1]))
    kept = f"Every run, and figures unrounded, as CSV, JSON and LaTeX: [{KEPT}]({KEPT})."
    facts = [f"of the paper: {study.paper}", f"protocol: {protocol.description}", f"page: `{shlex.join(command)}`"]
    if protocol.quick:
        facts.insert(0, "**quick: tiny settings that exercise every step; the figures mean nothing**")
    parts += _headed("How it was made", bullets([*facts, *study.remarks]), kept, runs_table(records))
    content = {
        "study": study.name,
        "greedy_ensembles": __version__,
        "command": list(command),
        "protocol": dataclasses.asdict(protocol),
        "runs": [record.name for record in records.values()],
        "missing": list(dict.fromkeys(job.name for gathered in sections for job in gathered.missing)),
    }
    keep(records.values(), folder)
    summary = overhead_table(shown) if study.timed else summary_table(shown)
    publish(folder, study.name, Page(study.title, parts, summary), content, "study")
    return folder / f"{study.name}.md"


def _tells_more(gathered: Gathered) -> bool:
    """Say whether a section has more than another one: a curve of few strengths has not."""
    return not gathered.section.curve or len({job.case.strength for job in gathered.done} - {None}) >= _CURVE


def _headed(title: str, *parts: str) -> list[str]:
    """Return parts below a heading, nothing where the last of them is empty."""
    return [f"## {title}", *parts] if parts[-1] else []


def summary_table(sections: Sequence[Gathered]) -> str:
    """Return the main figures of all sections in one table, and below it which sets are stand-ins, or not whole."""
    found = {gathered.section.title: gathered.comparison for gathered in sections if gathered.comparison is not None}
    if not found:
        return ""
    shown = [f"{column.heading}, {kind}" for kind, column in _SUMMARY]
    heading = ["", "method", "seeds", *(column.heading for column in IN_DOMAIN[:2]), *shown, "OOD sets"]
    rows = [[title, *row] for title, comparison in found.items() for row in _summary_rows(comparison)]
    about = bullets(f"{one.name}: {one.note}" for each in found.values() for one in each.first.sets if one.note)
    words = "Means over OOD sets, detected by mutual information. In brackets: the paper's figures, of the same sets."
    return "\n\n".join(part for part in (markdown_table(heading, rows), words, about) if part)


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
        return {"mean": fmean(found.values())} if len(found) == len(target.sets) else {}
    return found


def _of(rows: Iterable[Row], label: str) -> list[Row]:
    return [row for row in rows if row.method == label]


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
    return markdown_table(["", "method", "seeds", f"estimate, {device.basis()}"], rows)


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
