"""A study at a glance: one line for each method of each section, the paper's figures in brackets."""

from collections.abc import Iterator, Sequence

from greedy_ensembles.benchmark import Comparison
from greedy_ensembles.paper.gather import Gathered
from greedy_ensembles.report.results import IN_DOMAIN, OOD
from greedy_ensembles.report.table import Entry, markdown_table

_KINDS = ("synthetic", "natural", "sets")  # how the names of the means over them end
_ACCURACY, _AUC = IN_DOMAIN[0], OOD[0]


def summary(sections: Sequence[Gathered]) -> str:
    """Return accuracy and mean AUC of all sections in one table; empty where there is but one section."""
    found = [gathered for gathered in sections if gathered.comparison is not None]
    if len(found) < 2:
        return ""
    rows = [row for gathered in found if gathered.comparison for row in _rows(gathered, gathered.comparison)]
    heading = ["", "method", "seeds", "accuracy (%)", "mean AUC, synthetic", "natural", "all sets"]
    return "\n\n".join([markdown_table(heading, rows), *_left_out(found)])


def _left_out(found: Sequence[Gathered]) -> Iterator[str]:
    """Yield of which sections the means are over fewer sets than there are elsewhere on the page, or could be."""
    comparisons = {gathered.section.title: gathered.comparison for gathered in found if gathered.comparison}
    sets: dict[str, dict[str, None]] = {}
    for each in comparisons.values():
        judged = (*(result.name for result in each.first.ood), *each.left_out)
        sets.setdefault(each.first.in_domain.name, {}).update(dict.fromkeys(judged))
    for title, each in comparisons.items():
        own = {result.name for result in each.first.ood}
        if lacking := [name for name in sets[each.first.in_domain.name] if name not in own]:
            yield f"{title}: means without {', '.join(lacking)}."


def _rows(gathered: Gathered, comparison: Comparison) -> Iterator[list[str]]:
    inside = {row.method: row.figures["accuracy"] for row in comparison.in_domain_rows}
    for method in comparison.methods:
        means = {row.set.rpartition(" ")[2]: row for row in comparison.mean_rows if row.method == method.label}
        figures = [means[kind].figures["auc"] if kind in means else None for kind in _KINDS]
        areas = ["" if figure is None else Entry(figure.ours, figure.paper).both(_AUC) for figure in figures]
        accuracy = Entry(inside[method.label].ours, inside[method.label].paper).both(_ACCURACY)
        yield [gathered.section.title, method.label, str(len(method.evaluations)), accuracy, *areas]
