"""The choice of lambda_M: the largest that does not harm the predictions within the domain.

The paper's rule, and one of our own: no member may be clearly below those of Deep Ensembles, which the mean of an
ensemble hides. Where Deep Ensembles themselves have learnt next to nothing, nothing is chosen.

Each member's best epoch was chosen on the held-out examples as well, so figures on them are a little better than on new
ones. That holds for all strengths alike, and for Deep Ensembles.
"""

import statistics
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles.benchmark.evaluation import Estimate, InDomain, estimate
from greedy_ensembles.benchmark.judging import judge
from greedy_ensembles.benchmark.predictions import Predictions
from greedy_ensembles.benchmark.runs import BASELINE
from greedy_ensembles.checks import as_path, check_choice, check_count, check_kind, check_number
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.method import as_coupling
from greedy_ensembles.runs.notes import WeakMemberWarning, clearly_below
from greedy_ensembles.sweeps.executor import open_executor
from greedy_ensembles.sweeps.sweep import train_all
from greedy_ensembles.training.algorithm import NonFiniteLossError
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.validate import as_examples, split_off

#: By what harm is measured: 1 where a higher figure is better, -1 where a lower one is.
CRITERIA = {"accuracy": 1, "nll": -1, "ace": -1}
#: How much of the way from the share of the most frequent class to 1 Deep Ensembles must have gone.
LEAST_LEARNT = 0.15


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
    broken = {strength: _broken_member(tried[strength], baseline) for strength in sorted(tried)}
    harms = {s: why for s, why in broken.items() if why or not _does_no_harm(tried[s], baseline, by)}
    return Selection(by, baseline, ordered, harms, _failure(baseline))


def _does_no_harm(trial: Trial, baseline: Trial, by: str) -> bool:
    """Say whether a trial reaches Deep Ensembles, each given one standard error."""
    ours, reference, sign = getattr(trial, by), getattr(baseline, by), CRITERIA[by]
    return bool(sign * ours.mean + ours.error >= sign * reference.mean - reference.error)


def _broken_member(trial: Trial, baseline: Trial) -> str:
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


def select(
    make_model: ModelFactory,
    data: Any,
    *,
    size: int,
    strengths: Sequence[float] = (0.3, 1.0, 3.0, 10.0),
    seeds: int | Sequence[int] = 3,
    by: str = "accuracy",
    validation: Any = 0.1,
    run_dir: str | Path | None = None,
    on: str | None = None,
    cpus: int = 1,
    gpus: float | None = None,
    progress: bool = True,
    **options: Any,
) -> Selection:
    """Train Deep Ensembles and ensembles of several strengths, and choose the largest strength that does no harm.

    A strength does harm where its mean over the seeds, on the held-out examples, does not reach that of Deep
    Ensembles, each given one standard error, or where a member is clearly below those of Deep Ensembles. OOD data
    have no say. It takes ``(len(strengths) + 1) * seeds`` trainings.

    Args:
        make_model: builds a new ``nn.Module`` at every call, as in `ge.fit`.
        data: as in `ge.fit`.
        size: M, the number of members, two at least.
        strengths: the values of lambda_M to try.
        seeds: how many repetitions, or their seeds, which must be at least `size` apart.
        by: what must not be harmed: "accuracy", "nll" or "ace".
        validation: the share of the examples that is held out, another one for each seed, or data of its own.
        run_dir: a folder in which each training has its own; what is found there is resumed.
        on: None: here, one training after another; or "processes", "ray" or an address, as in `ge.sweep`.
        cpus: how many cores a training needs, as in `ge.sweep`.
        gpus: how many GPUs, or what share of one, as in `ge.sweep`.
        progress: whether to show a progress bar for each training.
        options: other arguments of `ge.fit`, such as `recipe`, `weighting` or `schedule`, the same for all.

    Returns:
        What was chosen: ``.strength`` (None where all do harm), ``.trials`` with the figures of each strength,
        ``.verdict``, and ``.ensembles``, a list over seeds for each strength and, under None, for Deep Ensembles.
        Printed, it is a table.

    Raises:
        ValueError, TypeError: an argument will not do; nothing was trained.

    >>> import greedy_ensembles as ge, torch
    >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> recipe = ge.Recipe(epochs=5, batch_size=32)
    >>> found = ge.select(lambda: ge.models.MLP(2, (16,)), (x, (x[:, 0] > 0).long()), size=2, strengths=[1.0],
    ...                   seeds=2, recipe=recipe, progress=False, device="cpu")
    >>> found.strength, len(found.ensembles[1.0])
    (1.0, 2)
    """
    check_choice("by", by, CRITERIA)
    method = options.pop("method", "greedy")
    if as_coupling(method).sees == "none":  # whatever lambda_M is, its members are the same
        raise ValueError(f"method={method!r} has no lambda_M to choose, since members do not meet; ge.fit trains it")
    check_count("size", size, least=1)
    if size == 1:
        raise ValueError("size must be at least 2, got 1: one member meets no other, so there is no lambda_M to choose")
    tried, repeated = _checked_strengths(strengths), _checked_seeds(seeds, size)
    for name in ("seed", "strength", "earlier"):
        if name in options:
            raise TypeError(f"select has no argument {name}; it gives ge.fit its own, or none")
    check_choice("targets", options.get("targets", "classes"), ["classes"])  # what members are judged by is for these
    recipe = options.get("recipe") or Recipe()
    check_kind("recipe", recipe, Recipe, "a ge.Recipe")
    examples = as_examples(data, recipe=recipe)
    share = isinstance(validation, Real | str | None.__class__)
    apart = validation if share else as_examples(validation, "validation")
    held_out = {seed: split_off(examples, apart, seed)[1:] for seed in repeated}
    if not all(len(indices) for _, indices in held_out.values()):
        raise ValueError(f"validation={validation!r} holds out nothing, and lambda_M is chosen on held-out examples")
    options |= {"size": size, "validation": validation}
    runs: dict[str, dict[str, Any]] = {}
    for strength in (None, *tried):
        own = {**options, "method": method if strength else "deep", "strength": strength}
        if strength is None:  # members meet nowhere
            own.pop("weighting", None)
        runs |= {_name(strength, seed): {**own, "seed": seed} for seed in repeated}
    where = {"on": on, "cpus": cpus, "gpus": gpus, "device": options.get("device")}
    trained, diverged = _train(make_model, data, runs, run_dir, where, progress)
    labels = [among.labels[indices].numpy() for among, indices in held_out.values()]
    ensembles: dict[float | None, list[Ensemble]] = {}
    trials, harms = [], {}
    for strength in (None, *tried):
        names = [_name(strength, seed) for seed in repeated]
        if strength is not None and diverged & set(names):
            harms[strength] = "its training left the range of numbers"
            continue
        ensembles[strength] = [trained[name] for name in names]
        judged = zip(ensembles[strength], held_out.values(), strict=True)
        trials.append(Trial.of(strength, [_judge(own, *where) for own, where in judged], labels))
    found = choose(trials, by) if len(trials) > 1 else Selection(by, trials[0], (), {})
    return replace(found, harms={**found.harms, **harms}, ensembles=ensembles)


