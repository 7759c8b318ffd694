"""One table in every format."""

import csv
import io
import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from greedy_ensembles.benchmark import Estimate
from greedy_ensembles.benchmark.evaluation import Cell
from greedy_ensembles.report.results import latex_table, latex_text
from greedy_ensembles.report.table import Column, Entry, Table, show, to_csv, to_html, to_records

COLUMNS = (
    Column("set"),
    Column("secret", shown=False),
    Column("images"),
    Column("method"),
    Column("auc", "AUC", 1, 3, "higher"),
    Column("nll", "NLL x 100", 100, 2, "lower"),
    Column("note", shown=False),
)


def row(name, images, method, auc=None, nll=None, note=""):
    figures = {key: Entry(value) for key, value in (("auc", auc), ("nll", nll)) if value is not None}
    facts = {"set": name, "secret": "hush", "method": method, "note": note}
    return {key: Entry(value) for key, value in facts.items()} | {"images": images} | figures


@pytest.fixture
def table():
    """Two methods on one set, the first with published figures, and a set that is missing; odd characters in names."""
    first = row("a_set & more", Entry(25_000, 9_000), "one", Estimate(0.81, 0.01, 2), Estimate(0.25, 0.001, 2))
    first["auc"] = Entry(first["auc"].value, Cell(0.3, 0.22))
    second = row("a_set & more", Entry(25_000), "two | 2", Estimate(0.9, None, 1), Estimate(0.2, None, 1))
    third = row("gone", Entry(None, text="missing"), "", note="50 %")
    return Table("A title", COLUMNS, [first, second, third], ["a note"], "method")


def test_printed_it_is_the_table_of_a_terminal(table, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert str(table) == repr(table)
    lines = str(table).splitlines()
    assert (lines[0], lines[-1]) == ("A title", "a note")
    (shown,) = (line for line in lines if "two | 2" in line)
    assert shown.split() == ["two", "|", "2", "0.900", "20.00"]
    assert "\x1b" not in str(table)
    assert "hush" not in str(table)
    assert not any(line.endswith(" ") for line in lines)


def test_rows_have_a_group_once_and_the_published_figures_in_brackets(table):
    assert [(opens, *cells) for opens, cells in table.printed()] == [
        (True, "a_set & more", "25,000 (9,000)", "one", "0.810±0.010 (0.30±0.22)", "25.00±0.10"),
        (False, "", "", "two | 2", "0.900", "20.00"),
        (True, "gone", "missing", "", "", ""),
    ]


def test_markdown_has_published_figures_in_brackets(table):
    assert table.to_markdown().splitlines() == [
        "| set | images | method | AUC | NLL x 100 |",
        "|---|---|---|---|---|",
        "| a_set & more | 25,000 (9,000) | one | 0.810±0.010 (0.30±0.22) | 25.00±0.10 |",
        r"| a_set & more | 25,000 | two \| 2 | 0.900 | 20.00 |",
        "| gone | missing |  |  |  |",
    ]


def test_csv_holds_no_formulas_but_numbers_below_zero():
    columns = [Column("set"), Column("strength"), Column("auc", digits=3)]
    row = {"set": Entry("=1+1"), "strength": Entry(-1.5), "auc": Entry(Estimate(-0.25, None, 1))}
    (found,) = csv.DictReader(to_csv([Table("t", columns, [row])]).splitlines())
    assert (found["set"], found["strength"], found["mean"]) == ("'=1+1", "-1.5", "-0.25")


def test_csv_has_a_line_for_each_figure_with_all_facts_and_nothing_rounded(table):
    text = to_csv([table])
    assert text.splitlines()[0] == (
        "set,secret,images,method,metric,mean,standard_error,paper,paper_standard_error,difference,note"
    )
    rows = list(csv.DictReader(text.splitlines()))
    assert [(each["method"], each["metric"]) for each in rows] == [
        ("one", "auc"),
        ("one", "nll"),
        ("two | 2", "auc"),
        ("two | 2", "nll"),
        ("", ""),
    ]
    first, last = rows[0], rows[-1]
    assert (first["mean"], first["standard_error"], first["paper"], first["paper_standard_error"]) == (
        *("0.81", "0.01"),
        *("0.3", "0.22"),
    )
    assert float(first["difference"]) == pytest.approx(0.51)
    assert (last["set"], last["images"], last["mean"], last["note"]) == ("gone", "", "", "50 %")


def test_records_have_figures_by_name(table):
    first, _, last = to_records(table, ("set", "images"))
    assert (first["set"], first["images"]) == ("a_set & more", 25_000)
    assert first["figures"]["auc"] == {
        "mean": 0.81,
        "standard_error": 0.01,
        "seeds": 2,
        "paper": 0.3,
        "paper_standard_error": 0.22,
        "difference": pytest.approx(0.51),
    }
    assert last == {"set": "gone", "images": None, "figures": {}}


def test_latex_is_balanced_and_every_row_has_all_columns(table):
    text = latex_table(table)
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 1
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert text.count("$") % 2 == 0
    ((layout, body),) = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.S)
    assert layout == "lrlrr"
    assert body.count("toprule") == body.count("midrule") == body.count("bottomrule") == 1
    rows = [line for line in body.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 3
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(layout) - 1}
    assert r"a\_set \& more & 25,000 (9,000)" in body
    assert r"0.810$\pm$0.010" in body
    assert not re.search(r"(?<!\\)[_%#]", text)


