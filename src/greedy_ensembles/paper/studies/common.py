"""What several studies have in common: the paper's networks, its grids of lambda_M, and pairs of methods."""

from collections.abc import Mapping

from greedy_ensembles.benchmark import paper
from greedy_ensembles.paper.study import Case, Section, Target

MODELS = ("PreResNet164", "VGG16BN", "WideResNet28x10")
SIZE = 11
GRID = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 7.0, 10.0)


def chosen(model: str, dataset: str) -> float:
    """Return the lambda_M that the paper chose for a network and a data set, M = 11."""
    name = {"cifar10": "C10", "cifar100": "C100", "svhn": "SVHN"}[dataset]
    rows = {(row["architecture"], row["dataset"], row["method"]): row for row in paper.table("in_domain")}
    return float(rows[model, name, "greedy"]["lambda_m"])


def pair(dataset: str, model: str, size: int, strength: float, epochs: int | None = None) -> tuple[Case, Case]:
    """Return Deep Ensembles and the greedy method on equal terms."""
    deep = Case(dataset, model, size, epochs=epochs)
    return deep, Case(dataset, model, size, strength, epochs=epochs)


def by_model(dataset: str, targets: Mapping[str, tuple[Target, ...]] | None = None) -> tuple[Section, ...]:
    """Return a section for each of the paper's networks: M = 11, Deep Ensembles and the lambda_M that it chose."""
    return tuple(
        Section(
            f"{model}, M = {SIZE}",
            pair(dataset, model, SIZE, chosen(model, dataset)),
            (targets or {}).get(model, ()),
        )
        for model in MODELS
    )
