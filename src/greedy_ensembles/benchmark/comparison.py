"""Evaluations of several methods over several seeds, side by side: means, standard errors, published figures.

Pure numbers; `report.results` makes tables of them. A mean over sets is taken for each seed first, and then over seeds,
so its standard error is that of what it says: the mean over sets of a seed.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from greedy_ensembles.benchmark.evaluation import (
    IN_DOMAIN_METRICS,
    KINDS,
    ONE_MEMBER,
    OOD_METRICS,
    Cell,
    Estimate,
    Evaluation,
    InDomain,
    OutOfDistribution,
    estimate,
)
from greedy_ensembles.benchmark.presets import kind_of
from greedy_ensembles.benchmark.runs import Published, RunFacts, Setting, group, other_differences

#: Scores whose AUC has a table of its own, set by set, where evaluations know them, whichever score was chosen.
BESIDE = ("mutual_information", "predictive_entropy")


@dataclasses.dataclass(frozen=True)
class Method:
    """One configuration, evaluated once for each seed."""

    label: str
    evaluations: tuple[Evaluation, ...]
    seeds: tuple[int, ...] = ()
    setting: Setting | None = None  #: its place in published tables, if it has one
    sources: tuple[str, ...] = ()  #: where each evaluation comes from
    architecture: str = ""  #: of its members, if that is known

    @property
    def papers_size(self) -> int | None:
        """The M of the published figures beside it, None where it is its own."""
        sizes = {evaluation.members for evaluation in self.evaluations}
        return None if self.setting is None or self.setting.size in sizes else self.setting.size


@dataclasses.dataclass(frozen=True)
class Figure:
    """One of our figures, with the published one where there is one of the same cell."""

    ours: Estimate
    paper: Cell | None


@dataclasses.dataclass(frozen=True)
class Row:
    """The figures of one method on one set, or on several in the mean; none of them where the set is missing."""

    set: str
    kind: str  #: in-domain, synthetic, natural, or mean
    images: int | None
    paper_images: int | None
    note: str
    method: str
    figures: Mapping[str, Figure]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Methods that were evaluated on the same images by the same score."""

    methods: tuple[Method, ...]
    notes: tuple[str, ...] = ()  #: what a reader must know beside the notes on the sets
    left_out: tuple[str, ...] = ()  #: those of the missing sets that some method was evaluated on
    published: Published | None = None  #: figures to stand beside ours
    own_scores: bool = False  #: whether every method may have a score of its own

    @classmethod
    def on_common_sets(
        cls, methods: Sequence[Method], notes: Sequence[str] = (), published: Published | None = None
    ) -> "Comparison":
        """Compare methods on those OOD sets of which all of them saw the same images; others are left out.

        Runs that were judged on several machines need not have had the same data there.

        Args:
            methods: each with its evaluations.
            notes: what a reader must know beside the notes on the sets.
            published: figures to put beside ours, where they are of the same setting.
        """
        evaluations = [evaluation for method in methods for evaluation in method.evaluations]
        every = dict.fromkeys(result.name for evaluation in evaluations for result in evaluation.ood)
        common = [name for name in every if _is_common(name, evaluations)]
        if not common:
            return cls(tuple(methods), tuple(notes), (), published)  # which refuses them, unless none has any
        left_out = tuple(name for name in every if name not in common)
        missing = tuple(dict.fromkeys([*(name for one in evaluations for name in one.missing), *left_out]))

        def filtered(evaluation: Evaluation) -> Evaluation:
            ood = {result.name: result for result in evaluation.ood}
            return dataclasses.replace(evaluation, ood=tuple(ood[name] for name in common), missing=missing)

        kept = (dataclasses.replace(method, evaluations=tuple(map(filtered, method.evaluations))) for method in methods)
        return cls(tuple(kept), tuple(notes), left_out, published)

    @classmethod
    def of_runs(cls, runs: Sequence[tuple[RunFacts, Evaluation]], published: Published | None = None) -> "Comparison":
        """Put evaluations of runs side by side: repetitions become one method, other configurations other methods."""
        evaluations = {id(facts): evaluation for facts, evaluation in runs}
        groups = group([facts for facts, _ in runs])
        methods = [
            Method(
                label,
                tuple(evaluations[id(facts)] for facts in repetitions),
                tuple(facts.seed for facts in repetitions),
                None if published is None else published.setting_of(repetitions[0]),
                tuple(facts.source for facts in repetitions),
                repetitions[0].architecture,
            )
            for label, repetitions in groups.items()
        ]
        comparison = cls(tuple(methods), published=published)
        return dataclasses.replace(comparison, notes=(*_notes(comparison, groups), *other_differences(groups)))

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("methods must hold at least one method, got none")
        every = [(method.label, evaluation) for method in self.methods for evaluation in method.evaluations]
        first, sets = every[0][0], _told(self.first, self.own_scores)
        known: dict[str, tuple[str, str]] = {}  # hashes of images, where there are any
        for label, evaluation in every:
            if (theirs := _told(evaluation, self.own_scores)) != sets:
                raise ValueError(
                    "methods must be evaluated on the same images by the same score; "
                    f"{first} was on {sets}, and {label} on {theirs}"
                )
            for result in (result for result in evaluation.sets if result.content):
                content, other = known.setdefault(result.name, (result.content, label))
                if content != result.content:
                    raise ValueError(
                        "methods must be evaluated on the same images, but those of "
                        f"{result.name} differ between {other} and {label} (their hashes do)"
                    )

    @property
    def first(self) -> Evaluation:
        """One of the evaluations, for what they have in common: sets, counts, notes, score."""
        return self.methods[0].evaluations[0]

    @property
    def in_domain_rows(self) -> list[Row]:
        """Accuracy, NLL, Brier score, ACE and ECE, a row for each method."""
        return [
            self._row("in-domain", method, [[one.in_domain] for one in method.evaluations]) for method in self.methods
        ]

    @property
    def ood_rows(self) -> list[Row]:
        """AUC, AP and FPR95, a row for each OOD set and method; sets of the preset that are missing have no figures."""
        rows = [
            self._row(result.kind, method, [[evaluation.ood[number]] for evaluation in method.evaluations])
            for number, result in enumerate(self.first.ood)
            for method in self.methods
        ]
        return rows + [Row(name, "missing", None, self._count(name), "", "", {}) for name in self.first.missing]

    @property
    def mean_rows(self) -> list[Row]:
        """Means over synthetic, natural and all sets, a row for each kind that is not all of them, and method."""
        if len(self.first.ood) + len(self.first.missing) < 2:
            return []
        return [
            self._row("mean", method, [one.of_kind(kind) for one in method.evaluations], self._mean_name(kind))
            for kind in KINDS
            if self.first.of_kind(kind) and (kind == "all" or self._wanted(kind) < self._wanted("all"))
            for method in self.methods
        ]

    @property
    def rows(self) -> list[Row]:
        """All of them."""
        return [*self.in_domain_rows, *self.ood_rows, *self.mean_rows]

    @property
    def beside_published(self) -> set[str]:
        """The methods that have published figures beside theirs."""
        return {row.method for row in self.rows if any(figure.paper for figure in row.figures.values())}

    def _row(
        self, kind: str, method: Method, results: Sequence[Sequence[InDomain | OutOfDistribution]], mean: str = ""
    ) -> Row:
        """Return the figures of a method on one set or, where the `mean` has a name, on several of each seed."""
        first, inside = results[0][0], kind == "in-domain"
        # There are no published OOD figures of another score than this one.
        setting = method.setting if inside or self.first.score == "mutual_information" else None
        names = [""] if inside else [each.name for each in results[0]]
        figures = {}
        for metric in IN_DOMAIN_METRICS if inside else OOD_METRICS:
            values = [float(np.mean([getattr(each, metric) for each in own])) for own in results]
            if not any(map(math.isnan, values)):  # of scores alone there are none in the domain
                figures[metric] = Figure(estimate(values), self._cell(setting, metric, names))
        figures |= _by_score(results)
        if mean:
            return Row(mean, kind, None, None, "", method.label, figures)
        beside = not inside and any(figure.paper for figure in figures.values())
        count = self._count(first.name) if beside else None
        return Row(first.name, kind, first.images, count, first.note, method.label, figures)

    def _wanted(self, kind: str) -> int:
        """Return how many sets of a kind there would be, were none missing."""
        return len(self.first.of_kind(kind)) + sum(kind in ("all", kind_of(name)) for name in self.first.missing)

    def _mean_name(self, kind: str) -> str:
        found, wanted = len(self.first.of_kind(kind)), self._wanted(kind)
        number = f"{found}" if found == wanted else f"{found} of {wanted}"
        return f"mean of {number} {kind}" if kind != "all" else f"mean of {number} sets"

    def _cell(self, setting: Setting | None, metric: str, names: Sequence[str]) -> Cell | None:
        """Return the published figure of a set, or its mean over several, if it is known of all.

        Over the sets that we have, since a mean over other ones would be no comparison. Cells are rounded, so it may
        differ from a published mean in the second decimal.
        """
        cells = [None if self.published is None else self.published.cell(setting, metric, name) for name in names]
        known = [cell for cell in cells if cell is not None]
        if len(known) < len(names):
            return None
        return known[0] if len(known) == 1 else Cell(statistics.fmean(cell.mean for cell in known), None)

    def _count(self, name: str) -> int | None:
        return None if self.published is None else self.published.image_count(name)


