"""What the figures of a section say, in sentences that are computed, so that none says more than its figures do.

A method is ahead where its mean AUC differs by more than both standard errors together and by more than half of the
paper's last decimal; otherwise the two are level.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from greedy_ensembles.benchmark import Comparison, Method, select
from greedy_ensembles.benchmark.comparison import Figure, Row
from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.paper.curve import can_choose, trials
from greedy_ensembles.paper.gather import Gathered
from greedy_ensembles.paper.study import DEEP, Section, Target
from greedy_ensembles.report.ablation import verdict as explain

_HALF_A_HUNDREDTH = 0.005
_HALF_A_TENTH_OF_A_POINT = 0.0005  # of an accuracy
_NEAR = 0.02  # of an AUC


def read(gathered: Gathered) -> list[str]:
    """Return sentences on a section: the methods beside each other, beside the paper, targets, and what diverged."""
    sentences = [
        f"{gathered.section.label(job.case)}, seed {job.seed}, diverged: {record.message.partition('. Try')[0]}."
        for job, record in gathered.diverged.items()
    ]
    if gathered.comparison is None:
        return sentences
    comparison = gathered.comparison
    sentences += list(_beside_deep(comparison))
    sentences += list(_beside_the_paper(comparison))
    if gathered.section.curve:
        sentences += list(_along_the_curve(gathered.section, comparison))
    for target in gathered.section.targets:
        sentences += list(_reached(target, comparison))
    if any(len(method.evaluations) < 2 for method in comparison.methods):
        sentences.append("Figures of a single seed have no standard error; small differences may be chance.")
    return sentences


def _is_deep(method: Method) -> bool:
    return method.label == DEEP


def compared(ours: Estimate, theirs: Estimate, least: float = _HALF_A_HUNDREDTH) -> int:
    """Return 1 where the first is ahead, -1 where it is behind, 0 where they are level.

    least : differences up to this count for nothing, whatever the standard errors.

    >>> compared(Estimate(0.9, 0.01, 3), Estimate(0.8, 0.02, 3)), compared(Estimate(0.9, 0.1, 3), Estimate(0.8, 0, 3))
    (1, 0)
    """
    difference = ours.mean - theirs.mean
    if abs(difference) <= max(ours.error + theirs.error, least):
        return 0
    return 1 if difference > 0 else -1


def _by_set(comparison: Comparison, label: str) -> dict[str, Row]:
    rows = [*comparison.ood_rows, *comparison.mean_rows]
    return {row.set: row for row in rows if row.method == label}


def _beside_deep(comparison: Comparison) -> Iterator[str]:
    deep = next((method for method in comparison.methods if _is_deep(method)), None)
    if deep is None:
        yield "Deep Ensembles are still missing, so there is nothing to compare with."
        return
    reference = _by_set(comparison, deep.label)
    inside = {row.method: row.figures["accuracy"].ours.mean for row in comparison.in_domain_rows}
    for method in comparison.methods:
        if _is_deep(method):
            continue
        rows = _by_set(comparison, method.label)
        changes = {name: _area(row).mean - _area(reference[name]).mean for name, row in rows.items()}
        means = "; ".join(f"{name} {changes[name]:+.3f}" for name, row in rows.items() if row.kind == "mean")
        yield (
            f"{method.label} beside Deep Ensembles, AUC {_outcomes(rows, reference)}{f' ({means})' if means else ''}. "
            f"Accuracy {100 * (inside[method.label] - inside[deep.label]):+.2f} points."
        )


def _area(row: Row) -> Estimate:
    return row.figures["auc"].ours


def _outcomes(rows: Mapping[str, Row], reference: Mapping[str, Row]) -> str:
    """Return on how many sets, and on which, a method is ahead, level and behind."""
    outcomes: dict[int, list[str]] = {1: [], 0: [], -1: []}
    for name, row in rows.items():
        if row.kind != "mean":
            outcomes[compared(_area(row), _area(reference[name]))].append(name)
    words = {1: "ahead", 0: "level", -1: "behind"}
    listed = [f"{words[key]} on {len(names)} ({', '.join(names)})" for key, names in outcomes.items() if names]
    return f"on {sum(map(len, outcomes.values()))} sets: {', '.join(listed) or 'none is there'}"


def _beside_the_paper(comparison: Comparison) -> Iterator[str]:
    for method in comparison.methods:
        rows = _by_set(comparison, method.label)
        cells = {name: figure for name, row in rows.items() if row.kind != "mean" and (figure := _papers(row))}
        if not cells:
            continue
        differences = {name: figure.difference or 0.0 for name, figure in cells.items()}
        near = sum(abs(difference) <= _NEAR for difference in differences.values())
        worst = max(differences, key=lambda name: abs(differences[name]))
        cell, size = cells[worst].paper, method.papers_size
        beside = "the paper" if size is None else f"the paper's M = {size}"
        yield (
            f"{method.label} beside {beside}: {near} of {len(cells)} AUC within {_NEAR:.2f} of its figures, "
            f"{statistics.fmean(differences.values()):+.3f} in the mean; the farthest is {worst} "
            f"(ours {cells[worst].ours.mean:.3f}, the paper's {cell.mean if cell else 0:.2f})."
        )


def _papers(row: Row) -> Figure | None:
    figure = row.figures["auc"]
    return figure if figure.paper is not None else None


def _along_the_curve(section: Section, comparison: Comparison) -> Iterator[str]:
    inside = {row.method: row.figures["accuracy"].ours for row in comparison.in_domain_rows}
    greedy = {method.label: inside[method.label] for method in comparison.methods if not _is_deep(method)}
    if len(greedy) < 2:
        return
    listed = ", ".join(f"{label.rpartition(' = ')[2]}: {100 * value.mean:.2f}" for label, value in greedy.items())
    first, *_, last = greedy.values()
    verdict = {1: "rises", 0: "stays level", -1: "falls"}[compared(last, first, _HALF_A_TENTH_OF_A_POINT)]
    change = 100 * (last.mean - first.mean)
    yield f"Accuracy (%) by lambda_M: {listed}. From the first to the last it {verdict} ({change:+.2f} points)."
    tried = trials(section, comparison)
    if can_choose(tried):
        yield f"By the paper's rule, and as there on test images: {explain(select(tried))}"


def _reached(target: Target, comparison: Comparison) -> Iterator[str]:
    """Return whether a target is reached, for every method that it is about: Deep Ensembles where it is no gain."""
    deep = next((method.label for method in comparison.methods if _is_deep(method)), None)
    for method in comparison.methods:
        if _is_deep(method) and (target.gain is not None or target.metric != "accuracy"):
            continue
        values = _values(target, comparison, method.label)
        if target.gain is not None:
            before = _values(target, comparison, deep) if deep else {}
            values = {name: value - before[name] for name, value in values.items() if name in before}
        left_out = comparison.left_out if target.is_of_all_sets else ()
        outcome, found = _outcome(target, values, left_out), _listed(target, values, left_out)
        yield f"Target {outcome} by {method.label}: {_spelled(target)}; found {found}."


def _outcome(target: Target, values: Mapping[str, float], left_out: Sequence[str]) -> str:
    if left_out:  # which are there, and would count
        return "not known to be reached"
    bound = target.least if target.gain is None else target.gain
    if bound is not None and any(value < bound for value in values.values()):
        return "MISSED"
    return "not known to be reached" if not values or set(target.sets) - set(values) else "reached"


def _listed(target: Target, values: Mapping[str, float], left_out: Sequence[str]) -> str:
    sign = "" if target.gain is None else "+"
    found = [f"{name} {value:{sign}.4f}" for name, value in values.items()]
    absent = [name for name in (*target.sets, *left_out) if name not in values]
    return ", ".join([*found, *(f"no {name}" for name in absent)]) or "nothing yet"


def _values(target: Target, comparison: Comparison, label: str) -> dict[str, float]:
    if target.metric == "accuracy":
        rows = {row.method: row for row in comparison.in_domain_rows}
        return {"accuracy": rows[label].figures["accuracy"].ours.mean}
    rows = _by_set(comparison, label)
    if target.sets:
        return {name: rows[name].figures["auc"].ours.mean for name in target.sets if name in rows}
    of_all = [row for row in rows.values() if row.kind == "mean" and row.set.endswith("sets")]
    return {row.set: row.figures["auc"].ours.mean for row in of_all}


def _spelled(target: Target) -> str:
    overall = ", mean of all sets" if target.is_of_all_sets else ""
    where = f" on {', '.join(target.sets)}" if target.sets else overall
    name = {"accuracy": "accuracy", "auc": "AUC"}[target.metric]
    if target.gain is None:
        return f"{name}{where} at least {target.least:g}"
    return f"{name}{where} at least Deep Ensembles' {target.gain:+g}"
