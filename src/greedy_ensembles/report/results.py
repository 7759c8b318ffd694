"""From a comparison to its tables, within the domain and on OOD sets, and to the files that they are written to."""

import dataclasses
import json
import math
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from greedy_ensembles.benchmark.comparison import BESIDE, Comparison
from greedy_ensembles.benchmark.comparison import Row as ComparedRow
from greedy_ensembles.machine import __version__
from greedy_ensembles.report import table as formats
from greedy_ensembles.report.table import PLUS_MINUS, Column, Entry, Table
from greedy_ensembles.storage import write_bytes

IN_DOMAIN = (
    Column("accuracy", "accuracy (%)", 100, 2, "higher"),
    Column("nll", "NLL x 100", 100, 2, "lower"),
    Column("brier", "Brier x 100", 100, 2, "lower"),
    Column("ace", "ACE (%)", 100, 2, "lower"),
    Column("ece", "ECE (%)", 100, 2, "lower"),
)
OOD = (
    Column("auc", "AUC", 1, 3, "higher"),
    Column("ap", "AP", 1, 3, "higher"),
    Column("fpr95", "FPR95", 1, 3, "lower"),
)
_OF_SCORE = "auc_"  # how the keys of figures begin
#: Of evaluations that know these scores, beside the one that was chosen.
BESIDE_OOD = tuple(
    Column(f"{_OF_SCORE}{score}", f"AUC by {score.replace('_', ' ')}", 1, 3, "higher") for score in BESIDE
)
_ORDER = ("synthetic", "natural", "missing", "mean")  # of sets, by kind, in Markdown
_ROW_FACTS = ("set", "kind", "images", "paper_images", "note", "method")  # of rows, in JSON
_BRACKETS = "in brackets: the paper's figures, its means over the same sets"
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


def tables(comparison: Comparison) -> tuple[Table, Table]:
    """Return the figures within the domain, a row for each method, and those on OOD sets, for each set and method."""
    first, made_of = comparison.first, networks(comparison)
    unit = first.in_domain.unit
    counted = f"{marked(first.in_domain.name, first.in_domain.note, comparison)}, {first.in_domain.images:,} {unit}"
    inside = f"{counted}, in-domain" + (f" ({made_of})" if made_of else "")
    outside = (
        f"OOD sets (positive) against {first.in_domain.images:,} {unit} of {first.in_domain.name}, "
        f"by {first.score.replace('_', ' ')}"
    )
    return (
        _table(inside, comparison.in_domain_rows, IN_DOMAIN, comparison, by_set=False),
        _table(outside, [*comparison.ood_rows, *comparison.mean_rows], OOD, comparison, by_set=True),
    )


def _table(
    title: str, rows: Sequence[ComparedRow], figures: Sequence[Column], comparison: Comparison, by_set: bool
) -> Table:
    columns = [
        Column("set", shown=by_set),
        Column("kind", shown=False),
        Column("in_domain_images", shown=False),
        Column("images", comparison.first.in_domain.unit, shown=by_set),
        Column("method"),
        Column("seeds"),
        *figures,
        *(column for column in _beside(comparison) if by_set),
        *(Column(key, shown=False) for key in ("paper_images", "note", "score", "networks", "notes")),
    ]
    return Table(title, columns, [row_entries(row, comparison) for row in rows], notes(comparison), "method")


def _beside(comparison: Comparison) -> list[Column]:
    """Return the columns of scores that were not chosen, where there are figures for them."""
    known = {key for row in comparison.ood_rows for key in row.figures}
    return [one for one in BESIDE_OOD if one.key in known and one.key != f"{_OF_SCORE}{comparison.first.score}"]


