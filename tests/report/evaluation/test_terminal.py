import dataclasses
import io

import pytest
from rich.console import Console

from greedy_ensembles.report.evaluation import show


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cut_off(comparison, width):
    output = io.StringIO()
    show(comparison, Console(file=output, width=width))
    text = output.getvalue()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for figure in ("91.00±1.00", "25.00±0.00", "99.43±0.01", "0.810±0.010", "+0.51", "25,000", "missing", "2 seeds"):
        assert figure in text
    assert "(a) 50 % of it & no more" in text


def test_all_lines_of_a_long_name_are_indented(comparison):
    methods = (dataclasses.replace(comparison.methods[0], label="a name of many words that one line will not hold"),)
    output = io.StringIO()
    show(dataclasses.replace(comparison, methods=methods), Console(file=output, width=80))
    lines = output.getvalue().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("  a name"))
    assert lines[start + 1].startswith("  ")
    assert lines[start + 1].strip()


def test_names_in_brackets_are_no_markup(comparison):
    methods = (dataclasses.replace(comparison.methods[0], label="[bold]x[/bold]"),)
    output = io.StringIO()
    show(dataclasses.replace(comparison, methods=methods), Console(file=output, width=120))
    assert "[bold]x[/bold]" in output.getvalue()
