"""One table in every format: Markdown, HTML and the terminal for people; CSV and JSON for programs. LaTeX: `results`.

A table has columns of facts (a set, a count of images, a method) and of figures (means over seeds, with the published
figure where there is one). Formats for people round; those for programs do not, and have shares from 0 to 1.
"""

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from markupsafe import Markup, escape
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from greedy_ensembles.benchmark.evaluation import Cell, Estimate

PLUS_MINUS = "±"
_NAME, _GAP = 12, 2  # letters of a line of a name that is broken into several; and between columns
_WIDTH = 120  # letters of a line where no window says
_PUBLISHED_DIGITS = 2  # what the paper prints, and all that a difference from it can mean
_ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}


@dataclasses.dataclass(frozen=True)
class Column:
    """What a column holds, and how it is shown: of facts where `digits` is None, else of figures."""

    key: str  #: its name for programs
    heading: str = ""  #: its name for people; empty: the key
    factor: float = 1.0  #: what a figure is multiplied by before it is shown
    digits: int | None = None  #: decimals of a figure
    better: Literal["higher", "lower", ""] = ""
    shown: bool = True  #: to people; programs get all columns

    @property
    def title(self) -> str:
        """The heading, with an arrow that says which way is better."""
        return (self.heading or self.key) + _ARROWS[self.better]

    def spelled(self, mean: float, error: float | None, digits: int | None = None) -> str:
        """Return a figure and its standard error as the column shows them.

        >>> Column("accuracy", factor=100, digits=2).spelled(0.94321, 0.001), Column("auc", digits=3).spelled(1, None)
        ('94.32±0.10', '1.000')
        """
        decimals = self.digits if digits is None else digits
        around = "" if error is None else f"{PLUS_MINUS}{self.factor * error:.{decimals}f}"
        return f"{self.factor * mean:.{decimals}f}{around}"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One cell: a figure, a number or a text, and what was published in its place."""

    value: Estimate | float | str | None = None
    published: Cell | int | None = None
    text: str | None = None  #: how it is shown, where value and column do not say

    def shown(self, column: Column) -> str:
        """Return our value as people see it."""
        if self.text is not None:
            return self.text
        if isinstance(self.value, Estimate):
            return column.spelled(self.value.mean, self.value.standard_error)
        if isinstance(self.value, float):
            return f"{self.value:g}"
        return f"{self.value:,}" if isinstance(self.value, int) else self.value or ""

    def both(self, column: Column) -> str:
        """Return our value, with the published one in brackets where there is one, in as many decimals as it has."""
        if isinstance(self.published, Cell):
            return f"{self.shown(column)} ({column.spelled(*self.published, _PUBLISHED_DIGITS)})"
        other = self.value is not None and self.published not in (None, self.value)  # a count of images
        return self.shown(column) + (f" ({self.published:,})" if other else "")

    @property
    def sort_key(self) -> str:
        """What rows are sorted by, as a script reads it; what is missing is empty.

        >>> Entry(Estimate(float("inf"), None, 1)).sort_key, Entry("info").sort_key, Entry().sort_key
        ('Infinity', 'info', '')
        """
        value = self.value.mean if isinstance(self.value, Estimate) else self.value
        if isinstance(value, int | float):
            return str(value).replace("inf", "Infinity")
        return value or ""


Row = Mapping[str, Entry]  #: by the key of a column; a column that is not there is empty
EMPTY = Entry()


@dataclasses.dataclass(frozen=True)
class Table:
    """Columns and rows; rows of one group, which is all before the column `label`, stand together."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    label: str = ""  #: the column that names a row within its group

    @property
    def shown(self) -> list[Column]:
        """The columns that people see."""
        return [column for column in self.columns if column.shown]

    def is_numeric(self, column: Column) -> bool:
        """Say whether a column is of numbers; a cell of it may be empty all the same."""
        entries = (row.get(column.key, EMPTY).value for row in self.rows)
        return column.digits is not None or any(isinstance(value, int | float) for value in entries)

    def best(self, column: Column) -> set[int]:
        """Return the numbers of the rows with the best figure of their group; as printed, so equals are all of them.

        A group in which all are equal has no best.
        """
        groups: dict[tuple[str, ...], dict[int, float]] = {}
        for number, (group, row) in enumerate(zip(self._groups(), self.rows, strict=True)):
            value = row.get(column.key, EMPTY).value
            if isinstance(value, Estimate) and column.better and self.label:
                groups.setdefault(group, {})[number] = value.mean
        found: set[int] = set()
        for means in groups.values():
            text = column.spelled((max if column.better == "higher" else min)(means.values()), None)
            winners = {number for number, mean in means.items() if column.spelled(mean, None) == text}
            found |= winners if len(winners) < len(means) else set()
        return found

    def _groups(self) -> list[tuple[str, ...]]:
        """Return what the group of each row is called: all that stands before the column `label`."""
        before = self.shown[: [column.key for column in self.shown].index(self.label) if self.label else 0]
        return [tuple(row.get(column.key, EMPTY).shown(column) for column in before) for row in self.rows]

    def cells(self) -> list[list[str]]:
        """Return the cells of all rows as people read them, published figures in brackets."""
        return [[row.get(column.key, EMPTY).both(column) for column in self.shown] for row in self.rows]

    def printed(self) -> Iterator[tuple[bool, list[str]]]:
        """Yield whether a row is the first of its group, and its cells; a group is named once."""
        last = None
        for group, cells in zip(self._groups(), self.cells(), strict=True):
            yield group != last, cells if group != last else [*("" for _ in group), *cells[len(group) :]]
            last = group

    def to_markdown(self) -> str:
        """Return the table in Markdown, published figures in brackets, without its title and notes."""
        return markdown_table([column.heading or column.key for column in self.shown], self.cells())

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of all that rows have: facts, unrounded means and, of several seeds, errors."""
        records: list[dict[str, Any]] = []
        known = [column.key for column in self.columns]
        more = dict.fromkeys(key for row in self.rows for key in row if key not in known)
        for row in self.rows:
            records.append({})
            for key in (*known, *more):
                value = row.get(key, EMPTY).value
                records[-1][key] = value.mean if isinstance(value, Estimate) else value
                if isinstance(value, Estimate):
                    records[-1][f"{key}_standard_error"] = value.standard_error
        columns = [name for key in (*known, *more) for name in (key, f"{key}_standard_error")]
        return import_module("pandas").DataFrame(records, columns=columns).dropna(axis="columns", how="all")

    def __repr__(self) -> str:
        """Return the table as a terminal shows it, with its title and notes."""
        text = io.StringIO()
        show(self, Console(file=text, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False))
        return "\n".join([*map(str.rstrip, text.getvalue().strip().splitlines()), "", *self.notes]).rstrip()

    def _repr_html_(self) -> str:
        notes = Markup("").join(Markup("<li>{}</li>").format(note) for note in self.notes)
        return to_html(self) + (Markup("<ul>{}</ul>").format(notes) if notes else "")


_TAG = re.compile(r"<(?=[A-Za-z/!?])")  # where Markdown would see HTML, or an address; "a < b" and "<= 3" are none


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Return texts as a table in Markdown, in which none is HTML.

    >>> print(markdown_table(["a", "b < c"], [["1", "x|y<br>"]]))
    | a | b < c |
    |---|---|
    | 1 | x\|y&lt;br> |
    """

    def line(cells: Sequence[str]) -> str:
        texts = (_TAG.sub("&lt;", " ".join(cell.splitlines())).replace("|", r"\|") for cell in cells)
        return "| " + " | ".join(texts) + " |"

    return "\n".join([line(headings), "|" + "---|" * len(headings), *map(line, rows)])


