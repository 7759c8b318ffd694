"""The images that a run held out of its training data, found again, and figures on them for the choice of lambda_M.

Which images were held out follows from the labels, the share and the seed; that the data are the same, from their
hash in run.json. Each member's best epoch was chosen on these images as well, so figures on them are a little better
than on new ones. That holds for all strengths alike, and for Deep Ensembles.
"""

from collections.abc import Sequence
from pathlib import Path

import torch

from greedy_ensembles.benchmark.evaluation import InDomain, estimate, judge
from greedy_ensembles.benchmark.runs import RunFacts, group
from greedy_ensembles.benchmark.selection import CRITERIA, Trial
from greedy_ensembles.benchmark.sources import Predict, facts_of, open_run
from greedy_ensembles.checks import check_choice
from greedy_ensembles.data import ImageSet, load
from greedy_ensembles.ensemble import ModelFactory
from greedy_ensembles.training.configuration import differences
from greedy_ensembles.training.examples import as_examples
from greedy_ensembles.training.problem import split

SPLITS = ("validation", "test")
NO_TEST = "test images: lambda_M is chosen on them, so that figures on them are no test of the choice"
_NOT_OF_DEEP_ENSEMBLES = {"method", "strength", "weighting", "distance"}


def training_images(facts: RunFacts, root: str | Path | None = None) -> ImageSet:
    """Return the images that a run was trained on, the held-out ones among them, or refuse other ones."""
    known = facts.information["data"]
    images, count = load(facts.dataset, "train", root).replace(note=known["note"]), int(known["images"])
    if count < len(images) and images.labels is not None:
        images = images.replace(images=images.images[:count], labels=images.labels[:count])
    if as_examples(images).digest() != facts.configuration["data"]:
        raise ValueError(
            f"{facts.source} was trained on other images than those of {images.source} (their hashes differ), so what "
            "it held out cannot be known; name the data folder that it was trained from"
        )
    return images


def held_out(facts: RunFacts, images: ImageSet) -> ImageSet:
    """Return those of its training images that a run held out."""
    share, labels = facts.configuration["validation"], images.labels
    if not share or labels is None:
        raise ValueError(f"{facts.source} held out no validation images; there is nothing to choose lambda_M on")
    _, indices = split(torch.from_numpy(labels), share, facts.seed)
    part = images.replace(images=images.images[indices.numpy()], labels=labels[indices.numpy()])
    return part.replace(name=f"{images.name}, held out")


def try_strengths(
    folders: Sequence[Path],
    predict: Predict,
    *,
    on: str = "validation",
    make_model: ModelFactory | None = None,
    device: torch.device | str = "cpu",
    root: str | Path | None = None,
) -> tuple[list[Trial], InDomain, list[RunFacts]]:
    """Return the in-domain figures of each strength over its seeds, those of one run, for the set, and all runs.

    The runs must differ in lambda_M and seed alone, with Deep Ensembles among them; each needs two seeds or more.
    """
    check_choice("on", on, SPLITS)
    facts = [facts_of(open_run(folder, make_model, device)) for folder in folders]
    groups = list(group(facts).values())
    check_strength_alone_differs(groups)
    if on == "test":
        every = load(facts[0].dataset, "test", root).with_note(NO_TEST).with_note(facts[0].training_note)
    else:
        every = training_images(facts[0], root)
    results: dict[str, InDomain] = {}
    for run in facts:
        images = every if on == "test" else held_out(run, every)
        ensemble = open_run(Path(run.source), make_model, device).ensemble
        results[run.source] = judge(predict(ensemble, images, Path(run.source)), []).in_domain
    trials = []
    for repetitions in groups:
        values = [results[run.source] for run in repetitions]
        figures = {name: estimate([getattr(value, name) for value in values]) for name in CRITERIA}
        trials.append(Trial(repetitions[0].strength, **figures))
    return trials, results[facts[0].source], [run for repetitions in groups for run in repetitions]


def check_strength_alone_differs(groups: Sequence[Sequence[RunFacts]]) -> None:
    """Raise ValueError unless groups differ in lambda_M alone, have Deep Ensembles among them, and two seeds each."""
    deep = [runs[0] for runs in groups if runs[0].configuration["method"] == "deep"]
    others = [runs[0] for runs in groups if runs[0].configuration["method"] != "deep"]
    if not deep or not others:
        lacking = "Deep Ensembles, to compare with" if not deep else "any lambda_M, to choose from"
        raise ValueError(f"among the runs there are none of {lacking}")
    for run in others[1:]:
        _check_alike(others[0], run, {"strength"})
    for run in (*deep[1:], others[0]):
        _check_alike(deep[0], run, _NOT_OF_DEEP_ENSEMBLES)
    for runs in groups:
        if len(runs) < 2:
            raise ValueError(
                f"{runs[0].source} is the only run of its kind; a standard error needs two seeds or more of each, at "
                f"least {runs[0].size} apart"
            )


def _check_alike(one: RunFacts, other: RunFacts, but_for: set[str]) -> None:
    for where, ours, theirs in differences(one.but_the_seed, other.but_the_seed):
        if where.partition(".")[0] not in but_for:
            raise ValueError(
                f"runs must differ in lambda_M and seed alone, but {where} is {ours} in {one.source} "
                f"and {theirs} in {other.source}"
            )
