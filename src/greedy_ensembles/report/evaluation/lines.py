"""A comparison as lines of text, which the terminal and LaTeX show alike.

A set has a line of its own, with its count of images and the mark of its note; below it each method has one, with its
count of seeds, and below that, where the paper has the same cell, come its figure and the difference.
"""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from greedy_ensembles.benchmark.comparison import Comparison, Figure, Row

PLUS_MINUS = "±"


@dataclass(frozen=True)
class Column:
    """How a figure is shown: its heading, what it is multiplied by, and with how many decimals."""

    metric: str
    heading: str
    factor: float
    digits: int


IN_DOMAIN = (
    Column("accuracy", "accuracy (%)", 100, 2),
    Column("nll", "NLL x 100", 100, 2),
    Column("brier", "Brier x 100", 100, 2),
    Column("ace", "ACE (%)", 100, 2),
    Column("ece", "ECE (%)", 100, 2),
)
OOD = (Column("auc", "AUC", 1, 3), Column("ap", "AP", 1, 3), Column("fpr95", "FPR95", 1, 3))
_PAPER_DIGITS = 2  # what the paper prints, and all that a difference from it can mean


@dataclass(frozen=True)
class Line:
    """One line: how far its name is indented, a count of images or seeds, and figures."""

    level: int  #: 0: a set, 1: a method, 2: the paper
    name: str
    count: str
    cells: tuple[str, ...]


def lines(rows: Iterable[Row], columns: Sequence[Column], marks: dict[str, str]) -> list[Line]:
    """Return rows of a comparison as lines, with marks behind the names of sets that have a note."""
    result: list[Line] = []
    last = None
    for row in rows:
        if row.set != last:
            mark = marks.get(row.note, "")
            count = "missing" if row.kind == "missing" else "" if row.images is None else f"{row.images:,}"
            result.append(Line(0, f"{row.set} ({mark})" if mark else row.set, count, ("",) * len(columns)))
            last = row.set
        if row.figures:
            result += _of_method(row, columns)
    return result


def _of_method(row: Row, columns: Sequence[Column]) -> list[Line]:
    figures = [(row.figures[column.metric], column) for column in columns]
    seeds = figures[0][0].ours.seeds
    result = [Line(1, row.method, plural(seeds, "seed"), tuple(_ours(*pair) for pair in figures))]
    if any(figure.paper for figure, _ in figures):
        count = "" if row.paper_images is None else f"{row.paper_images:,}"
        result.append(Line(2, "paper", count, tuple(_papers(*pair) for pair in figures)))
        result.append(Line(2, "differs", "", tuple(_difference(*pair) for pair in figures)))
    return result


def _ours(figure: Figure, column: Column) -> str:
    return spelled(figure.ours.mean, figure.ours.standard_error, column)


def _papers(figure: Figure, column: Column) -> str:
    if figure.paper is None:
        return ""
    return spelled(*figure.paper, column, _PAPER_DIGITS)


def _difference(figure: Figure, column: Column) -> str:
    return "" if figure.difference is None else f"{column.factor * figure.difference:+.{_PAPER_DIGITS}f}"


def paper_spelled(figure: Figure, column: Column) -> str:
    """Return the paper's figure with as many decimals as it prints, nothing where it has none."""
    return _papers(figure, column)


def spelled(mean: float, error: float | None, column: Column, digits: int | None = None) -> str:
    """Return a figure and its standard error as a column shows them.

    >>> spelled(0.94321, 0.001, IN_DOMAIN[0]), spelled(0.94321, None, OOD[0])
    ('94.32±0.10', '0.943')
    """
    decimals = column.digits if digits is None else digits
    around = "" if error is None else f"{PLUS_MINUS}{column.factor * error:.{decimals}f}"
    return f"{column.factor * mean:.{decimals}f}{around}"


def marks_of(comparison: Comparison) -> dict[str, str]:
    """Return a letter for every note on a set; sets with the same note share it."""
    notes = dict.fromkeys(each.note for each in comparison.first.sets if each.note)
    return {note: string.ascii_lowercase[number] if number < 26 else f"{number}" for number, note in enumerate(notes)}


def footnotes(comparison: Comparison, differences: bool = True) -> list[str]:
    """Return what stands below tables, with or without lines of differences: notes on sets, and what else to know."""
    explained = [f"({mark}) {note}" for note, mark in marks_of(comparison).items()]
    if absent := [name for name in comparison.first.missing if name not in comparison.left_out]:
        explained.append(
            f"missing: {', '.join(absent)} (not in the data folder; means are over the sets that are there)"
        )
    if comparison.left_out:
        names = ", ".join(comparison.left_out)
        explained.append(f"missing: {names} (not all runs here were judged on the same images; means are without them)")
    beside = {row.method for row in comparison.rows for figure in row.figures.values() if figure.paper}
    if differences and beside:
        explained.append("differs: ours less the paper's, whose means are over the same sets")
    shown = (method.papers_size for method in comparison.methods if method.label in beside)
    if sizes := sorted({size for size in shown if size is not None}):
        explained.append(f"the paper's figures are of M = {', '.join(map(str, sizes))}; it has none of our M here")
    if any(len(method.evaluations) > 1 for method in comparison.methods):
        explained.append(f"{PLUS_MINUS}: standard error of the mean over seeds")
    return [*explained, *comparison.notes]


def networks(comparison: Comparison) -> str:
    """Return what all methods have in common of architecture and size; what they have not is in their labels."""
    architectures = {method.architecture for method in comparison.methods}
    sizes = {evaluation.members for method in comparison.methods for evaluation in method.evaluations}
    common = list(architectures) if len(architectures) == 1 else []
    if len(sizes) == 1:
        common.append(plural(sizes.pop(), "member"))
    return ", ".join(part for part in common if part)


def plural(count: int, noun: str) -> str:
    """Return a count and what is counted.

    >>> plural(1, "seed"), plural(2, "seed")
    ('1 seed', '2 seeds')
    """
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def titles(comparison: Comparison) -> tuple[str, str]:
    """Return the headings of the two tables."""
    first = comparison.first
    score = first.score.replace("_", " ")
    made_of = networks(comparison)
    return (
        f"{first.in_domain.name}, in-domain" + (f" ({made_of})" if made_of else ""),
        f"OOD sets (positive) against {first.in_domain.images:,} images of {first.in_domain.name}, by {score}",
    )