def _by_score(results: Sequence[Sequence[InDomain | OutOfDistribution]]) -> dict[str, Figure]:
    """Return the mean AUC of every score that all OOD sets of all seeds know.

    No score is the best for all sets, and the paper's alone would hide it.
    """
    areas = [[each.by_score for each in own if isinstance(each, OutOfDistribution)] for own in results]
    return {
        f"auc_{score}": Figure(estimate([statistics.fmean(known[score].auc for known in own) for own in areas]), None)
        for score in (areas[0][0] if areas[0] else ())
        if all(score in known for own in areas for known in own)
    }


def _is_common(name: str, evaluations: Sequence[Evaluation]) -> bool:
    """Say whether all saw the same images of a set, as far as counts and, where they are known, hashes tell."""
    results = [result for evaluation in evaluations for result in evaluation.ood if result.name == name]
    hashes = {result.content for result in results if result.content}
    return len(results) == len(evaluations) and len({result.images for result in results}) == 1 and len(hashes) < 2


def _told(evaluation: Evaluation, own_scores: bool) -> str:
    """Return what must be the same for all: the score, sets with their counts, and sets that are missing."""
    sets = (f"{result.name} ({result.images:,})" for result in evaluation.sets)
    return ", ".join([*([] if own_scores else [evaluation.score]), *sets, *evaluation.missing])


