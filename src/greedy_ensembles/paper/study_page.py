"""The page of a study: a Markdown file with tables, pictures and a reading, and all of it as CSV, JSON and LaTeX.

STUDY.md          the page
study.json        what was asked for, which runs there are, and which are missing
records/          every run: figures, settings, seed, machine, date, seconds, versions, commit
SECTION.csv, ...  figures of a section, unrounded; SECTION-*.png, its pictures
reading.md        yours: what you write there stands at the end of the page, and is never overwritten
"""

import dataclasses
import json
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.paper import cost
from greedy_ensembles.paper.gather import Gathered
from greedy_ensembles.paper.pictures import write_section_pictures
from greedy_ensembles.paper.reading import read
from greedy_ensembles.paper.records import KEPT, Record, keep
from greedy_ensembles.paper.study import Job, Protocol, Study
from greedy_ensembles.paper.summary import summary
from greedy_ensembles.paper.tables import (
    corruption_names,
    corruption_sentences,
    corruption_table,
    overhead_sentences,
    overhead_table,
    severities,
)
from greedy_ensembles.report.figure import write_figure
from greedy_ensembles.report.results import to_markdown, write_tables
from greedy_ensembles.report.severity import draw_severities
from greedy_ensembles.storage import write_bytes
from greedy_ensembles.version import __version__

READING = "reading.md"


@dataclass(frozen=True)
class Circumstances:
    """What a page says of how it came about."""

    command: Sequence[str]
    protocol: Protocol
    device: cost.Device  #: for which the cost of what is missing is given, unless there are runs from another


def write_page(
    study: Study,
    sections: Sequence[Gathered],
    folder: Path,
    circumstances: Circumstances,
    images: Mapping[str, Mapping[str, Bytes]] | None = None,
) -> Path:
    """Write the page and all that belongs to it into a folder, and return the page's path.

    images : by in-domain set and then by name, the images of OOD sets, for galleries of examples.
    """
    folder.mkdir(parents=True, exist_ok=True)
    records = _records(sections)
    devices = [device for record in records.values() if (device := cost.device_of(record)).kind in cost.MILLISECONDS]
    if devices:
        circumstances = dataclasses.replace(circumstances, device=devices[-1])
    parts = [f"# {study.title}", _opening(study, circumstances), _trainings(records), summary(sections)]
    for gathered in sections:
        missing = _missing(gathered, records, circumstances.device)
        parts += [f"## {gathered.section.title}", *_section(study, gathered, folder, missing, images or {})]
    parts += ["## How it was made", _provenance(records, circumstances)]
    own = folder / READING
    if own.exists():
        parts.append(own.read_text().strip())
    page = folder / f"{study.name}.md"
    write_bytes(page, ["\n\n".join(part for part in parts if part).encode() + b"\n"])
    content = _facts(study, sections, circumstances)
    write_bytes(folder / "study.json", [json.dumps(content, indent=2).encode() + b"\n"])
    keep(records.values(), folder)
    return page


def _opening(study: Study, circumstances: Circumstances) -> str:
    source = "A study that the paper lacks" if study.paper == "not in the paper" else f"The paper's {study.paper}"
    text = f"{source}. Protocol: {circumstances.protocol.description}."
    if circumstances.protocol.quick:
        text = f"**Quick: tiny settings that exercise every step; the figures mean nothing.** {text}"
    return "\n\n".join([text, *study.remarks])


def _section(
    study: Study,
    gathered: Gathered,
    folder: Path,
    missing: str,
    images: Mapping[str, Mapping[str, Bytes]],
) -> Iterator[str]:
    section, comparison = gathered.section, gathered.comparison
    if comparison is not None:
        write_tables(comparison, folder, section.stem)
        yield to_markdown(comparison).strip()
        own = images.get(section.cases[0].dataset, {})
        for path in write_section_pictures(section, comparison, folder, own, everything=study.pictures):
            yield f"![{path.stem}]({path.relative_to(folder)})"
    elif study.corruptions and gathered.done:
        yield corruption_table(gathered)
        picture = folder / f"{section.stem}-severity.png"
        write_figure(draw_severities(severities(gathered), f"Means over {corruption_names(gathered)}"), picture)
        yield f"![{picture.stem}]({picture.name})"
    elif gathered.done:
        yield overhead_table(gathered)
    else:
        yield "No run of this section has come to its end."
    yield missing
    if sentences := [*read(gathered), *_extra_sentences(study, gathered)]:
        yield "**Reading**\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)


def _extra_sentences(study: Study, gathered: Gathered) -> list[str]:
    if study.timed:
        return overhead_sentences(gathered)
    return [] if study.evaluated else corruption_sentences(gathered)


