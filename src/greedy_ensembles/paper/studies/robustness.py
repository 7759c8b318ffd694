"""Accuracy and NLL on corrupted images, CIFAR-10-C, by severity; the runs are those of `cifar10`."""

from greedy_ensembles.paper.study import SIZE, Section, Study, chosen, pair

STUDY = Study(
    "robustness",
    "Corrupted images",
    "Figure of robustness",
    tuple(
        Section(f"{model}, M = {SIZE}", pair("cifar10", model, SIZE, chosen(model, "cifar10")))
        for model in ("PreResNet164", "VGG16BN")
    ),
    evaluated=False,
    corruptions=True,
)
