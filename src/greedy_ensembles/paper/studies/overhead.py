"""What the diversity term costs: seconds of training beside Deep Ensembles, in the same engine."""

from greedy_ensembles.paper.study import MODELS, SIZE, Section, Study, chosen, pair

EPOCHS = 3  # the first, which warms the engine up, is not counted

STUDY = Study(
    "overhead",
    "Overhead of training",
    "table of training times: 74 to 89 % more",
    tuple(
        Section(f"{model}, M = {SIZE}", pair("cifar10", model, SIZE, chosen(model, "cifar10"), EPOCHS))
        for model in MODELS
    ),
    seeds=1,
    evaluated=False,
)
