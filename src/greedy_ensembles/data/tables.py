"""Tables of numbers with a column of classes, from CSV files: what an `ImageSet` is for pictures."""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greedy_ensembles.checks import as_all, as_path, check_choice, check_kind, naming
from greedy_ensembles.data.image_set import LabelledSet, Labels, as_numbers

Rows = npt.NDArray[np.float64]
Numbered = tuple[int, list[str]]
_DELIMITERS = ",;\t|"


@dataclasses.dataclass(frozen=True, eq=False)
class TableSet(LabelledSet):
    """Rows of numbers with what must be known of them; `print` says it in a line.

    >>> print(TableSet(np.zeros((2, 3)), np.array([0, 1]), "tiny", ("no", "yes"), columns=("a", "b", "c")))
    tiny: 2 rows of 3, 2 classes (no 1, yes 1)
    """

    unit = "rows"

    rows: Rows  #: (n, columns)
    labels: Labels | None
    name: str
    classes: tuple[str, ...] | None = None
    source: str = ""
    note: str = ""
    columns: tuple[str, ...] = ()  #: their names
    target: str = ""  #: the name of the column that labels came from

    def __post_init__(self) -> None:
        if not isinstance(self.rows, np.ndarray) or self.rows.dtype != np.float64 or self.rows.ndim != 2:
            raise TypeError(f"rows of {self.name} must be a float64 array of shape (n, columns)")
        named = as_all(f"columns of {self.name}", self.columns, str, "names")
        if self.rows.shape[1] != len(named):
            raise ValueError(f"{self.name} has rows of {self.rows.shape[1]} numbers and {len(named)} columns")
        self._check_rest()


def read_table(
    path: str | Path,
    target: str = "",
    *,
    leave_out: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
) -> TableSet:
    """Return the rows of a CSV file: a line of headings, then numbers, and the class of each row in one column.

    Args:
        path: the file; commas, semicolons, tabs or bars part its columns.
        target: the column of classes, in any words; "": there is none, and rows have no labels.
        leave_out: columns that are not to be used, such as names and numbers of rows.
        columns: those to be used, in this order; None: all but the target and what is left out.
        classes: the classes, in the order of labels; None: those that are found.
    """
    path = as_path("path", path)
    check_kind("target", target, str, "the name of a column")
    for argument, given in (("leave_out", leave_out), ("columns", columns or ()), ("classes", classes or ())):
        as_all(argument, given, str, "names")
    if len(set(columns or ())) < len(columns or ()) or target in (columns or ()):
        raise ValueError(f"columns must differ from each other and from the target {target!r}; got {columns}")
    headings, lines = _lines(path)
    for argument, name in [("target", target)] * bool(target) + [("leave_out", name) for name in leave_out]:
        check_choice(f"{argument}, a column of {path},", name, headings)
    if lacking := [name for name in columns or () if name not in headings]:
        listed = ", ".join(map(repr, headings))
        raise ValueError(f"{path} has no column {lacking[0]!r}, which is needed; its columns are {listed}")
    used = list(columns) if columns is not None else [n for n in headings if n != target and n not in leave_out]
    if columns is None and "" in used:
        raise ValueError(
            f"column {headings.index('') + 1} of {path} has no heading, as the numbers of rows that pandas writes, "
            "from which a class may be read off; give it a name, or leave out the column ''"
        )
    if not used:
        raise ValueError(f"{path} has no columns beside {target}; there is nothing to learn from")
    at = [headings.index(name) for name in used]
    rows = np.array([[_number(line[i], path, row, headings[i]) for i in at] for row, line in lines])
    labels, found = (None, None) if not target else _classes(path, target, lines, headings.index(target), classes)
    return TableSet(rows, labels, path.stem, found, str(path), columns=tuple(used), target=target)


def _lines(path: Path) -> tuple[list[str], list[Numbered]]:
    """Return the headings and the lines below them, each with the number that its row has in the file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is no text in UTF-8; save the table as CSV (UTF-8)") from None
    first = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=first.count)
    with naming(path, "is no readable table"):
        rows = enumerate(csv.reader(io.StringIO(text), delimiter=delimiter), 1)
        (_, headings), *lines = [(row, line) for row, line in rows if line] or [(1, [])]
    headings = [name.strip() for name in headings]
    if len(headings) < 2 or not lines:
        raise ValueError(f"{path} must have a line of headings for two columns or more, and rows below it")
    if twice := next((name for name in headings if headings.count(name) > 1), None):
        raise ValueError(f"{path} has two columns called {twice!r}; every column needs a name of its own")
    for row, line in lines:
        if len(line) != len(headings):
            raise ValueError(f"row {row} of {path} has {len(line)} columns, and the headings are {len(headings)}")
    return headings, lines


def _number(text: str, path: Path, row: int, column: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        found = repr(text.strip()) if text.strip() else "nothing"
        raise ValueError(
            f"row {row} of {path} has {found} in column {column!r}, where a finite number is "
            "needed; turn it into numbers, fill or drop the row, or leave the column out"
        )
    return value


def _classes(
    path: Path, target: str, lines: list[Numbered], at: int, known: Sequence[str] | None
) -> tuple[Labels, tuple[str, ...]]:
    words = [line[at].strip() for _, line in lines]
    if (empty := next((row for row, line in lines if not line[at].strip()), None)) is not None:
        raise ValueError(f"row {empty} of {path} has no class in column {target!r}; drop the row, or fill it in")
    found = sorted(set(words), key=lambda word: (0, float(word), word) if word.isdecimal() else (1, 0.0, word))
    names = tuple(found if known is None else known)
    if strange := next((word for word in found if word not in names), None):
        raise ValueError(f"{path} has the class {strange!r} in column {target!r}; the classes are {', '.join(names)}")
    if known is None and len(names) > max(len(words) / 2, 2):
        raise ValueError(
            f"column {target!r} of {path} has {len(names):,} values in {len(words):,} rows, which are no classes; "
            "regression is not done here"
        )
    return as_numbers(words, names), names
