"""The choice of lambda_M: the largest that does not harm the predictions within the domain.

The paper's rule. A strength does no harm where the interval of one standard error about its mean reaches that of Deep
Ensembles, or is better. No OOD data have a say: which lambda_M finds them best cannot be known beforehand.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.checks import check_choice, check_number

#: By what harm is measured: 1 where a higher figure is better, -1 where a lower one is.
CRITERIA = {"accuracy": 1, "nll": -1, "ace": -1}


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
        for name, estimate in (("accuracy", self.accuracy), ("ace", self.ace)):
            if not 0 <= estimate.mean <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, not per cent; got {estimate.mean:g}")


@dataclass(frozen=True)
class Selection:
    """What was chosen, and out of what."""

    by: str
    deep: Trial  #: Deep Ensembles, the reference
    trials: tuple[Trial, ...]  #: in order of their strength
    harmless: tuple[float, ...]  #: the strengths that do no harm
    chosen: float | None  #: the largest of these; None where all do harm


def select(trials: Sequence[Trial], by: str = "accuracy") -> Selection:
    """Choose lambda_M among trials, one of which is of Deep Ensembles.

    by : accuracy (higher is better), nll or ace (lower is better).

    >>> level, calm = Estimate(0.2, 0.1, 3), Estimate(0.1, 0.0, 3)
    >>> accuracies = {None: 0.90, 1.0: 0.91, 3.0: 0.88, 5.0: 0.85}
    >>> trials = [Trial(strength, Estimate(mean, 0.01, 3), level, calm) for strength, mean in accuracies.items()]
    >>> select(trials).chosen  # .88 + .01 reaches .90 - .01, and .85 + .01 does not
    3.0
    """
    check_choice("by", by, CRITERIA)
    strengths = [trial.strength for trial in trials]
    if strengths.count(None) != 1 or len(set(strengths)) < len(strengths) or len(strengths) < 2:
        raise ValueError(f"trials must be of Deep Ensembles (None), once, and of other strengths; got {strengths}")
    for trial in trials:
        figure: Estimate = getattr(trial, by)
        if figure.seeds < 2:
            name = "Deep Ensembles" if trial.strength is None else f"lambda_M = {trial.strength:g}"
            raise ValueError(f"{name} has {figure.seeds} seed; a standard error needs at least 2")
    deep = trials[strengths.index(None)]
    tried = {trial.strength: trial for trial in trials if trial.strength is not None}
    harmless = [strength for strength in sorted(tried) if does_no_harm(tried[strength], deep, by)]
    ordered = tuple(tried[strength] for strength in sorted(tried))
    return Selection(by, deep, ordered, tuple(harmless), max(harmless, default=None))


def does_no_harm(trial: Trial, deep: Trial, by: str) -> bool:
    """Say whether a trial reaches Deep Ensembles, each given one standard error."""
    ours, reference, sign = getattr(trial, by), getattr(deep, by), CRITERIA[by]
    return bool(sign * ours.mean + ours.error >= sign * reference.mean - reference.error)
