"""Runs that were made more than once: same seed, same settings, another day. What changes?

    python benchmarks/repeats.py [--out results/repeats]

Compares the records of all pages in results/, and of results/repeats/records, which has the tries that no page shows.
Needs neither data nor a GPU.
"""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from result import how, parser

from greedy_ensembles import storage
from greedy_ensembles.paper.pages import Page, publish
from greedy_ensembles.report.table import markdown_table

RESULTS = Path(__file__).parents[1] / "results"
GROUPS = ("noise", "blobs", "natural")


def tries(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of every run that one version made more than once, by name, the oldest first.

    A name says what was asked for; what that means has changed between versions.
    """
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for path in sorted(results.glob("*/records/*-seed*.json")):
        record = storage.read_json(path)
        if "name" in record:  # those of the study of methods have none
            version = record["machine"]["versions"]["greedy_ensembles"]
            found.setdefault((record["name"], version), {})[record["machine"]["started"]] = record  # pages share some
    return {name: [own[when] for when in sorted(own)] for (name, _), own in sorted(found.items()) if len(own) > 1}


def shared(records: Sequence[dict[str, Any]]) -> dict[str, tuple[str, list[float]]]:
    """Return the AUC of every try that ended, by OOD set, with its kind: of sets whose images were the same in all."""
    judged = [{entry["name"]: entry for entry in record["evaluation"]["ood"]} for record in ended(records)]
    if not judged:
        return {}
    return {
        name: (first["kind"], [own[name]["auc"] for own in judged])
        for name, first in judged[0].items()
        if all(own.get(name, {}).get("content") == first["content"] for own in judged)
    }


def ended(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tries that did not leave the range of numbers."""
    return [record for record in records if record["status"] == "done"]


def table(name: str, records: Sequence[dict[str, Any]]) -> list[str]:
    """Return the section of one run as Markdown."""
    whole, sets = ended(records), shared(records)
    inside = [record["evaluation"]["in_domain"] for record in whole]
    commits = [(record["machine"]["git_commit"] or "unknown")[:12] for record in whole]
    rows = {
        "commit": commits,
        "accuracy (%)": [f"{100 * entry['accuracy']:.2f}" for entry in inside],
        "members alone (%)": [
            ", ".join(f"{100 * value:.1f}" for value in entry.get("member_accuracies", ())) or "not known"
            for entry in inside
        ],
        "NLL x 100": [f"{100 * entry['nll']:.2f}" for entry in inside],
        **{f"AUC, {own}": [f"{value:.3f}" for value in values] for own, (_, values) in sets.items()},
    }
    for kind in ("synthetic", "natural"):
        columns = [values for own, values in sets.values() if own == kind]
        if columns:
            means = [statistics.fmean(column) for column in zip(*columns, strict=True)]
            rows[f"mean AUC, {len(columns)} {kind}"] = [f"{mean:.3f}" for mean in means]
    gone = [
        f"The try of {record['machine']['started'][:16]} did not end: {record['message'].split('. ')[0]}."
        for record in records
        if record not in whole
    ]
    heading = ["", *(record["machine"]["started"][:16] for record in whole)]
    return [f"## {name}", markdown_table(heading, ([row, *cells] for row, cells in rows.items())), *gone]


def page(found: dict[str, list[dict[str, Any]]]) -> Page:
    """Return by how much tries differ, and then each run."""
    machines = dict.fromkeys(
        f"{record['machine']['device']}, torch {record['machine']['versions']['torch']}"
        for records in found.values()
        for record in records
    )
    made = {
        "from": "the records of all pages, and [tries that no page shows](records)",
        "runs": "made more than once with the same seed and settings",
        "machine": "; ".join(machines),
        "OOD sets": "those whose images were the same in all tries",
    }
    rows = [[name, f"{len(records)}", *_moves(records)] for name, records in found.items()]
    summary = markdown_table(["run", "tries", "accuracy (points)", "AUC, noise", "blobs", "natural"], rows)
    words = "Differences between the highest and the lowest try that ended; AUC in the mean over the sets of a kind."
    sections = [part for name, records in found.items() for part in table(name, records)]
    parts = [*sections, *how({"command": "python benchmarks/repeats.py --out results/repeats"}, made)]
    return Page("The same run again", parts, f"{summary}\n\n{words}")


def _moves(records: Sequence[dict[str, Any]]) -> list[str]:
    """Return by how much tries differ in accuracy and in AUC on noise, blobs and natural sets."""
    accuracies = [record["evaluation"]["in_domain"]["accuracy"] for record in ended(records)]
    found = spread(records, "auc")
    return [
        f"{100 * (max(accuracies) - min(accuracies)):.2f}",
        *(f"{found[kind]:.3f}" if kind in found else "" for kind in GROUPS),
    ]


def group_of(name: str, kind: str) -> str:
    """Return which group an OOD set is of."""
    return kind if kind == "natural" else "blobs" if name == "blobs" else "noise"


def spread(
    records: Sequence[dict[str, Any]],
    metric: str,
    grouped: Callable[[str, str], str] = group_of,
    groups: Sequence[str] = GROUPS,
) -> dict[str, float]:
    """Return by how much the highest and lowest try differ in a metric's mean over each group of sets."""
    means: dict[str, list[float]] = {}
    for group in groups:
        for record in ended(records):
            own = {entry["name"]: entry for entry in record["evaluation"]["ood"] if entry["name"] in shared(records)}
            values = [entry[metric] for name, entry in own.items() if grouped(name, entry["kind"]) == group]
            if values:
                means.setdefault(group, []).append(statistics.fmean(values))
    return {group: max(values) - min(values) for group, values in means.items()}


if __name__ == "__main__":
    out = parser(__doc__).parse_args().out
    made = page(tries(RESULTS))
    print(made.text() if out is None else publish(out, "repeats", made))
