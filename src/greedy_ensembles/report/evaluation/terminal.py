"""A comparison on the terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.report.evaluation.lines import IN_DOMAIN, OOD, Column, Line, footnotes, lines, marks_of, titles


def show(comparison: Comparison, console: Console) -> None:
    """Print both tables of a comparison and the notes below them."""
    marks = marks_of(comparison)
    in_domain = lines(comparison.in_domain_rows, IN_DOMAIN, marks)
    ood = lines([*comparison.ood_rows, *comparison.mean_rows], OOD, marks)
    contents = (in_domain, IN_DOMAIN), (ood, OOD)
    for title, (content, columns) in zip(titles(comparison), contents, strict=True):
        console.print(title, style="italic", markup=False, highlight=False)  # a table's own would be as narrow as it
        console.print(_table(content, columns), "")
    for note in footnotes(comparison):
        console.print(note, highlight=False, markup=False)


def _table(content: Sequence[Line], columns: Sequence[Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), show_edge=False)
    table.add_column("", overflow="fold")
    table.add_column("images", justify="right", no_wrap=True)
    for number, column in enumerate(columns):
        # Names may be broken into lines; a figure of which the end is missing would be worse than none.
        widest = max((len(line.cells[number]) for line in content), default=0)
        table.add_column(column.heading, justify="right", min_width=widest)
    for line in content:
        style = {0: "bold", 1: "", 2: "dim"}[line.level]
        name = Padding(Text(line.name), (0, 0, 0, line.level))  # so that all lines of a long one are indented
        table.add_row(name, line.count, *line.cells, style=style)
    return table
