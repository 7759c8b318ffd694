"""SVHN as the in-domain set: three networks, M = 11, at the lambda_M that the paper chose for each."""

from greedy_ensembles.paper.study import GRID, Study, by_model

STUDY = Study(
    "svhn",
    "SVHN",
    "Table 1 and its detailed tables",
    by_model("svhn"),
    grid=GRID,
)
