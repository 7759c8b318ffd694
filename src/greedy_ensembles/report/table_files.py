"""A table as a file: CSV and JSON, which do not round, and LaTeX."""

import csv
import dataclasses
import io
from collections.abc import Sequence
from typing import Any

from greedy_ensembles.benchmark.comparison import Cell
from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.report.table import EMPTY, PLUS_MINUS, PUBLISHED, Entry, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    PLUS_MINUS: r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{character: f"\\{character}" for character in "&%$#_"},
}


def _flat(entry: Entry) -> dict[str, Any]:
    """Return a figure with names for all of its parts."""
    mean, error = entry.published if isinstance(entry.published, Cell) else (None, None)
    ours = dataclasses.asdict(entry.value) if isinstance(entry.value, Estimate) else {}
    return {**ours, PUBLISHED: mean, f"{PUBLISHED}_standard_error": error, "difference": entry.difference}


def csv_cell(value: Any) -> Any:
    """Return a fact as a spreadsheet may have it: a text that it would take for a formula gets a quote before it.

    >>> csv_cell("=1+1"), csv_cell("plain"), csv_cell(-1.5)
    ("'=1+1", 'plain', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def to_csv(tables: Sequence[Table]) -> str:
    """Return one line for each figure of each row; a row without figures has a line without them.

    Names of figures and their parts stand where the columns of figures stood.
    """
    parts = ["metric", "mean", "standard_error", PUBLISHED, f"{PUBLISHED}_standard_error", "difference"]
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


def latex_text(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> latex_text("50 % of tiny_imagenet & more")
    '50 \\% of tiny\\_imagenet \\& more'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def to_latex(table: Table) -> str:
    """Return a table that needs the package booktabs; its title and notes are the caption."""
    body = []
    for number, (opens, cells) in enumerate(table.printed()):
        if opens and number:
            body.append(r"\addlinespace")
        body.append(" & ".join(map(latex_text, cells)) + r" \\")
    layout = "".join("r" if table.is_numeric(column) else "l" for column in table.shown)
    heading = " & ".join(latex_text(column.title) for column in table.shown)
    rows = "\n".join(body)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{latex_text('. '.join([table.title, *table.notes]))}.}}\n"
        f"\\begin{{tabular}}{{{layout}}}\n"
        f"\\toprule\n{heading} \\\\\n\\midrule\n{rows}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )
