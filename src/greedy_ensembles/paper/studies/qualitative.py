"""Curves, histograms of uncertainty and examples of images: PreResNet164 on CIFAR-100, and VGG16BN on CIFAR-10.

The runs are those of `cifar100` and `cifar10`.
"""

from greedy_ensembles.paper.study import SIZE, Section, Study, chosen, pair

STUDY = Study(
    "qualitative",
    "Curves, histograms and examples",
    "figures of curves and of examples",
    tuple(
        Section(f"{title}, {model}, M = {SIZE}", pair(dataset, model, SIZE, chosen(model, dataset)))
        for title, dataset, model in (("CIFAR-100", "cifar100", "PreResNet164"), ("CIFAR-10", "cifar10", "VGG16BN"))
    ),
    pictures=True,
)
