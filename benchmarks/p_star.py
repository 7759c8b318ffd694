"""Which p* should images have by default? The rule of `paper/catalogue.py`, applied to what was measured.

    python benchmarks/p_star.py --out results/default-p-star-small
    python benchmarks/p_star.py --out results/p-star-search
    python benchmarks/p_star.py --out results/p-star-batch

Reads the records beside the page of a study. Needs neither data nor a GPU. Of `p-star-batch` it chooses the batch.
Of `p-star-search` it says what the rule would choose; the default is chosen by `default-p-star`.
"""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from result import facts, how, parser, publish

from greedy_ensembles import storage
from greedy_ensembles.benchmark import Estimate, estimate
from greedy_ensembles.paper.catalogue import BATCHES, STUDIES
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.paper.study import CHOOSING, Section
from greedy_ensembles.report.table import markdown_table

DEEP, LOSS = "deep", 0.002


class Seed(NamedTuple):
    """What one seed of a candidate has: on the choosing sets, on the other natural ones, and of held-out examples."""

    choosing: float
    other: float
    validation: float


Seeds = dict[str, list[Seed]]  # by candidate, in the order of what drawing them costs; and of Deep Ensembles


def measured(out: Path) -> Seeds:
    """Return for each candidate, and Deep Ensembles, one entry a seed, the mean over the study's sections that ran."""
    ran = [one for one in STUDIES[out.name].sections if (out / "records" / f"{one.stem}.json").exists()]
    sections = [whole(out, section) for section in ran]
    return {name: [mean(each) for each in zip(*(own[name] for own in sections), strict=True)] for name in sections[0]}


def of_section(out: Path, section: Section) -> Seeds:
    """Return the same of one section."""
    methods = json.loads((out / "records" / f"{section.stem}.json").read_text())["methods"]
    sources = {method["label"]: method["sources"] for method in methods}
    return {
        case.weighting if case.strength else DEEP: [
            seed(storage.read_json(out / "records" / f"{name}.json")) for name in sources.get(section.label(case), ())
        ]
        for case in section.cases
    }


def whole(out: Path, section: Section) -> Seeds:
    """Return the same, or end with what is missing."""
    seeds = of_section(out, section)
    there = {name: len(own) for name, own in seeds.items()}
    if len(set(there.values())) > 1:
        raise SystemExit(
            f"The rule cannot choose yet: seeds of {section.title} are {there}. First `greedy-ensembles reproduce "
            f"{out.name} --page {out}`, with the options that docs/reproduce.md gives it"
        )
    return seeds


def seed(record: dict[str, Any]) -> Seed:
    """Return the figures of one run."""
    choosing = CHOOSING[record["evaluation"]["in_domain"]["name"]]
    areas = {one["name"]: one["auc"] for one in record["evaluation"]["ood"]}
    natural = [one["name"] for one in record["evaluation"]["ood"] if one["kind"] == "natural"]
    return Seed(
        statistics.fmean(areas[name] for name in choosing),
        statistics.fmean(areas[name] for name in natural if name not in choosing),
        statistics.fmean(record["validation_accuracies"]),
    )


def mean(sections: tuple[Seed, ...]) -> Seed:
    """Return the mean over sections."""
    return Seed(*map(statistics.fmean, zip(*sections, strict=True)))


def choose(seeds: Seeds, errors: float) -> tuple[str, dict[str, Estimate]]:
    """Return the candidate that the rule chooses, and what each loses of Deep Ensembles' validation accuracy.

    Args:
        seeds: by candidate, in the order of what drawing them costs.
        errors: how many standard errors a loss must be larger than to count.
    """
    deep = seeds[DEEP]
    losses = {
        name: estimate([theirs.validation - ours.validation for theirs, ours in zip(deep, own, strict=True)])
        for name, own in seeds.items()
        if name != DEEP
    }
    left = {
        name: estimate([one.choosing for one in seeds[name]])
        for name, loss in losses.items()
        if not loss.mean > max(LOSS, errors * (loss.standard_error or 0.0))
    }
    return _cheapest(left, next(iter(losses))), losses


def choose_batch(seeds: dict[str, Seeds]) -> str:
    """Return the batch that the rule chooses: by batch, in order, what was measured."""
    best: dict[str, Estimate] = {}
    for batch, own in seeds.items():
        _, losses = choose(own, 0)
        left = [estimate([one.choosing for one in own[name]]) for name, loss in losses.items() if not loss.mean > LOSS]
        if left:
            best[batch] = max(left, key=lambda one: one.mean)
    return _cheapest(best, next(iter(seeds)))


def _cheapest(found: dict[str, Estimate], otherwise: str) -> str:
    """Return the first that is within one standard error of the best, or another where there is none."""
    if not found:
        return otherwise
    best = max(found.values(), key=lambda one: one.mean)
    least = best.mean - (best.standard_error or 0.0)
    return next(name for name, own in found.items() if own.mean >= least)


def page_of_batches(content: dict[str, Any]) -> Page:
    """Return what the rule looked at, and which batch it chose."""
    seeds = {batch: _read(own) for batch, own in content["seeds"].items()}
    chosen = choose_batch(seeds)
    rows = [
        [f"**{batch}**" if batch == chosen else batch, *row] for batch, own in seeds.items() for row in _rows(own, 0)
    ]
    text = markdown_table(["p* batch", *_HEAD], rows)
    return Page("The default p* for images: the rule applied to its batch", how(content, _LEGEND), text)


def page(content: dict[str, Any]) -> Page:
    """Return what the rule looked at, and what it chose."""
    rows = _rows(_read(content["seeds"]), content["errors"])
    return Page("The default p* for images: the rule applied", how(content, _LEGEND), markdown_table(_HEAD, rows))


_LEGEND = {"bold": "what the rule chooses", "±": "standard error over seeds"}
_HEAD = ["p*", "AUC, choosing sets", "AUC, other natural sets", "validation accuracy", "loss of it"]


def _read(seeds: dict[str, list[list[float]]]) -> Seeds:
    return {name: [Seed(*one) for one in own] for name, own in seeds.items()}


def _rows(seeds: Seeds, errors: float) -> list[list[str]]:
    chosen, losses = choose(seeds, errors)
    return [
        [
            f"**{name}**" if name == chosen else "Deep Ensembles" if name == DEEP else name,
            *(_shown(estimate(values)) for values in zip(*own, strict=True)),
            _shown(losses[name]) if name in losses else "",
        ]
        for name, own in seeds.items()
    ]


def _shown(one: Estimate) -> str:
    return f"{one.mean:.4f}" + ("" if one.standard_error is None else f" ± {one.standard_error:.4f}")


if __name__ == "__main__":
    options = parser(__doc__)
    options.set_defaults(out=Path("results/default-p-star-small"))
    out = options.parse_args().out
    content: dict[str, Any] = facts(f"p_star.py --out results/{out.name}")
    if out.name == "p-star-batch":
        sections = zip(BATCHES, STUDIES[out.name].sections, strict=True)
        content["seeds"] = {str(batch): whole(out, section) for batch, section in sections}
        publish(out, "choice", page_of_batches, content)
    else:
        content |= {"errors": 0 if out.name == "default-p-star" else 2, "seeds": measured(out)}
        publish(out, "choice", page, content)
