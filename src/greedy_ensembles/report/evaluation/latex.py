r"""A comparison as LaTeX: two tables with booktabs, to be taken into a paper with ``\input``."""

from collections.abc import Sequence

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.report.evaluation.lines import (
    IN_DOMAIN,
    OOD,
    PLUS_MINUS,
    Column,
    Line,
    footnotes,
    lines,
    marks_of,
    titles,
)

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    PLUS_MINUS: r"$\pm$",
    **{character: f"\\{character}" for character in "&%$#_"},
}


def to_latex(comparison: Comparison) -> str:
    """Return both tables; they need the package booktabs."""
    marks = marks_of(comparison)
    ood = lines([*comparison.ood_rows, *comparison.mean_rows], OOD, marks)
    first, second = titles(comparison)
    notes = footnotes(comparison)
    tables = [
        _table(first, lines(comparison.in_domain_rows, IN_DOMAIN, marks), IN_DOMAIN, notes),
        _table(second, ood, OOD, notes),
    ]
    return "% needs \\usepackage{booktabs}\n" + "\n".join(tables)


def escaped(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> escaped("50 % of tiny_imagenet & more")
    '50 \\% of tiny\\_imagenet \\& more'
    """
    return "".join(_SPECIAL.get(character, character) for character in text)


def _table(title: str, content: Sequence[Line], columns: Sequence[Column], notes: Sequence[str]) -> str:
    heading = " & ".join(["", "images", *(escaped(column.heading) for column in columns)])
    body = []
    for number, line in enumerate(content):
        if line.level == 0 and number:
            body.append(r"\addlinespace")
        name = r"\quad " * line.level + escaped(line.name)
        body.append(" & ".join([name, escaped(line.count), *map(escaped, line.cells)]) + r" \\")
    rows = "\n".join(body)
    return (
        "\\begin{table}\n\\centering\n"
        f"\\caption{{{escaped('. '.join([title, *notes]))}.}}\n"
        f"\\begin{{tabular}}{{l{'r' * (1 + len(columns))}}}\n"
        f"\\toprule\n{heading} \\\\\n\\midrule\n{rows}\n\\bottomrule\n"
        "\\end{tabular}\n\\end{table}\n"
    )