@given(st.text(alphabet="\\{}~^<>&%$#_ab±", max_size=12))
def test_escaping_for_latex_can_be_undone(text):
    """So nothing is lost, and nothing is left that LaTeX would read otherwise."""
    names = {
        r"\textbackslash{}": "\\",
        r"\textasciitilde{}": "~",
        r"\textasciicircum{}": "^",
        r"\textless{}": "<",
        r"\textgreater{}": ">",
        r"$\pm$": "±",
    }
    pattern = re.compile("|".join([*map(re.escape, names), r"\\([{}&%$#_])"]))
    assert pattern.sub(lambda match: match[1] or names[match[0]], latex_text(text)) == text
    assert not re.search(r"[\\{}~^<>&%$#_]", pattern.sub("", latex_text(text)))


def printed(table, width):
    output = io.StringIO()
    show(table, Console(file=output, width=width))
    return output.getvalue()


@pytest.mark.parametrize("width", [60, 120])
def test_no_figure_is_cut_off_on_the_terminal(table, width):
    text = printed(table, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for figure in ("0.810±0.010", "25.00±0.10", "0.30±0.22", "25,000", "missing"):
        assert figure in text
    assert "hush" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_a_table_that_is_too_wide_goes_on_below_and_names_its_rows_again(width):
    figures = [Column(f"figure{number}", digits=3) for number in range(9)]
    facts = [Column("set"), Column("images"), Column("method")]
    rows = [
        {
            "set": Entry("a folder of photos"),
            "images": Entry(25_000),
            "method": Entry(name),
            **{column.key: Entry(Estimate(number + 0.125, 0.01, 3)) for number, column in enumerate(figures)},
        }
        for name in ("deep", "greedy")
    ]
    text = printed(Table("wide", [*facts, *figures], rows, label="method"), width)
    assert max(map(len, text.splitlines())) <= width
    for number in range(9):
        assert text.count(f"figure{number}") == 1
        assert text.count(f"{number}.125±0.010") == 2
    assert text.count("greedy") > 1
    assert text.count("25,000") == 1


def test_names_in_brackets_are_no_markup():
    odd = Table("[bold]t[/bold]", [Column("method")], [{"method": Entry("[bold]x[/bold]")}])
    assert printed(odd, 80).count("[bold]") == 2


class Cells(HTMLParser):
    """The cells of a table: text, sort key and whether it is a number."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.headings = [], []
        self.feed(str(text))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append(["", attributes.get("data-value"), attributes.get("class") == "number"])

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1][0] += data.strip()


def test_html_can_be_sorted(table):
    headings, first, _, last = Cells(to_html(table)).rows
    assert [(text, numeric) for text, _, numeric in headings] == [
        ("set", False),
        ("images", True),
        ("method", False),
        ("AUC", True),
        ("NLL x 100", True),
    ]
    assert [(text, key) for text, key, _ in first] == [
        ("a_set & more", "a_set & more"),
        ("25,000 (9,000)", "25000"),
        ("one", "one"),
        ("0.810±0.010 (0.30±0.22)", "0.81"),
        ("25.00±0.10", "0.25"),
    ]
    assert [(text, key) for text, key, _ in last] == [("gone", "gone"), ("missing", ""), *[("", "")] * 3]


@pytest.mark.parametrize(("better", "best"), [("higher", ["0.900", "0.900", "0.7"]), ("lower", ["0.1", "0.2"])])
def test_html_marks_the_best_of_every_group(better, best):
    figures = {"a": [0.9001, 0.1, 0.8999], "b": [0.2, 0.7], "level": [0.50001, 0.5], "alone": [0.3]}
    rows = [
        {"set": Entry(name), "method": Entry(f"{number}"), "auc": Entry(Estimate(value, None, 1))}
        for name, values in figures.items()
        for number, value in enumerate(values)
    ]
    columns = [Column("set"), Column("method"), Column("auc", "AUC", digits=3, better=better)]
    marked = re.findall("<strong>(.*?)</strong>", to_html(Table("t", columns, rows, label="method")))
    assert marked == [f"{float(text):.3f}" for text in best]


def test_html_is_escaped():
    hostile = "\"><script>alert('x')</script>"
    odd = Table(hostile, [Column("method", hostile)], [{"method": Entry(hostile)}])
    assert "<script" not in to_html(odd)
    assert Cells(to_html(odd)).rows == [[[hostile, None, False]], [[hostile, hostile, False]]]


def test_infinity_is_spelled_and_sorted():
    odd = Table("t", [Column("nll", "NLL", 100, 2)], [{"nll": Entry(Estimate(math.inf, None, 2))}])
    assert Cells(to_html(odd)).rows[1] == [["inf", "Infinity", True]]
