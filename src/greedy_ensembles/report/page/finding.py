"""What a page opens with: who detects OOD inputs best or, where nothing was evaluated, validation accuracies."""

from collections.abc import Mapping, Sequence

import numpy as np

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.evaluation import Estimate, estimate
from greedy_ensembles.report.results import IN_DOMAIN, OOD, plural
from greedy_ensembles.report.table import PLUS_MINUS

_COLUMNS = {column.key: column for column in (*OOD, *IN_DOMAIN)}


def finding(comparison: Comparison) -> str:
    """Return in short sentences who is best by AUC, and AUC, FPR95 and accuracy of all, the best method's first."""
    figures = _headlines(comparison)
    if not figures:
        return ""
    first = next(iter(figures.values()))
    order = sorted(first, key=lambda label: -first[label].mean)
    texts = {key: [_spelled(key, known[label]) for label in order] for key, known in figures.items()}
    names = _short(order)
    told = [_best(comparison, names, texts["auc"])] if "auc" in texts else []
    if "fpr95" in texts:
        told.append(f"FPR95: {_listed(texts['fpr95'])}.")
    if "accuracy" in texts:
        told.append(f"Accuracy: {_listed(texts['accuracy']) if told else ', '.join(_pairs(names, texts['accuracy']))}.")
    return " ".join([*told, *_chance(comparison)])


def unevaluated(accuracies: Mapping[str, Sequence[float]], examples: Sequence[float | None]) -> str:
    """Return mean validation accuracies by method, with the number of examples where it is the same for all runs."""
    known = {label: values for label, values in accuracies.items() if values}
    if not known:
        return "Nothing was evaluated on OOD data."
    texts = [_spelled("accuracy", estimate(values)) for values in known.values()]
    (count, *others) = set(examples)
    counted = "" if count is None or others else f" of {count:,.0f} examples"
    told = ", ".join(_pairs(_short([*known]), texts))
    return f"Nothing was evaluated on OOD data; validation accuracy: {told}{counted}."


def _headlines(comparison: Comparison) -> dict[str, dict[str, Estimate]]:
    """Return means over all OOD sets, and the accuracy, by method; what not all methods have is left out."""
    found: dict[str, dict[str, Estimate]] = {"auc": {}, "fpr95": {}, "accuracy": {}}
    if comparison.first.ood:
        for metric in ("auc", "fpr95"):
            for method in comparison.methods:
                means = [float(np.mean([getattr(one, metric) for one in each.ood])) for each in method.evaluations]
                found[metric][method.label] = estimate(means)
    for row in comparison.in_domain_rows:
        if "accuracy" in row.figures:
            found["accuracy"][row.method] = row.figures["accuracy"].ours
    return {metric: known for metric, known in found.items() if len(known) == len(comparison.methods)}


def _best(comparison: Comparison, names: Sequence[str], texts: Sequence[str]) -> str:
    """Return the sentence on AUC; methods whose means are printed alike are level."""
    means = [text.partition(PLUS_MINUS)[0] for text in texts]
    level = [name for name, mean in zip(names, means, strict=True) if mean == means[0]]
    lead = f"OOD inputs are detected best by {names[0]}" if len(names) > 1 else names[0]
    if len(level) > 1:
        lead = f"{_listed(level)} detect OOD inputs equally well"
    by = "each one's score" if comparison.own_scores else comparison.first.score.replace("_", " ")
    over = f"mean AUC {texts[0]} over {plural(len(comparison.first.ood), 'set')} by {by}"
    return f"{lead}: {', '.join([over, *_pairs(names[1:], texts[1:])])}."


def _chance(comparison: Comparison) -> list[str]:
    """Return a warning where methods are compared of which one has a single seed."""
    methods = comparison.methods
    single = [method.label for method in methods if len(method.evaluations) == 1]
    if not single or len(methods) == 1:
        return []
    whose = "" if len(single) == len(methods) else f" of {_listed(_short(single))}"
    return [f"One seed{whose}: {'the difference' if len(methods) == 2 else 'differences'} may be chance."]


def _spelled(key: str, figure: Estimate) -> str:
    unit = " %" if key == "accuracy" else ""
    return _COLUMNS[key].spelled(figure.mean, figure.standard_error) + unit


def _short(labels: Sequence[str]) -> list[str]:
    """Return labels up to their first comma or, where these are alike, with the rest in brackets.

    >>> _short(["deep", "greedy, lambda_M = 1"])
    ['deep', 'greedy']
    >>> _short(["deep", "greedy, lambda_M = 1", "greedy, lambda_M = 3"])
    ['deep', 'greedy (lambda_M = 1)', 'greedy (lambda_M = 3)']
    """
    parts = [label.partition(", ") for label in labels]
    if len({head for head, _, _ in parts}) == len(labels):
        return [head for head, _, _ in parts]
    return [f"{head} ({rest})" if rest else head for head, _, rest in parts]


def _pairs(names: Sequence[str], texts: Sequence[str]) -> list[str]:
    return [f"{name} {text}" for name, text in zip(names, texts, strict=True)]


def _listed(texts: Sequence[str]) -> str:
    """Return texts with commas, and an "and" before the last.

    >>> _listed(["a", "b", "c"]), _listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
