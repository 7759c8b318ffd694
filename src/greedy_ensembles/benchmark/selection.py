"""The choice of lambda_M: the largest that does not harm the predictions within the domain.

The paper's rule, and one of our own. A strength does no harm where the interval of one standard error about its mean
reaches that of Deep Ensembles, or is better; and where no member is clearly below those of Deep Ensembles, which the
mean of an ensemble hides. No OOD data have a say: which lambda_M finds them best cannot be known beforehand. Where Deep
Ensembles themselves have learnt next to nothing, nothing is chosen.

It is chosen on the examples that each run held out of its training data. Which these were follows from the labels, the
share and the seed; that the data are the same, from their hash in run.json. Each member's best epoch was chosen on
these examples as well, so figures on them are a little better than on new ones. That holds for all strengths alike, and
for Deep Ensembles.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain, estimate, judge
from greedy_ensembles.benchmark.runs import BASELINE, RunFacts, group
from greedy_ensembles.benchmark.stored_runs import Predict, facts_of, finished_run
from greedy_ensembles.checks import check_choice, check_number
from greedy_ensembles.data import SETS, ImageSet, LabelledSet, TableSet, load
from greedy_ensembles.engines.execution import as_device
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.runs.configuration import differences
from greedy_ensembles.runs.notes import clearly_below
from greedy_ensembles.saving import HELD_OUT, VALIDATION, read_held_out
from greedy_ensembles.sweeps.executor import Executor, Hear, Here, Job
from greedy_ensembles.training.validate import as_examples, split

#: By what harm is measured: 1 where a higher figure is better, -1 where a lower one is.
CRITERIA = {"accuracy": 1, "nll": -1, "ace": -1}
SPLITS = ("validation", "test")
NO_TEST = "test examples: lambda_M is chosen on them, so that figures on them are no test of the choice"
#: How much of the way from the share of the most frequent class to 1 Deep Ensembles must have gone.
LEAST_LEARNT = 0.15
#: What runs with a lambda_M may differ in; and what they may differ in from those without, which draw no p*.
_STRENGTH = {"method.strength"}
_OF_P_STAR = {f"recipe.weighting_{name}" for name in ("batch_size", "statistics", "samples")}
_COUPLING = {"method", "weighting", "distance", *_OF_P_STAR}


@dataclass(frozen=True)
class Trial:
    """In-domain figures of one strength, or of Deep Ensembles where it is None."""

    strength: float | None
    accuracy: Estimate  #: from 0 to 1
    nll: Estimate  #: negative log-likelihood, in nats
    ace: Estimate  #: adaptive calibration error, from 0 to 1
    _: KW_ONLY
    members: tuple[tuple[float, ...], ...] = ()  #: accuracies of the members of each seed, where they are known
    examples: int = 0  #: that each of these was measured on
    chance: float = 0.0  #: the share of the most frequent class among them

    def __post_init__(self) -> None:
        if self.strength is not None:
            check_number("strength", self.strength, least=0)
        for name, figure in (("accuracy", self.accuracy), ("ace", self.ace)):
            if not 0 <= figure.mean <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not per cent; got {figure.mean:g}")

    @classmethod
    def of(cls, strength: float | None, results: Sequence[InDomain], labels: Sequence[np.ndarray]) -> "Trial":
        """Put the results of several seeds together.

        Args:
            strength: lambda_M; None for Deep Ensembles.
            results: of each seed.
            labels: of the examples that each of these was found on, as many as there are seeds.
        """
        figures = (estimate([getattr(result, name) for result in results]) for name in CRITERIA)
        members = tuple(result.member_accuracies for result in results)
        chance = max(float(np.bincount(own).max() / len(own)) for own in labels)
        return cls(strength, *figures, members=members, examples=min(map(len, labels)), chance=chance)

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return BASELINE if self.strength is None else f"lambda_M = {self.strength:g}"


@dataclass(frozen=True)
class Selection:
    """What was chosen, and out of what."""

    by: str
    deep: Trial  #: Deep Ensembles, the reference
    trials: tuple[Trial, ...]  #: in order of their strength
    harms: dict[float, str]  #: why a strength was not taken, of those that do harm
    failure: str = ""  #: why nothing can be chosen at all
    #: By strength, None being Deep Ensembles: those of all seeds. Of runs that lie on disk, empty.
    ensembles: dict[float | None, list[Ensemble]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def harmless(self) -> tuple[float, ...]:
        """The strengths that do no harm."""
        strengths = (trial.strength for trial in self.trials)
        return () if self.failure else tuple(s for s in strengths if s is not None and s not in self.harms)

    @property
    def strength(self) -> float | None:
        """The largest of these; None where all do harm."""
        return max(self.harmless, default=None)

    @property
    def verdict(self) -> str:
        """What was chosen, and why."""
        name = {"accuracy": "accuracy", "nll": "NLL", "ace": "ACE"}[self.by]
        rule = f"its {name} is as good as that of {BASELINE}, each given one standard error, and no member is broken"
        if self.failure:
            return f"Nothing is chosen: {self.failure}."
        told = "".join(f" lambda_M = {strength:g} does harm: {why}." for strength, why in self.harms.items() if why)
        if self.strength is None:
            none = f"No lambda_M that was tried does no harm (that is: {rule}). Take {BASELINE}, or try smaller ones."
            return none + told
        text = f"Chosen: lambda_M = {self.strength:g}, the largest that does no harm ({rule})."
        if self.strength > max(self.harms, default=0.0):  # which may name strengths without figures, that diverged
            text += " It is the largest that was tried; a larger one may do as well."
        return text + told

    def __str__(self) -> str:
        lines = [f"{'lambda_M':>14} {'accuracy':>16} {'NLL':>16} {'ACE':>16}  harms"]
        for trial in (self.deep, *self.trials):
            figures = (getattr(trial, name) for name in CRITERIA)
            shown = " ".join(f"{figure.mean:>8.4f} ± {figure.error:.3f}" for figure in figures)
            lines.append(f"{trial.name.removeprefix('lambda_M = '):>14} {shown}  {self.harm_of(trial)}".rstrip())
        return "\n".join([*lines, self.verdict])

    def harm_of(self, trial: Trial) -> str:
        """Return yes or no for a strength, and nothing where it is not judged."""
        if self.failure or trial.strength is None:
            return ""
        return "yes" if trial.strength in self.harms else "no"


def choose(trials: Sequence[Trial], by: str = "accuracy") -> Selection:
    """Choose lambda_M among trials, one of which is of Deep Ensembles, by accuracy, nll or ace.

    >>> level, calm = Estimate(0.2, 0.1, 3), Estimate(0.1, 0.0, 3)
    >>> accuracies = {None: 0.90, 1.0: 0.91, 3.0: 0.88, 5.0: 0.85}
    >>> trials = [Trial(strength, Estimate(mean, 0.01, 3), level, calm) for strength, mean in accuracies.items()]
    >>> choose(trials).strength  # .88 + .01 reaches .90 - .01, and .85 + .01 does not
    3.0
    """
    check_choice("by", by, CRITERIA)
    strengths = [trial.strength for trial in trials]
    if strengths.count(None) != 1 or len(set(strengths)) < len(strengths) or len(strengths) < 2:
        raise ValueError(f"trials must be of {BASELINE} (None), once, and of other strengths; got {strengths}")
    for trial in trials:
        figure: Estimate = getattr(trial, by)
        if figure.seeds < 2:
            raise ValueError(f"{trial.name} has {figure.seeds} seed; a standard error needs at least 2")
    baseline = trials[strengths.index(None)]
    tried = {trial.strength: trial for trial in trials if trial.strength is not None}
    ordered = tuple(tried[strength] for strength in sorted(tried))
    broken = {strength: broken_member(trial, baseline) for strength, trial in sorted(tried.items())}
    harms = {s: why for s, why in broken.items() if why or not does_no_harm(tried[s], baseline, by)}
    return Selection(by, baseline, ordered, harms, _failure(baseline))


def does_no_harm(trial: Trial, baseline: Trial, by: str) -> bool:
    """Say whether a trial reaches Deep Ensembles, each given one standard error."""
    ours, reference, sign = getattr(trial, by), getattr(baseline, by), CRITERIA[by]
    return bool(sign * ours.mean + ours.error >= sign * reference.mean - reference.error)


def broken_member(trial: Trial, baseline: Trial) -> str:
    """Return which member of a trial is clearly below the median member of Deep Ensembles, or nothing."""
    ours = [(accuracy, seed, k) for seed, own in enumerate(trial.members, 1) for k, accuracy in enumerate(own, 1)]
    theirs = [accuracy for own in baseline.members for accuracy in own]
    if not ours or not theirs:
        return ""
    (worst, seed, number), median = min(ours), statistics.median(theirs)
    if not clearly_below(worst, median, min(trial.examples, baseline.examples), len(ours)):
        return ""
    return f"member {number} of repetition {seed} is right on {worst:.2%}, and those of {BASELINE} on {median:.2%}"


def _failure(baseline: Trial) -> str:
    """Return why Deep Ensembles are no measure, or nothing."""
    accuracy, chance = baseline.accuracy.mean, baseline.chance
    if not baseline.examples or accuracy - chance >= LEAST_LEARNT * (1 - chance):
        return ""
    return (
        f"{BASELINE} are right on {accuracy:.2%}, and the most frequent class alone would be on {chance:.2%}. They "
        "learnt too little for harm to be seen; train longer, or with another lr"
    )


def training_images(facts: RunFacts, root: str | Path | None = None) -> ImageSet:
    """Return the images that a run was trained on, the held-out ones among them, or refuse other ones."""
    known = facts.information["data"]
    images, count = load(facts.dataset, "train", root).replace(note=known["note"]), int(known["images"])
    if count < len(images):
        images = images.take(np.arange(count))
    if as_examples(images).digest() != facts.configuration["data"]:
        raise ValueError(
            f"{facts.source} was trained on other images than those of {images.source} (their hashes differ), so what "
            "it held out cannot be known; name the data folder that it was trained from"
        )
    return images


def held_out(facts: RunFacts, images: ImageSet) -> ImageSet:
    """Return those of its training images that a run held out."""
    share = facts.configuration["validation"]
    if not share or images.labels is None:
        raise ValueError(f"{facts.source} held out no validation images; there is nothing to choose lambda_M on")
    if isinstance(share, str):
        raise ValueError(f"{facts.source} had validation data of its own, which it does not keep; name the images")
    _, indices = split(torch.from_numpy(images.labels), share, facts.seed)
    return images.take(indices.numpy()).replace(name=f"{images.name}, held out")


def _kept(facts: RunFacts, split: str) -> ImageSet | TableSet:
    """Return what a run on data of one's own keeps of it."""
    found = read_held_out(Path(facts.source), HELD_OUT if split == "test" else VALIDATION)
    if found is None:
        raise ValueError(
            f"{facts.source} keeps no {split} part of what it was trained on; `greedy-ensembles train` keeps it, and "
            "ge.select chooses lambda_M for any data, in Python"
        )
    return found.with_note(NO_TEST) if split == "test" else found


