"""`ge.compare`: ensembles and anyone's detectors on the same data, in one table."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from greedy_ensembles.benchmark.comparison import Comparison, Method, without_information
from greedy_ensembles.benchmark.evaluation import Evaluation, estimate
from greedy_ensembles.benchmark.judging import as_reference, check_score, evaluate
from greedy_ensembles.benchmark.predictions import InputSet, as_sets, digest_of_member
from greedy_ensembles.checks import as_all, as_path, check_choice, check_kind
from greedy_ensembles.engines.prediction import FeatureFunction
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.report.results import BESIDE_OOD, IN_DOMAIN, OOD, notes, row_entries
from greedy_ensembles.report.table import Column, Entry, Table

_LOWEST = Column("lowest_member", "lowest member (%)", 100, 2, "higher")


@dataclasses.dataclass(frozen=True, repr=False)
class MethodsTable(Table):
    """A row for each set and method, by the score chosen for the method; `scores` has all scores of one."""

    methods: tuple[Method, ...] = ()

    def scores(self, method: str) -> Table:
        """Return all scores of a method: a row for each OOD set and score."""
        by_name = {each.label: each for each in self.methods}
        check_choice("method", method, by_name)
        evaluations = by_name[method].evaluations
        known = [one for one in evaluations[0].known_scores if all(one in each.known_scores for each in evaluations)]
        rows, names = [], {row["set"].value: row["set"] for row in self.rows}
        for number, result in enumerate(evaluations[0].ood):
            for score in known:
                found = [evaluation.ood[number].by_score[score] for evaluation in evaluations]
                figures = {one.key: Entry(estimate([getattr(each, one.key) for each in found])) for one in OOD}
                named = Entry(score, text=score.replace("_", " "))
                told = {"set": names[result.name], "images": Entry(result.images), "score": named}
                rows.append({**told, **figures})
        columns = [Column("set"), Column("images", "examples"), Column("score"), *OOD]
        return Table(f"{method}: all scores", columns, rows, self.notes, "score")


def compare(
    methods: Mapping[str, Any],
    in_domain: Any,
    ood: Mapping[str, Any] | str,
    *,
    score: str | Mapping[str, str] | None = None,
    features: str | FeatureFunction | None = None,
    reference: Any = None,
    batch_size: int | None = None,
    root: str | Path | None = None,
) -> MethodsTable:
    """Evaluate methods on the same labelled in-domain data and the same OOD sets, and return one table.

    Args:
        methods: by name an ensemble, what `ge.benchmark.judge_scores` or `judge_probabilities` returned for the same
            sets, or a list of either: repetitions, whose means and standard errors are shown.
        in_domain: test data with labels, an image set or what else `ge.fit` takes; a DataLoader is held in memory.
        ood: inputs by name; or the name of a preset of image sets, read from the data folder `root`.
        score: by which OOD examples are told, for all that have it, or by method; None: mutual information for
            ensembles, its own for what was judged before.
        features: for the scores knn and mahalanobis: a layer's name, or a function of a member and a batch.
        reference: with `features`, the labelled examples that features are compared with.
        batch_size: how many inputs a member sees at once.
        root: the data folder.

    Returns:
        The table, as it is printed and as a notebook shows it: ``.to_markdown()``, ``.to_frame()`` (with pandas).
        ``.scores(name)`` is a second one, with all scores of a method.

    Raises:
        ValueError, TypeError: an argument will not do; nothing was predicted.

    >>> import greedy_ensembles as ge, numpy as np, torch
    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> deep = ge.fit(lambda: ge.models.MLP(2, (8,)), (x, (x[:, 0] > 0).long()), size=2, method="deep",
    ...               recipe=ge.Recipe(epochs=2), progress=False, device="cpu")
    >>> norm = ge.benchmark.judge_scores("norm", x.norm(dim=1), {"far": (9 * x).norm(dim=1)})
    >>> table = ge.compare({"deep": deep, "norm": norm}, (x, (x[:, 0] > 0).long()), {"far": 9 * x})
    >>> [(row["method"].value, row["score"].value) for row in table.rows if row["set"].value == "far"]
    [('deep', 'mutual_information'), ('norm', 'norm')]
    """
    root = None if root is None else as_path("root", root)
    inside, outside, missing = as_sets(in_domain, ood, root)
    known = InputSet.of("reference", reference, "reference", labelled=True) if reference is not None else None
    given = _checked(methods, inside, outside)
    chosen = _chosen(given, score, features is not None)
    for ensemble in (one for own in given.values() for one in own if isinstance(one, Ensemble)):
        as_reference(ensemble, features, known)
        for each in (inside, *outside):
            each.check(ensemble)
    sets = {each.name: each for each in outside}
    told: dict[str, Any] = {"features": features, "reference": known, "batch_size": batch_size}

    def judged(one: Ensemble | Evaluation, score: str) -> Evaluation:
        """Return an evaluation with the names, the notes and the order of the sets of the table."""
        found = evaluate(one, inside, sets, score=score, **told) if isinstance(one, Ensemble) else one.by(score)
        by_name = {result.name: result for result in found.ood}
        named = dataclasses.replace(found.in_domain, name=inside.name, note=inside.note)
        ood = tuple(dataclasses.replace(by_name[each.name], note=each.note) for each in outside)
        return dataclasses.replace(found, in_domain=named, ood=ood, missing=missing)

    found = tuple(Method(name, tuple(judged(one, chosen[name]) for one in own)) for name, own in given.items())
    return _table(Comparison(found, tuple(without_information(found)), own_scores=True), inside.unit)


def _checked(
    methods: Mapping[str, Any], inside: InputSet, outside: Sequence[InputSet]
) -> dict[str, list[Ensemble | Evaluation]]:
    if not isinstance(methods, Mapping) or not methods:
        raise TypeError(f"methods must be a dict of ensembles and evaluations by name, got {methods!r}")
    as_all("names of methods", methods, str, "texts")
    given: dict[str, list[Ensemble | Evaluation]] = {}
    for name, value in methods.items():
        given[name] = list(value) if isinstance(value, list | tuple) else [value]
        if not given[name]:
            raise ValueError(f"methods[{name!r}] is an empty list")
        for one in given[name]:
            if isinstance(one, Evaluation):
                _check_sets(name, one, inside, outside)
            elif not isinstance(one, Ensemble):
                raise TypeError(
                    f"methods[{name!r}] must be an Ensemble (of a classifier its ensemble_), or what "
                    f"ge.benchmark.judge_probabilities or judge_scores returned; got {type(one).__name__}"
                )
        _check_repetitions(name, given[name])
    return given


def _check_repetitions(name: str, repetitions: Sequence[Ensemble | Evaluation]) -> None:
    """Refuse repetitions that share members, whose standard error would be too small."""
    known: set[Any] = set()
    for one in repetitions if len(repetitions) > 1 else ():
        if isinstance(one, Ensemble):
            parts: set[Any] = {digest_of_member(each, one.normalize) for each in one}
        else:
            parts = {(one.score, *(scores.tobytes() for scores in one.in_domain.every_score.values()))}
        if not known.isdisjoint(parts):
            raise ValueError(
                f"methods[{name!r}] has repetitions that share members, and their standard error would be too small; "
                "train them with seeds at least as far apart as an ensemble has members"
            )
        known |= parts


def _check_sets(name: str, evaluation: Evaluation, inside: InputSet, outside: Sequence[InputSet]) -> None:
    own, asked = {result.name: result.images for result in evaluation.ood}, {each.name: each.count for each in outside}
    if own.keys() != asked.keys():
        raise ValueError(
            f"methods[{name!r}] has scores of {', '.join(own) or 'no set'}, and ood has {', '.join(asked) or 'none'}; "
            "give all methods the same names"
        )
    for each, count in {inside.name: inside.count, **asked}.items():
        there = own.get(each, evaluation.in_domain.images)
        if there != count:
            raise ValueError(f"methods[{name!r}] has {there:,} scores of {each}, which has {count:,} {inside.unit}")


def _chosen(
    given: Mapping[str, Sequence[Ensemble | Evaluation]], score: str | Mapping[str, str] | None, features: bool
) -> dict[str, str]:
    if score is not None:
        check_kind("score", score, (str, Mapping), "the name of a score, or a dict of them by method")
    asked = score if isinstance(score, Mapping) else {}
    for name in asked:
        check_choice("a method that score names", name, given)
    common = score if isinstance(score, str) else "mutual_information"
    if isinstance(score, str):
        check_score(score, features=features)
    chosen: dict[str, str] = {}
    for name, repetitions in given.items():
        for one in repetitions:
            if isinstance(one, Ensemble):
                wanted = asked.get(name, common)
                check_score(wanted, f"score[{name!r}]", features)
            else:
                own = common if isinstance(score, str) and common in one.known_scores else one.score
                wanted = asked.get(name, own)
                check_choice(f"score[{name!r}]", wanted, one.known_scores)
            if chosen.setdefault(name, wanted) != wanted:
                raise ValueError(
                    f"methods[{name!r}] has repetitions by {chosen[name]} and by {wanted}; name one in score"
                )
    return chosen


def _table(comparison: Comparison, unit: str) -> MethodsTable:
    columns = [
        *(Column("set"), Column("images", unit), Column("method"), Column("seeds")),
        *(IN_DOMAIN[0], IN_DOMAIN[1], _LOWEST, Column("score"), *OOD, *BESIDE_OOD),
    ]
    rows = [row_entries(row, comparison) for row in comparison.rows]
    for row, method in zip(rows, comparison.methods, strict=False):  # the first rows are those in the domain
        lowest = [min(each.in_domain.member_accuracies, default=math.nan) for each in method.evaluations]
        if not any(map(math.isnan, lowest)):
            row["lowest_member"] = Entry(estimate(lowest))
    title = f"In the domain and by OOD set, {', '.join(method.label for method in comparison.methods)}"
    return MethodsTable(title, columns, rows, notes(comparison), "method", comparison.methods)