def row_entries(row: ComparedRow, comparison: Comparison) -> dict[str, Entry]:
    """Return all that is known of a row, by the keys of columns."""
    ours = [figure.ours for figure in row.figures.values()]
    scores = {} if row.kind == "in-domain" else {each.label: each.evaluations[0].score for each in comparison.methods}
    score = scores.get(row.method, "")
    missing = "missing" if row.kind == "missing" else None
    return {
        "set": Entry(row.set, text=marked(row.set, row.note, comparison)),
        "kind": Entry(row.kind),
        "in_domain_images": Entry(comparison.first.in_domain.images),
        "images": Entry(row.images, row.paper_images, missing),
        "method": Entry(row.method),
        "seeds": Entry(ours[0].seeds if ours else None),
        **{metric: Entry(figure.ours, figure.paper) for metric, figure in row.figures.items()},
        "paper_images": Entry(row.paper_images),
        "note": Entry(row.note),
        "score": Entry(score, text=score.replace("_", " ")),  # in words, so that a narrow table breaks it between them
        "networks": Entry(networks(comparison)),
        "notes": Entry("; ".join(comparison.notes)),
    }


def marked(name: str, note: str, comparison: Comparison) -> str:
    """Return the name of a set with the letter of its note, if it has one."""
    mark = _marks(comparison).get(note)
    return f"{name} ({mark})" if mark else name


def _marks(comparison: Comparison) -> dict[str, str]:
    """Return a letter for every note on a set; sets with the same note share it."""
    found = dict.fromkeys(each.note for each in comparison.first.sets if each.note)
    return {note: string.ascii_lowercase[number] if number < 26 else f"{number}" for number, note in enumerate(found)}


def notes(comparison: Comparison) -> list[str]:
    """Return what stands below the tables: notes on sets, on what is missing, and on how runs were trained."""
    beside = comparison.beside_published
    explained = [_BRACKETS] if beside else []
    explained += [f"({mark}) {note}" for note, mark in _marks(comparison).items()]
    if absent := [name for name in comparison.first.missing if name not in comparison.left_out]:
        explained.append(
            f"missing: {', '.join(absent)} (not in the data folder; means are over the sets that are there)"
        )
    if comparison.left_out:
        names = ", ".join(comparison.left_out)
        explained.append(f"missing: {names} (not all runs here were judged on the same images; means are without them)")
    shown = {method.papers_size for method in comparison.methods if method.label in beside} - {None}
    if sizes := sorted(map(str, shown), key=int):
        explained.append(f"the paper's figures are of M = {', '.join(sizes)}; it has none of our M here")
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


def spelled(seconds: float) -> str:
    """Return a duration as one reads it.

    >>> [spelled(value) for value in (4.2, 90, 6000, 100_000, 1_000_000)]
    ['4 s', '1.5 min', '1.7 h', '28 h', '12 days']
    """
    known = ((60, 1, "s"), (3600, 60, "min"), (48 * 3600, 3600, "h"))
    unit, name = next(((unit, name) for limit, unit, name in known if seconds < limit), (86400, "days"))
    value = seconds / unit
    return f"{value:.1f} {name}" if unit > 1 and value < 10 else f"{value:,.0f} {name}"


def show(comparison: Comparison, console: Console) -> None:
    """Print both tables of a comparison, and the notes below them."""
    for table in tables(comparison):
        formats.show(table, console)
    for note in notes(comparison):
        console.print(note, highlight=False, markup=False)