def _notes(comparison: Comparison, groups: Mapping[str, Sequence[RunFacts]]) -> list[str]:
    """Return what a reader must know of how the methods were trained and predict, and of figures that say nothing."""
    first = {label: runs[0] for label, runs in groups.items()}
    compared = comparison.beside_published
    trained = {label: facts.training_note for label, facts in first.items()}
    otherwise = {
        label: comparison.published.departures(facts) if comparison.published and label in compared else ""
        for label, facts in first.items()
    }
    predicted = {label: max(facts.prediction_note for facts in runs) for label, runs in groups.items()}  # of any run
    others = [note for texts in (trained, otherwise, predicted) for note in _said_once(texts)]
    return [*others, *without_information(comparison.methods), *members_alone(comparison.methods)]


def without_information(methods: Sequence[Method]) -> list[str]:
    """Return notes on mutual information of one member, which tells nothing apart."""
    useless = {method.label: any(each.says_nothing for each in method.evaluations) for method in methods}
    return _said_once({label: ONE_MEMBER if nothing else "" for label, nothing in useless.items()})


def members_alone(methods: Sequence[Method]) -> list[str]:
    """Return notes on how accurate members are by themselves: an ensemble can hide one that has learnt nothing."""
    return _said_once({method.label: _alone(method) for method in methods})


def _alone(method: Method) -> str:
    known = [evaluation.in_domain.member_accuracies for evaluation in method.evaluations]
    if not all(known):
        return ""
    low, high = (f"{end(share for shares in known for share in shares):.2%}" for end in (min, max))
    return f"members alone are right on {low}" + (f" to {high}" if high != low else "")


def _said_once(texts: Mapping[str, str]) -> list[str]:
    """Return texts without a name where they are the same for all methods, else each with the method's.

    >>> _said_once({"a": "x", "b": "x"}), _said_once({"a": "x", "b": ""})
    (['x'], ['a: x'])
    """
    if len(set(texts.values())) == 1:
        return [text for text in dict.fromkeys(texts.values()) if text]
    return [f"{label}: {text}" for label, text in texts.items() if text]