def try_strengths(
    folders: Sequence[Path],
    predict: Predict,
    *,
    split: str = "validation",
    make_model: ModelFactory | None = None,
    device: torch.device | str | None = "cpu",
    root: str | Path | None = None,
    executor: Executor | None = None,
    hear: Hear = lambda run, event: None,
) -> tuple[list[Trial], InDomain, list[RunFacts]]:
    """Return the in-domain figures of each strength over its seeds, those of one run, for the set, and all runs.

    Args:
        folders: runs that differ in lambda_M and seed alone, with Deep Ensembles among them, and two seeds of each.
        predict: from an ensemble, an image set and a run's folder to predictions.
        split: "validation", what each run held out, or "test".
        make_model: of runs with a model of one's own.
        device: where the members go; None: to a GPU where there is one, where a run is predicted.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        executor: who predicts; None: this process.
        hear: called with the name of a run once it is predicted, and None.
    """
    check_choice("split", split, SPLITS)
    facts = [facts_of(finished_run(folder, make_model)) for folder in folders]
    groups = list(group(facts).values())
    check_strength_alone_differs(groups)
    images: dict[str, ImageSet | TableSet]
    if facts[0].dataset not in SETS:
        images = {run.source: _kept(run, split) for run in facts}
    elif split == "test":
        test = load(facts[0].dataset, "test", root).with_note(NO_TEST).with_note(facts[0].training_note)
        images = {run.source: test for run in facts}
    else:
        every = training_images(facts[0], root)
        images = {run.source: held_out(run, every) for run in facts}
    jobs: dict[str, Job] = {
        source: partial(_judge, Path(source).absolute(), predict, own, make_model, device)
        for source, own in images.items()
    }
    results: dict[str, InDomain] = (executor or Here()).run(jobs, hear)
    trials = [
        Trial.of(
            own[0].strength,
            [results[run.source] for run in own],
            [np.asarray(images[run.source].labels) for run in own],
        )
        for own in groups
    ]
    return trials, results[facts[0].source], [run for repetitions in groups for run in repetitions]


def _judge(
    folder: Path,
    predict: Predict,
    images: LabelledSet,
    make_model: ModelFactory | None,
    device: torch.device | str | None,
    tell: Callable[[None], None],
) -> InDomain:
    """Judge one run, where that is done."""
    ensemble = finished_run(folder, make_model, as_device(device)).ensemble
    found = judge(predict(ensemble, images, folder), []).in_domain
    tell(None)
    return found


def check_strength_alone_differs(groups: Sequence[Sequence[RunFacts]]) -> None:
    """Raise ValueError unless groups differ in lambda_M alone, have Deep Ensembles among them, and two seeds each."""
    baseline = [runs[0] for runs in groups if runs[0].is_baseline]
    others = [runs[0] for runs in groups if not runs[0].is_baseline]
    if not baseline or not others:
        lacking = "any lambda_M, to choose from" if baseline else f"{BASELINE}, to compare with"
        train = "--strength" if baseline else "--method deep"
        raise ValueError(f"among the runs there are none of {lacking}; `greedy-ensembles train` with {train} makes one")
    for run in others:
        if run.strength is None:
            raise ValueError(f"{run.source} is of {run.method}, which has no lambda_M to choose; leave it out")
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