def to_latex(comparison: Comparison) -> str:
    r"""Return both tables, to be taken into a paper with ``\input``; they need the package booktabs."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(map(latex_table, tables(comparison)))


def latex_table(table: Table) -> str:
    """Return a table whose caption is its title and notes."""
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


def latex_text(text: str) -> str:
    r"""Return text that LaTeX prints as it is.

    >>> latex_text("50 % of tiny_imagenet & more")
    '50 \\% of tiny\\_imagenet \\& more'
    """
    return "".join(_LATEX.get(character, character) for character in text)


def to_markdown(comparison: Comparison) -> str:
    """Return figures within the domain, and a table of sets by methods for each OOD figure, with the notes on them."""
    first, (inside, _) = comparison.first, tables(comparison)
    counted = f"{first.in_domain.name}, {first.in_domain.images:,} images"
    parts = [
        f"In-domain test set: {marked(counted, first.in_domain.note, comparison)}.",
        inside.to_markdown(),
        f"OOD detection by {first.score.replace('_', ' ')}; OOD images are positive. {_BRACKETS.capitalize()}.",
        *(f"**{one.heading}**\n\n{_by_set(comparison, one)}" for one in (*OOD, *_beside(comparison))),
        _by_score(comparison),
        "\n".join(f"- {note}" for note in inside.notes if note != _BRACKETS),  # which stand above
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _by_set(comparison: Comparison, column: Column) -> str:
    cells = []
    for row in sorted([*comparison.ood_rows, *comparison.mean_rows], key=lambda row: _ORDER.index(row.kind)):  # stable
        counted = row.set if row.images is None else f"{row.set}, {row.images:,} images"
        figure = row.figures.get(column.key)
        text = "" if figure is None else Entry(figure.ours, figure.paper).both(column)
        cells.append(((marked(counted, row.note, comparison), row.kind), row.method, text))
    return _by_method(comparison, ["set", "kind"], cells)


def _by_score(comparison: Comparison) -> str:
    """Return the mean AUC of every score in Markdown; nothing where tables above have all that are known."""
    cells = [
        ((row.set, key.removeprefix(_OF_SCORE).replace("_", " ")), row.method, Entry(figure.ours).shown(OOD[0]))
        for row in comparison.mean_rows
        for key, figure in row.figures.items()
        if key.startswith(_OF_SCORE)
    ]
    if len({score for (_, score), _, _ in cells}) <= len(BESIDE):
        return ""
    return f"**AUC by every score, means**\n\n{_by_method(comparison, ['', 'score'], cells)}"


def _by_method(
    comparison: Comparison, headings: Sequence[str], cells: Iterable[tuple[tuple[str, str], str, str]]
) -> str:
    """Return texts, each given with its place and its method, in Markdown: a row a place, a column a method."""
    labels = [method.label for method in comparison.methods]
    places: dict[tuple[str, str], dict[str, str]] = {}
    for place, method, text in cells:
        places.setdefault(place, {})[method] = text
    rows = ([*place, *(own.get(label, "") for label in labels)] for place, own in places.items())
    return formats.markdown_table([*headings, *labels], rows)


def to_json(comparison: Comparison) -> str:
    """Return everything but the scores of single images; what is infinite is written as a string."""
    inside, outside = (formats.to_records(table, _ROW_FACTS) for table in tables(comparison))
    content = {
        "greedy_ensembles": __version__,
        "score": comparison.first.score,
        "in_domain": inside,
        "ood": [record for record in outside if record["kind"] != "mean"],
        "means": [record for record in outside if record["kind"] == "mean"],
        "missing": comparison.first.missing,
        "left_out": comparison.left_out,
        "notes": comparison.notes,
        "methods": [
            dataclasses.asdict(dataclasses.replace(method, evaluations=()))
            | {"evaluations": [evaluation.without_scores() for evaluation in method.evaluations]}
            for method in comparison.methods
        ],
    }
    return to_json_text(content)


def to_json_text(content: Any) -> str:
    """Return JSON that every program can read, with a line for each item: what is not finite is written as a string.

    >>> to_json_text({"nll": math.inf})
    '{\\n  "nll": "inf"\\n}\\n'
    """

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [finite(item) for item in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(content), indent=2, allow_nan=False) + "\n"


def write_tables(comparison: Comparison, folder: Path, stem: str = "evaluation") -> list[Path]:
    """Write evaluation.csv, .json and .tex, or with another stem, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"csv": formats.to_csv(tables(comparison)), "json": to_json(comparison), "tex": to_latex(comparison)}
    paths = []
    for ending, text in contents.items():
        paths.append(folder / f"{stem}.{ending}")
        write_bytes(paths[-1], [text.encode()])
    return paths