def show(table: Table, console: Console, marked: int | None = None) -> None:
    """Print a table with its title, without its notes; in blocks of columns below each other where it is too wide."""
    console.print(table.title, style="italic", markup=False, highlight=False)  # a table's own would be as narrow as it
    rows, columns = [cells for _, cells in table.printed()], table.shown
    # Names may be broken into lines; a figure of which the end is missing would be worse than none.
    widest, least = [], []
    for n, column in enumerate(columns):
        widest.append(max((len(cells[n]) for cells in rows), default=0))
        kept = widest[n] if table.is_numeric(column) else min(widest[n], _NAME)
        least.append(max(kept, *map(len, column.title.split())))
    for block in _blocks(table, least, console.width):
        printed = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        spare = console.width - sum(least[n] + _GAP for n in block)
        for n in block:
            side: Literal["right", "left"] = "right" if table.is_numeric(columns[n]) else "left"
            more = max(min(max(widest[n], len(columns[n].title)) - least[n], spare), 0)
            spare -= more
            printed.add_column(columns[n].title, justify=side, width=least[n] + more, overflow="fold")
        for number, cells in enumerate(rows):
            printed.add_row(*(Text(cells[n]) for n in block), style="bold" if number == marked else "")
        console.print(printed, "")


def _blocks(table: Table, least: Sequence[int], width: int) -> list[list[int]]:
    """Return which columns are printed side by side: all, or names with as many figures as fit, and so on."""
    columns = table.shown
    facts = [n for n, column in enumerate(columns) if column.digits is None]
    names = [n for n in facts if not table.is_numeric(columns[n])]
    blocks = [facts]
    for number in (n for n, column in enumerate(columns) if column.digits is not None):
        wanted = [*blocks[-1], number]
        if sum(least[n] + _GAP for n in wanted) > width and any(columns[n].digits is not None for n in blocks[-1]):
            wanted = [*names, number]
            blocks.append(wanted)
        blocks[-1] = sorted(wanted)
    return blocks


