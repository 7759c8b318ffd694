"""A section over lambda_M, as the trials that the choice of it is made from."""

from collections.abc import Sequence

from greedy_ensembles.benchmark import Comparison, Estimate, Trial, estimate
from greedy_ensembles.paper.study import Section


def trials(section: Section, comparison: Comparison) -> list[Trial]:
    """Return the in-domain figures of every strength over its seeds, and of Deep Ensembles."""
    strengths = {section.label(case): case.strength for case in section.cases}
    return [
        Trial(strengths[row.method], **{name: row.figures[name].ours for name in ("accuracy", "nll", "ace")})
        for row in comparison.in_domain_rows
    ]


def areas(section: Section, comparison: Comparison) -> dict[str, dict[float | None, Estimate]]:
    """Return the mean AUC over synthetic and over natural sets, by strength, of the kinds that there are."""
    strengths = {section.label(case): case.strength for case in section.cases}
    found: dict[str, dict[float | None, Estimate]] = {}
    for kind in ("synthetic", "natural"):
        if sets := len(comparison.first.of_kind(kind)):
            found[f"mean AUC, {sets} {kind} sets"] = {
                strengths[method.label]: estimate([each.mean("auc", kind) or 0.0 for each in method.evaluations])
                for method in comparison.methods
            }
    return found


def can_choose(tried: Sequence[Trial]) -> bool:
    """Say whether there is something to choose: Deep Ensembles and two others, with two seeds or more each."""
    strengths = [trial.strength for trial in tried]
    return None in strengths and len(strengths) > 2 and all(trial.accuracy.seeds > 1 for trial in tried)
