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
from typing import Any

from matplotlib.figure import Figure

from greedy_ensembles.benchmark import Comparison, Estimate, Trial, estimate
from greedy_ensembles.benchmark.selection import CRITERIA, choose
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.machine import __version__
from greedy_ensembles.method import Greedy
from greedy_ensembles.paper import cost
from greedy_ensembles.paper.page_tables import (
    corruption_table,
    missing_table,
    overhead_table,
    runs_table,
    severities,
    summary_table,
    targets_table,
)
from greedy_ensembles.paper.radar import draw_areas
from greedy_ensembles.paper.records import KEPT, Gathered, keep
from greedy_ensembles.paper.study import Protocol, Section, Study
from greedy_ensembles.report.ablation import draw_ablation
from greedy_ensembles.report.detection import draw_pictures
from greedy_ensembles.report.figure import NORMAL, in_lines, method_styles, new_figure, plain, write_figure
from greedy_ensembles.report.results import to_markdown, write_tables
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.storage import write_bytes

READING = "reading.md"
STUDY_FILE = "study.json"
_SEVERITY_PANELS = (
    ("accuracy", "accuracy (%)", 100.0),
    ("nll", "NLL (nats)", 1.0),
    ("ace", "ACE (%)", 100.0),
    ("mi", "MI (nats)", 1.0),
)
_AXES = 3  # what a radar plot and a line need at the least


def page_text(title: str, reading: str, parts: Iterable[str], summary: str = "") -> str:
    """Return a page: its title, the answer, a summary, what else a person has to say, and then the parts.

    What a person has written begins with the answer; the rest is from its first heading of the second level on. A
    heading of the first level takes the place of the title.
    """
    reading = reading.strip()
    if reading.startswith("# "):
        title, _, reading = reading.removeprefix("# ").partition("\n")
    answer, heading, rest = f"\n{reading}".partition("\n## ")  # the first line may be a heading
    every = (f"# {title}", answer.strip(), summary.strip(), f"{heading}{rest}".strip(), *parts)
    return "\n\n".join(part for part in every if part) + "\n"


def write_markdown(path: Path, title: str, parts: Iterable[str], summary: str = "") -> None:
    """Write a page, with what a person has written into `reading.md` of its records."""
    own = path.parent / KEPT / READING
    write_bytes(path, [page_text(title, own.read_text() if own.exists() else "", parts, summary).encode()])


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

    Args:
        study: What was asked for.
        protocol: How its runs are trained.
        sections: What there is of it.
        folder: Where the page goes.
        command: What writes the page.
        device: For which the cost of what is missing is given, unless there are runs from another.
        images: By in-domain set and then by name, the images of OOD sets, for galleries of examples.
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
            parts += _section(study, gathered, folder, images or {})
    parts += _headed("Diverged", markdown_table(["run", "why"], diverged.items()) if diverged else "")
    parts += _headed("Missing with these settings", missing_table(sections, records, (devices or [device])[-1]))
    kept = f"Every run, and figures unrounded, as CSV, JSON and LaTeX: [{KEPT}]({KEPT})."
    parts += _headed("How it was made", _facts(study, protocol, command), kept, runs_table(records))
    page = folder / f"{study.name}.md"
    write_markdown(page, study.title, parts, overhead_table(shown) if study.timed else summary_table(shown))
    content = {
        "study": study.name,
        "greedy_ensembles": __version__,
        "command": list(command),
        "protocol": dataclasses.asdict(protocol),
        "runs": [record.name for record in records.values()],
        "missing": list(dict.fromkeys(job.name for gathered in sections for job in gathered.missing)),
    }
    keep(records.values(), folder)
    write_bytes(folder / KEPT / STUDY_FILE, [json.dumps(content, indent=2).encode() + b"\n"])
    return page


def _tells_more(gathered: Gathered) -> bool:
    """Say whether a section has more than another one: a curve of few strengths has not."""
    return not gathered.section.curve or len({job.case.strength for job in gathered.done} - {None}) >= _AXES


def _headed(title: str, *parts: str) -> list[str]:
    """Return parts below a heading, nothing where the last of them is empty."""
    return [f"## {title}", *parts] if parts[-1] else []


def _facts(study: Study, protocol: Protocol, command: Sequence[str]) -> str:
    lines = [
        f"of the paper: {study.paper}",
        f"protocol: {protocol.description}",
        f"page: `{shlex.join(command)}`",
        *study.remarks,
    ]
    if protocol.quick:
        lines.insert(0, "**quick: tiny settings that exercise every step; the figures mean nothing**")
    return "\n".join(f"- {line}" for line in lines)


