"""CIFAR-100: three networks, M = 11, at the lambda_M that the paper chose for each."""

from greedy_ensembles.paper.study import GRID, Study, by_model

STUDY = Study(
    "cifar100",
    "CIFAR-100",
    "Table 1 and its detailed tables",
    by_model("cifar100"),
    grid=GRID,
)
