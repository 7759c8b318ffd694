"""Images of another set as p*: CIFAR-10 for CIFAR-100, as in the paper, and SVHN for CIFAR-10."""

from greedy_ensembles.paper.study import SIZE, Case, Section, Study, chosen, pair

MODEL = "PreResNet164"
STRENGTH = 1.0


def _section(title: str, dataset: str, model: str, images: str) -> Section:
    exposed = Case(dataset, model, SIZE, STRENGTH, images)
    return Section(title, (*pair(dataset, model, SIZE, chosen(model, dataset)), exposed))


STUDY = Study(
    "outlier-exposure",
    "Outlier exposure",
    "table of outlier exposure",
    (
        _section("CIFAR-100, p* = CIFAR-10", "cifar100", MODEL, "cifar10"),
        _section("CIFAR-10, p* = SVHN", "cifar10", "VGG16BN", "svhn/test"),
    ),
)