def to_html(table: Table) -> Markup:
    """Return a table that a script can sort, the best of a group in bold, published figures in brackets."""
    headings: list[Markup] = []
    rows: list[list[Markup]] = [[] for _ in table.rows]
    for column in table.shown:
        kind = Markup(' class="number"') if table.is_numeric(column) else ""
        hint = Markup(' title="{} is better"').format(column.better) if column.better else ""
        headings.append(Markup('<th scope="col"{}{}>{}</th>').format(kind, hint, column.heading or column.key))
        best = table.best(column)
        for number, (cells, row) in enumerate(zip(rows, table.rows, strict=True)):
            entry = row.get(column.key, EMPTY)
            text = entry.both(column)
            shown = Markup("<strong>{}</strong>").format(text) if number in best else text
            cells.append(Markup('<td{} data-value="{}">{}</td>').format(kind, entry.sort_key, shown))
    body = Markup("\n").join(Markup("<tr>{}</tr>").format(Markup("").join(row)) for row in rows)
    return Markup(
        '<div class="scroll" tabindex="0" role="region" aria-label="{title}">\n<table class="sortable">\n'
        "<caption><span>{title}</span></caption>\n<thead><tr>{headings}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    ).format(title=escape(table.title), headings=Markup("").join(headings), body=body)


def _flat(entry: Entry) -> dict[str, Any]:
    """Return a figure with names for all of its parts; the difference is ours less the published figure."""
    ours = dataclasses.asdict(entry.value) if isinstance(entry.value, Estimate) else {}
    mean, error = entry.published if isinstance(entry.published, Cell) else (None, None)
    difference = ours["mean"] - mean if ours and mean is not None else None
    return {**ours, "paper": mean, "paper_standard_error": error, "difference": difference}


def csv_cell(value: Any) -> Any:
    """Return a fact as a spreadsheet may have it: a text that it would take for a formula gets a quote before it.

    A sign, or a number with one, is no formula: classes are called so.

    >>> csv_cell("=1+1"), csv_cell("plain"), csv_cell(-1.5), csv_cell("-1"), csv_cell("+")
    ("'=1+1", 'plain', -1.5, '-1', '+')
    """
    formula = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if formula and not re.fullmatch(r"[+-](\d+(\.\d+)?)?", value, re.ASCII) else value


def to_csv(tables: Sequence[Table]) -> str:
    """Return one line for each figure of each row; a row without figures has a line without them.

    Names of figures and their parts stand where the columns of figures stood.
    """
    parts = ["metric", "mean", "standard_error", "paper", "paper_standard_error", "difference"]
    facts = [column.key if column.digits is None else "" for column in tables[0].columns]
    first = facts.index("")
    fields = [*facts[:first], *parts, *filter(None, facts[first:])]
    output = io.StringIO()
    writer = csv.DictWriter(output, fields, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            known = {key: csv_cell(row[key].value) for key in facts if key in row}
            figures = [column.key for column in table.columns if column.digits is not None and column.key in row]
            if not figures:
                writer.writerow(known)
            for metric in figures:
                writer.writerow({**known, "metric": metric, **_flat(row[metric])})
    return output.getvalue()


def to_records(table: Table, facts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows for JSON: some facts by their keys, and all figures."""
    figures = [column.key for column in table.columns if column.digits is not None]
    return [
        {
            **{key: row.get(key, EMPTY).value for key in facts},
            "figures": {key: _flat(row[key]) for key in figures if key in row},
        }
        for row in table.rows
    ]