def _checked_strengths(strengths: Sequence[float]) -> list[float]:
    if isinstance(strengths, str) or not isinstance(strengths, Sequence | np.ndarray):
        raise TypeError(f"strengths must be a list of values of lambda_M, such as [1, 3, 10]; got {strengths!r}")
    for strength in strengths:
        check_number("strengths", strength, above=0)
    tried = sorted({float(strength) for strength in strengths})
    if not tried:
        raise ValueError(f"strengths must hold a value of lambda_M at least; {BASELINE} are trained in any case")
    if len(tried) < len(strengths):
        raise ValueError(f"strengths must differ, each is tried with every seed; got {list(strengths)}")
    return tried


def _checked_seeds(seeds: int | Sequence[int], size: int) -> list[int]:
    if isinstance(seeds, Sequence | np.ndarray):
        for seed in seeds:
            check_count("seeds", seed, least=0)
        repeated = sorted(map(int, seeds))
    else:
        check_count("seeds", seeds, least=1)
        repeated = [size * number for number in range(seeds)]
    if len(repeated) < 2:
        raise ValueError(f"seeds must be two or more, since a standard error needs them; got {seeds!r}")
    for one, other in pairwise(repeated):
        if other - one < size:
            raise ValueError(f"seeds must be at least {size} apart, or runs share members; got {one} and {other}")
    return repeated


def _name(strength: float | None, seed: int) -> str:
    return f"{'deep' if strength is None else f'lambda-{strength}'}-seed-{seed}"


def _train(
    make_model: ModelFactory,
    data: Any,
    runs: dict[str, dict[str, Any]],
    run_dir: str | Path | None,
    where: dict[str, Any],
    progress: bool,
) -> tuple[dict[str, Ensemble], set[str]]:
    """Train all ensembles; return those of a lambda_M that diverged by name alone, and raise any other error."""
    if where["on"] is not None and run_dir is None:
        raise ValueError(f"on={where['on']!r} needs run_dir, a folder for runs that all machines see")
    storage = None if run_dir is None else as_path("run_dir", run_dir).absolute()
    diverged: set[str] = set()

    def fail(name: str, error: Exception) -> None:
        if not isinstance(error, NonFiniteLossError) or runs[name]["strength"] is None:
            raise error
        diverged.add(name)

    with open_executor(**where, storage=storage) as executor, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "lambda-", WeakMemberWarning)  # what is chosen will have no weak member
        return train_all(make_model, data, runs, storage, executor, fail, progress), diverged


def _judge(ensemble: Ensemble, among: Examples, indices: Any) -> InDomain:
    log_probs = ensemble.predict_log_proba(among.inputs(indices)).cpu().numpy()
    return judge(Predictions("held-out examples", log_probs, among.labels[indices].numpy()), []).in_domain
