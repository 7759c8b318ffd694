"""MNIST, PreResNet8: five sizes at lambda_M = 0.1, and the curve over lambda_M for M = 5."""

from greedy_ensembles.paper.study import Case, Section, Study, Target, pair

SIZES = (3, 5, 7, 9, 15)
STRENGTH = 0.1
GRID = (0.0001, 0.001, 0.01, 0.1, 1.0, 7.0)
TARGETS = (
    Target("auc", ("uniform", "bernoulli", "gaussian", "dtd", "fashion_mnist"), least=0.99),
    Target("auc", ("omniglot",), least=0.97),
    Target("accuracy", least=0.994),
)

STUDY = Study(
    "mnist",
    "MNIST",
    "tables of MNIST in the domain and on OOD sets, curve of lambda_M",
    (
        *(Section(f"M = {size}", pair("mnist", "PreResNet8", size, STRENGTH), TARGETS) for size in SIZES),
        Section(
            "lambda_M, M = 5",
            (Case("mnist", "PreResNet8", 5), *(Case("mnist", "PreResNet8", 5, strength) for strength in GRID)),
            curve=True,
        ),
    ),
    seeds=3,
    grid=GRID,
)
