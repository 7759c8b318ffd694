"""Small networks: PreResNet20 on CIFAR, M = 11, where the paper sees no gain, and divergence at a high lambda_M.

The paper does not say which lambda_M it chose, only that it is smaller than PreResNet164's (3 on CIFAR-10); ours is 1.
"""

from greedy_ensembles.paper.study import GRID, SIZE, Case, Section, Study, pair

MODEL = "PreResNet20"
STRENGTH = 1.0
CURVE = (3.0, 5.0, 7.0, 10.0)

STUDY = Study(
    "capacity",
    "Small networks",
    "table of PreResNet20",
    (
        Section("CIFAR-10", pair("cifar10", MODEL, SIZE, STRENGTH)),
        Section("CIFAR-100", pair("cifar100", MODEL, SIZE, STRENGTH)),
        Section(
            "CIFAR-10, high lambda_M",
            (
                *pair("cifar10", MODEL, SIZE, STRENGTH),
                *(Case("cifar10", MODEL, SIZE, strength) for strength in CURVE),
            ),
            curve=True,
        ),
    ),
    grid=GRID,
    remarks=("The paper does not say which lambda_M it chose here, so its figures stand beside any.",),
)
