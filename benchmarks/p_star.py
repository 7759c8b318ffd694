"""Which p* should images have by default? The rule of `paper/studies/of_images.py`, applied to what was measured.

    python benchmarks/p_star.py --out results/default-p-star-small

Reads the records beside the page of a study. Needs neither data nor a GPU.
"""

import json
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from result import facts, parser, publish

from greedy_ensembles import storage
from greedy_ensembles.benchmark import Estimate, estimate
from greedy_ensembles.paper.pages import page_text
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.studies.of_images import CANDIDATES, CHOOSING
from greedy_ensembles.report.table import markdown_table

DEEP, LOSS = "deep", 0.002


class Seed(NamedTuple):
    """What one seed of a candidate has: on the choosing sets, on the other natural ones, and of held-out examples."""

    choosing: float
    other: float
    validation: float


def measured(out: Path) -> dict[str, list[Seed]]:
    """Return for each candidate, and Deep Ensembles, one entry a seed, the mean over the study's sections."""
    sections: dict[str, list[list[Seed]]] = {name: [] for name in (DEEP, *CANDIDATES)}
    for section in STUDIES[out.name].sections:
        methods = json.loads((out / "records" / f"{section.stem}.json").read_text())["methods"]
        sources = {method["label"]: method["sources"] for method in methods}
        for case in section.cases:
            records = [storage.read_json(out / "records" / f"{name}.json") for name in sources[section.label(case)]]
            sections[case.weighting if case.strength else DEEP].append([seed(record) for record in records])
    return {name: [mean(each) for each in zip(*own, strict=True)] for name, own in sections.items()}


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


def choose(seeds: dict[str, list[Seed]], errors: float) -> tuple[str, dict[str, Estimate]]:
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
    best = max(left.values(), key=lambda one: one.mean)
    least = best.mean - (best.standard_error or 0.0)
    return next(name for name, own in left.items() if own.mean >= least), losses


def page(content: dict[str, Any], reading: str = "") -> str:
    """Return what the rule looked at, and what it chose."""
    seeds = {name: [Seed(*one) for one in own] for name, own in content["seeds"].items()}
    chosen, losses = choose(seeds, content["errors"])
    rows = [
        [
            f"**{name}**" if name == chosen else "Deep Ensembles" if name == DEEP else name,
            *(_shown(estimate(values)) for values in zip(*own, strict=True)),
            _shown(losses[name]) if name in losses else "",
        ]
        for name, own in seeds.items()
    ]
    head = ["p*", "AUC, choosing sets", "AUC, other natural sets", "validation accuracy", "loss of it"]
    how = f"`{content['command']}`, {content['date']}. Bold: what the rule chooses. ±: standard error over seeds."
    return page_text("The default p* for images: the rule applied", reading, [how], markdown_table(head, rows))


def _shown(one: Estimate) -> str:
    return f"{one.mean:.4f}" + ("" if one.standard_error is None else f" ± {one.standard_error:.4f}")


if __name__ == "__main__":
    options = parser(__doc__)
    options.set_defaults(out=Path("results/default-p-star-small"))
    out = options.parse_args().out
    errors = 2 if out.name.endswith("-small") else 0
    content = {**facts(f"p_star.py --out results/{out.name}"), "errors": errors, "seeds": measured(out)}
    publish(out, "choice", page, content)
