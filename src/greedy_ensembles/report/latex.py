"""A table for a paper: LaTeX, with the package booktabs."""

from greedy_ensembles.report.table import PLUS_MINUS, Table

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    PLUS_MINUS: r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    **{character: f"\\{character}" for character in "{}&%$#_"},
}


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