def _section(
    study: Study, gathered: Gathered, folder: Path, images: Mapping[str, Mapping[str, Bytes]]
) -> Iterator[str]:
    """Yield the tables and pictures of a section, and write them into the folder."""
    section, comparison = gathered.section, gathered.comparison
    figures: Iterable[tuple[str, str, Figure]] = ()
    if comparison is not None:
        write_tables(comparison, folder / KEPT, section.stem)
        yield to_markdown(comparison).strip()
        figures = _pictures(study, section, comparison, images.get(section.cases[0].dataset, {}))
    elif study.corruptions:
        yield corruption_table(gathered)
        drawn = draw_severities(severities(gathered))
        figures = [(f"{section.stem}-severity", "Figures against the severity of corruptions", drawn)]
    for name, seen, figure in figures:
        write_figure(figure, folder / f"{name}.png")
        yield f"![{seen}]({name}.png)"
        yield "*Bars and bands: one standard error over seeds, where there are several.*"


def _pictures(
    study: Study, section: Section, comparison: Comparison, images: Mapping[str, Bytes]
) -> Iterator[tuple[str, str, Figure]]:
    """Yield the pictures of a section, each with a name and what is to be seen.

    That is the curve over lambda_M, or a radar plot where the paper has one.

    A study of pictures has all there are: curves and histograms of every set, and examples where images are given, in
    a folder of the section's own. They need the scores of single images.
    """
    if study.pictures:
        for name, figure in draw_pictures(comparison, images):
            yield f"{section.stem}/{name}", name.replace("-", " of ", 1), figure
    elif section.curve:
        yield f"{section.stem}-curve", "Accuracy, NLL, ACE and AUC against lambda_M", _draw_curve(section, comparison)
    elif study.radar and len(comparison.first.ood) >= _AXES:
        yield f"{section.stem}-radar", "AUC on every OOD set, by method", draw_areas(comparison)


def _draw_curve(section: Section, comparison: Comparison) -> Figure:
    """Draw figures against lambda_M, and mark the one that the paper's rule would choose, where seeds allow it."""
    strengths = {section.label(case): case.strength for case in section.cases}
    trials = [
        Trial(strengths[row.method], *(row.figures[name].ours for name in CRITERIA))
        for row in comparison.in_domain_rows
    ]
    tried = [trial.strength for trial in trials]
    several = None in tried and len(tried) > 2 and all(trial.accuracy.seeds > 1 for trial in trials)
    chosen = choose(trials).strength if several else None
    areas = mean_areas(comparison, strengths)
    return draw_ablation(trials, comparison.first.in_domain.name, Greedy.label, chosen, areas)


def mean_areas(
    comparison: Comparison, strengths: Mapping[str, float | None]
) -> dict[str, dict[float | None, Estimate]]:
    """Return the mean AUC over synthetic and over natural sets, by strength, of the kinds that there are."""
    found: dict[str, dict[float | None, Estimate]] = {}
    for kind in ("synthetic", "natural"):
        if sets := len(comparison.first.of_kind(kind)):
            found[f"mean AUC, {sets} {kind} sets"] = {
                strengths[method.label]: estimate([each.mean("auc", kind) or 0.0 for each in method.evaluations])
                for method in comparison.methods
            }
    return found


def draw_severities(found: Mapping[str, Mapping[str, Sequence[Estimate]]]) -> Figure:
    """Draw figures against the severity of corruptions, a line for each method with bars of a standard error.

    found : by method and figure, an estimate for severity 1, 2, ...
    """
    figure = new_figure(height=2.75)
    axes = figure.subplots(1, len(_SEVERITY_PANELS))
    for axis, (field, label, factor) in zip(axes, _SEVERITY_PANELS, strict=True):
        for (method, figures), style in zip(found.items(), method_styles(len(found)), strict=True):
            estimates = figures[field]
            axis.errorbar(
                range(1, len(estimates) + 1),
                [factor * estimate.mean for estimate in estimates],
                [factor * estimate.error for estimate in estimates],
                color=style.colour,
                marker=style.marker,
                markersize=3.5,
                linewidth=1,
                linestyle=style.linestyle,
                label=in_lines(method, 40),
            )
            axis.set_xticks(range(1, len(estimates) + 1))
        axis.set(xlabel="severity", ylabel=label)
        plain(axis)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize=NORMAL)
    return figure
