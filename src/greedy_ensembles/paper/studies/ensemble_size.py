"""Small ensembles: PreResNet164 on CIFAR, M = 3, 5 and 7; the paper does not say which lambda_M it chose."""

from greedy_ensembles.paper.study import Section, Study, pair

MODEL = "PreResNet164"
SIZES = (3, 5, 7)
STRENGTH = 1.0
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}

STUDY = Study(
    "ensemble-size",
    "Small ensembles",
    "table of M = 3, 5 and 7",
    tuple(
        Section(f"{title}, M = {size}", pair(dataset, MODEL, size, STRENGTH))
        for dataset, title in TITLES.items()
        for size in SIZES
    ),
    grid=(0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0),
    remarks=("The paper does not say which lambda_M it chose here, so its figures stand beside any.",),
)
