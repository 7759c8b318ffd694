"""The choice of lambda_M: the largest that does not harm the predictions within the domain.

The paper's rule. A strength does no harm where the interval of one standard error about its mean reaches that of Deep
Ensembles, or is better. No OOD data have a say: which lambda_M finds them best cannot be known beforehand.

It is chosen on the images that each run held out of its training data. Which these were follows from the labels, the
share and the seed; that the data are the same, from their hash in run.json. Each member's best epoch was chosen on
these images as well, so figures on them are a little better than on new ones. That holds for all strengths alike, and
for Deep Ensembles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain, estimate, judge
from greedy_ensembles.benchmark.runs import BASELINE, RunFacts, group
from greedy_ensembles.benchmark.stored_runs import Predict, facts_of, finished_run
from greedy_ensembles.checks import check_choice, check_number
from greedy_ensembles.data import ImageSet, load
from greedy_ensembles.ensemble import ModelFactory
from greedy_ensembles.runs.configuration import differences
from greedy_ensembles.training.examples import as_examples, split

#: By what harm is measured: 1 where a higher figure is better, -1 where a lower one is.
CRITERIA = {"accuracy": 1, "nll": -1, "ace": -1}
SPLITS = ("validation", "test")
NO_TEST = "test images: lambda_M is chosen on them, so that figures on them are no test of the choice"
#: What runs with a lambda_M may differ in; and what they may differ in from those without.
_STRENGTH = {"method.strength"}
_COUPLING = {"method", "weighting", "distance"}


@dataclass(frozen=True)
class Trial:
    """In-domain figures of one strength, or of Deep Ensembles where it is None."""

    strength: float | None
    accuracy: Estimate  #: from 0 to 1
    nll: Estimate  #: negative log-likelihood, in nats
    ace: Estimate  #: adaptive calibration error, from 0 to 1

    def __post_init__(self) -> None:
        if self.strength is not None:
            check_number("strength", self.strength, least=0)
        for name, figure in (("accuracy", self.accuracy), ("ace", self.ace)):
            if not 0 <= figure.mean <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not per cent; got {figure.mean:g}")


@dataclass(frozen=True)
class Selection:
    """What was chosen, and out of what."""

    by: str
    deep: Trial  #: Deep Ensembles, the reference
    trials: tuple[Trial, ...]  #: in order of their strength
    harmless: tuple[float, ...]  #: the strengths that do no harm
    chosen: float | None  #: the largest of these; None where all do harm


def select(trials: Sequence[Trial], by: str = "accuracy") -> Selection:
    """Choose lambda_M among trials, one of which is of Deep Ensembles, by accuracy, nll or ace.

    >>> level, calm = Estimate(0.2, 0.1, 3), Estimate(0.1, 0.0, 3)
    >>> accuracies = {None: 0.90, 1.0: 0.91, 3.0: 0.88, 5.0: 0.85}
    >>> trials = [Trial(strength, Estimate(mean, 0.01, 3), level, calm) for strength, mean in accuracies.items()]
    >>> select(trials).chosen  # .88 + .01 reaches .90 - .01, and .85 + .01 does not
    3.0
    """
    check_choice("by", by, CRITERIA)
    strengths = [trial.strength for trial in trials]
    if strengths.count(None) != 1 or len(set(strengths)) < len(strengths) or len(strengths) < 2:
        raise ValueError(f"trials must be of {BASELINE} (None), once, and of other strengths; got {strengths}")
    for trial in trials:
        figure: Estimate = getattr(trial, by)
        if figure.seeds < 2:
            name = BASELINE if trial.strength is None else f"lambda_M = {trial.strength:g}"
            raise ValueError(f"{name} has {figure.seeds} seed; a standard error needs at least 2")
    baseline = trials[strengths.index(None)]
    tried = {trial.strength: trial for trial in trials if trial.strength is not None}
    harmless = [strength for strength in sorted(tried) if does_no_harm(tried[strength], baseline, by)]
    ordered = tuple(tried[strength] for strength in sorted(tried))
    return Selection(by, baseline, ordered, tuple(harmless), max(harmless, default=None))


def does_no_harm(trial: Trial, baseline: Trial, by: str) -> bool:
    """Say whether a trial reaches Deep Ensembles, each given one standard error."""
    ours, reference, sign = getattr(trial, by), getattr(baseline, by), CRITERIA[by]
    return bool(sign * ours.mean + ours.error >= sign * reference.mean - reference.error)


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

    Args:
        folders: runs that differ in lambda_M and seed alone, with Deep Ensembles among them, and two seeds of each.
        predict: from an ensemble, an image set and a run's folder to predictions.
        on: "validation", what each run held out, or "test".
        make_model: of runs with a model of one's own.
        device: where the members go.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
    """
    check_choice("on", on, SPLITS)
    facts = [facts_of(finished_run(folder, make_model, device)) for folder in folders]
    groups = list(group(facts).values())
    check_strength_alone_differs(groups)
    if on == "test":
        every = load(facts[0].dataset, "test", root).with_note(NO_TEST).with_note(facts[0].training_note)
    else:
        every = training_images(facts[0], root)
    results: dict[str, InDomain] = {}
    for run in facts:
        images = every if on == "test" else held_out(run, every)
        ensemble = finished_run(Path(run.source), make_model, device).ensemble
        results[run.source] = judge(predict(ensemble, images, Path(run.source)), []).in_domain
    trials = []
    for repetitions in groups:
        values = [results[run.source] for run in repetitions]
        figures = {name: estimate([getattr(value, name) for value in values]) for name in CRITERIA}
        trials.append(Trial(repetitions[0].strength, **figures))
    return trials, results[facts[0].source], [run for repetitions in groups for run in repetitions]


def check_strength_alone_differs(groups: Sequence[Sequence[RunFacts]]) -> None:
    """Raise ValueError unless groups differ in lambda_M alone, have Deep Ensembles among them, and two seeds each."""
    baseline = [runs[0] for runs in groups if runs[0].is_baseline]
    others = [runs[0] for runs in groups if not runs[0].is_baseline]
    if not baseline or not others:
        lacking = "any lambda_M, to choose from" if baseline else f"{BASELINE}, to compare with"
        raise ValueError(f"among the runs there are none of {lacking}")
    for run in others[1:]:
        _check_alike(others[0], run, _STRENGTH)
    for run in (*baseline[1:], others[0]):
        _check_alike(baseline[0], run, _COUPLING)
    for runs in groups:
        if len(runs) < 2:
            raise ValueError(
                f"{runs[0].source} is the only run of its kind; a standard error needs two seeds or more of each, at "
                f"least {runs[0].size} apart"
            )


def _check_alike(one: RunFacts, other: RunFacts, but_for: set[str]) -> None:
    for where, ours, theirs in differences(one.but_the_seed, other.but_the_seed):
        if not {where, where.partition(".")[0]} & but_for:
            raise ValueError(
                f"runs must differ in lambda_M and seed alone, but {where} is {ours} in {one.source} "
                f"and {theirs} in {other.source}"
            )
