"""Which p* `ge.fit` should take for images by default: a study whose rule was written down before it ran.

First p* batches of 8, 32 and 128 on CIFAR-10 with VGG16BN (`--weighting-batch`), then, with the batch that was chosen
there, the other sections. Candidates are judged by the AUC of mutual information on the choosing sets alone; the other
sets are reported as not chosen on.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from greedy_ensembles.benchmark.evaluation import Evaluation, estimate
from greedy_ensembles.paper.study import Case, Section, Study

SIZE, EPOCHS, STRENGTH = 5, 30, 1.0
#: In the order of what drawing them costs.
CANDIDATES = ("wrap", "half", "scramble")
BATCHES = (8, 32, 128)
NOISE = ("uniform", "bernoulli", "gaussian")
CHOOSING = {
    "cifar10": (*NOISE, "dtd", "svhn"),
    "svhn": (*NOISE, "dtd", "cifar10"),
    "mnist": (*NOISE, "dtd"),
}
#: The loss of validation accuracy against Deep Ensembles from which on a candidate is out.
HARM = 0.002


@dataclass(frozen=True)
class Candidate:
    """A p* with a batch of it: one figure a seed, and what it costs beside the others."""

    aucs: Sequence[float]  #: means over the choosing sets
    accuracies: Sequence[float]  #: on held-out training images
    cost: float


def choosing_auc(evaluation: Evaluation, dataset: str) -> float:
    """Return the mean AUC of one run on the choosing sets of its data set, all of which must be there."""
    found = {result.name: result.auc for result in evaluation.ood}
    return statistics.fmean(found[name] for name in CHOOSING[dataset])


def choose(candidates: Mapping[str, Candidate], baseline: Sequence[float]) -> str:
    """Return the candidate to take.

    Those that lose more than `HARM` of Deep Ensembles' validation accuracy are out. Of the others, the cheapest whose
    mean AUC is within one standard error of the best one's wins.
    """
    least = statistics.fmean(baseline) - HARM
    harmless = {name: one for name, one in candidates.items() if statistics.fmean(one.accuracies) >= least}
    if not harmless:
        raise ValueError(f"every candidate loses more than {HARM} of validation accuracy: {', '.join(candidates)}")
    figures = {name: estimate(one.aucs) for name, one in harmless.items()}
    best = max(figures.values(), key=lambda figure: figure.mean)
    close = [name for name, figure in figures.items() if figure.mean >= best.mean - best.error]
    return min(close, key=lambda name: harmless[name].cost)


def _section(title: str, dataset: str, model: str, epochs: int | None) -> Section:
    others = (Case(dataset, model, SIZE, STRENGTH, name, epochs) for name in CANDIDATES)
    return Section(title, (Case(dataset, model, SIZE, epochs=epochs), *others))


STUDY = Study(
    "default-p-star",
    "The default p* for images",
    "not in the paper",
    (
        _section("CIFAR-10, VGG16BN, M = 5, 30 epochs", "cifar10", "VGG16BN", EPOCHS),
        _section("MNIST, PreResNet8, M = 5", "mnist", "PreResNet8", None),
        _section("CIFAR-10, PreResNet20, M = 5, 30 epochs", "cifar10", "PreResNet20", EPOCHS),
        _section("SVHN, VGG16BN, M = 5, 30 epochs", "svhn", "VGG16BN", EPOCHS),
    ),
    seeds=3,
)
