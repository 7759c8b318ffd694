import re

from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.report.evaluation import to_latex
from greedy_ensembles.report.evaluation.latex import escaped


def test_environments_and_braces_are_balanced_and_every_row_has_all_columns(comparison):
    text = to_latex(comparison)
    for environment in ("table", "tabular"):
        assert text.count(f"\\begin{{{environment}}}") == text.count(f"\\end{{{environment}}}") == 2
    unescaped = re.sub(r"\\[{}]", "", text)
    assert unescaped.count("{") == unescaped.count("}")
    assert text.count("$") % 2 == 0
    for layout, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.S):
        assert body.count("toprule") == body.count("midrule") == body.count("bottomrule") == 1
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 3
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(layout) - 1}


def test_what_latex_takes_for_commands_is_escaped(comparison):
    text = to_latex(comparison)
    assert r"fashion\_mnist (a)" in text
    assert r"(a) 50 \% of it \& no more" in text
    assert r"0.810$\pm$0.010" in text
    body = "\n".join(line for line in text.splitlines() if not line.startswith("% needs"))
    assert not re.search(r"(?<!\\)[_%#]", body)


@given(st.text(alphabet="\\{}~^<>&%$#_ab±", max_size=12))
def test_escaping_can_be_undone(text):
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
    assert pattern.sub(lambda match: match[1] or names[match[0]], escaped(text)) == text
    assert not re.search(r"[\\{}~^<>&%$#_]", pattern.sub("", escaped(text)))
