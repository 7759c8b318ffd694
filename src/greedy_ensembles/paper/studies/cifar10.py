"""CIFAR-10: three networks, M = 11, at the lambda_M that the paper chose for each."""

from greedy_ensembles.paper.study import GRID, Study, Target, by_model

TARGETS = {
    "VGG16BN": (
        Target("accuracy", least=0.943),
        Target("accuracy", gain=-0.002),
        Target("auc", ("uniform", "bernoulli"), least=0.995),
        Target("auc", gain=0.02),
    )
}

STUDY = Study(
    "cifar10",
    "CIFAR-10",
    "Table 1 and its detailed tables",
    by_model("cifar10", TARGETS),
    grid=GRID,
)
