"""SVHN as the in-domain set: three networks, M = 11, at the lambda_M that the paper chose for each."""

from greedy_ensembles.paper.studies.common import GRID, by_model
from greedy_ensembles.paper.study import Study

STUDY = Study(
    "svhn",
    "SVHN",
    "Table 1 and its detailed tables",
    by_model("svhn"),
    grid=GRID,
)