def _missing(gathered: Gathered, records: Mapping[Job, Record], device: cost.Device) -> str:
    """Return which runs of a section are still to be done, and what they would take."""
    if not gathered.missing:
        return ""
    prices = {job: cost.price(job, device, records.items()) for job in gathered.missing}
    total = cost.spelled(cost.total(prices))
    lines = [f"**Still missing**: {plural(len(prices))}, about {total} {device.basis}."]
    for case in dict.fromkeys(job.case for job in prices):
        own = {job: price for job, price in prices.items() if job.case == case}
        seeds = ", ".join(str(job.seed) for job in own)
        seconds = cost.spelled(sum(price.seconds for price in own.values()))
        kind = f"{gathered.section.label(case)} ({case.model}, M = {case.size})"
        how = "as timed" if all(price.measured for price in own.values()) else "by the table"
        lines.append(f"- {kind}, seeds {seeds}: {seconds} ({how})")
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def plural(runs: int) -> str:
    """Return a number of runs in words.

    >>> plural(1), plural(1200)
    ('1 run', '1,200 runs')
    """
    return "1 run" if runs == 1 else f"{runs:,} runs"


def _trainings(records: Mapping[Job, Record]) -> str:
    """Return which Deep Ensembles of several sizes share members: those of one training, whose first they are."""
    begun: dict[str, dict[str, list[Job]]] = {}
    for job, record in records.items():
        begun.setdefault(job.run, {}).setdefault(str(record.machine.get("started")), []).append(job)
    several = {run: groups for run, groups in begun.items() if sum(map(len, groups.values())) > 1}
    if not several:
        return ""
    text = (
        "Deep Ensembles of one seed are trained once, for the largest M; those of a smaller M are its first members, "
        "for members that do not touch do not depend on M."
    )
    for groups in several.values():
        if len(groups) > 1:
            sizes = [f"M = {', '.join(str(job.case.size) for job in jobs)}" for jobs in groups.values()]
            seed = next(iter(groups.values()))[0].seed
            text += f" Of seed {seed}, however, there are {len(groups)} trainings: of {'; of '.join(sizes)}."
    return text


def _provenance(records: Mapping[Job, Record], circumstances: Circumstances) -> str:
    lines = [f"`{shlex.join(circumstances.command)}`, greedy_ensembles {__version__}."]
    if not records:
        return lines[0]
    started = sorted(str(record.machine.get("started", "")) for record in records.values())
    devices = dict.fromkeys(str(record.machine.get("device")) for record in records.values())
    versions = dict.fromkeys(_versions(record) for record in records.values())
    distinct: dict[tuple[str, object], float] = {}  # records of one training have the seconds of its first members
    for job, record in records.items():
        training = job.run, record.machine.get("started")
        distinct[training] = max(distinct.get(training, 0.0), record.seconds)
    shared = "" if len(distinct) == len(records) else f" of {len(distinct):,} trainings"
    seconds = sum(distinct.values())
    seeds = ", ".join(str(seed) for seed in sorted({job.seed for job in records}))
    lines += [
        f"- {plural(len(records))}{shared}, seeds {seeds}, started from {started[0]} to {started[-1]}, "
        f"{cost.spelled(seconds)} of training",
        f"- on {'; '.join(devices)}{_judged(records)}",
        f"- {'; '.join(versions)}; {_commits(records.values())}",
        *_commands(records.values()),
        f"- every run, with its settings, machine and seconds: [{KEPT}]({KEPT})",
    ]
    return lines[0] + "\n\n" + "\n".join(lines[1:])


def _commands(records: Iterable[Record]) -> Iterator[str]:
    """Yield the commands by which runs were trained, for that which wrote the page need not have."""
    counts = Counter(shlex.join(command) for record in records if (command := record.machine.get("command")))
    for command, count in counts.items():
        yield f"- {plural(count)} trained by `{command}`"


def _commits(records: Collection[Record]) -> str:
    """Return on which commits runs were started, as far as that was known there."""
    known = [str(commit)[:12] for record in records if (commit := record.machine.get("git_commit"))]
    unknown = len(records) - len(known)
    listed = [*dict.fromkeys(known), *([f"unknown for {plural(unknown)}"] if unknown else [])]
    return f"commit {', '.join(listed)}"


def _judged(records: Mapping[Job, Record]) -> str:
    """Return in what the runs were judged: of which methods, where they differ."""
    methods: dict[str, Counter[str]] = {}
    for job, record in records.items():
        for name in ("evaluation", "corruptions", "prediction"):
            if getattr(record, name) is not None:
                counts = methods.setdefault(record.judged_in.get(name, "float32"), Counter())
                counts["greedy" if job.case.strength else "Deep Ensembles"] += 1
                break
    if len(methods) < 2:
        return "".join(f"; predictions in {precision}" for precision in methods)
    listed = [
        f"of {', '.join(f'{plural(count)} of {method}' for method, count in counts.items())} in {precision}"
        for precision, counts in methods.items()
    ]
    return f"; predictions {', '.join(listed)}"


def _versions(record: Record) -> str:
    return ", ".join(f"{name} {version}" for name, version in (record.machine.get("versions") or {}).items())


def _records(sections: Sequence[Gathered]) -> dict[Job, Record]:
    return {job: record for gathered in sections for job, record in (gathered.done | gathered.diverged).items()}


def _facts(study: Study, sections: Sequence[Gathered], circumstances: Circumstances) -> dict[str, Any]:
    missing = dict.fromkeys(job.name for gathered in sections for job in gathered.missing)
    return {
        "study": study.name,
        "greedy_ensembles": __version__,
        "command": list(circumstances.command),
        "protocol": dataclasses.asdict(circumstances.protocol),
        "runs": [record.name for record in _records(sections).values()],
        "missing": list(missing),
    }
