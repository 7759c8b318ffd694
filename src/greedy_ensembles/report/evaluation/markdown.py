"""A comparison as Markdown, for pages: figures in the domain, and a table of sets by methods for each OOD figure.

The paper's figure stands in brackets behind ours where it has the same cell.
"""

from collections.abc import Iterable, Sequence

from greedy_ensembles.benchmark.comparison import Comparison, Figure, Row
from greedy_ensembles.report.evaluation.lines import IN_DOMAIN, OOD, Column, footnotes, marks_of, paper_spelled, spelled


def to_markdown(comparison: Comparison) -> str:
    """Return all tables of a comparison and the notes on them."""
    first = comparison.first
    parts = [
        f"In the domain, {_counted(first.in_domain.name, first.in_domain.images, comparison)}:",
        _in_domain(comparison),
        f"Told from these by {first.score.replace('_', ' ')}, OOD images being positive. In brackets: the paper's "
        "figure, its means over the same sets.",
        *(f"**{column.heading}**\n\n{_ood(comparison, column)}" for column in OOD),
        "\n".join(f"- {note}" for note in _notes(comparison)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _notes(comparison: Comparison) -> list[str]:
    """Return what stands below the tables, but for the differences from the paper, which they do not show."""
    return [note for note in footnotes(comparison) if not note.startswith("differs:")]


def table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return a table in Markdown.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    """
    lines = [heading, ["---"] * len(heading), *rows]
    spelled_lines = ["|".join(["", *(_cell(cell) for cell in line), ""]) for line in lines]
    return "\n".join(line.replace("| --- ", "|---") for line in spelled_lines)


def _cell(text: str) -> str:
    return f" {text.replace('|', chr(92) + '|')} "


def _in_domain(comparison: Comparison) -> str:
    rows = [
        [row.method, f"{row.figures['accuracy'].ours.seeds}", *(both(row.figures[c.metric], c) for c in IN_DOMAIN)]
        for row in comparison.in_domain_rows
    ]
    return table(["method", "seeds", *(column.heading for column in IN_DOMAIN)], rows)


def _ood(comparison: Comparison, column: Column) -> str:
    """Return one figure of all methods, a row for each set, synthetic ones first, and then for means."""
    order = ["synthetic", "natural", "missing", "mean"]
    rows = sorted([*comparison.ood_rows, *comparison.mean_rows], key=lambda row: order.index(row.kind))  # stable
    by_set: dict[str, list[Row]] = {}
    for row in rows:
        by_set.setdefault(row.set, []).append(row)
    methods = [method.label for method in comparison.methods]
    body = []
    for of_set in by_set.values():
        row, found = of_set[0], {one.method: one.figures[column.metric] for one in of_set if one.figures}
        name = row.set if row.kind == "mean" else _counted(row.set, row.images, comparison, row.note)
        cells = [both(found[method], column) if method in found else "" for method in methods]
        body.append([name, row.kind, *cells])
    return table(["set", "kind", *methods], body)


def _counted(name: str, images: int | None, comparison: Comparison, note: str | None = None) -> str:
    note = comparison.first.in_domain.note if note is None else note
    mark = marks_of(comparison).get(note, "")
    count = "" if images is None else f", {images:,} images"
    return f"{name}{count}" + (f" ({mark})" if mark else "")


def both(figure: Figure, column: Column) -> str:
    """Return our figure, with the paper's in brackets where it has one."""
    ours = spelled(figure.ours.mean, figure.ours.standard_error, column)
    return ours if figure.paper is None else f"{ours} ({paper_spelled(figure, column)})"
