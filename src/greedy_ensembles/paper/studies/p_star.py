"""The study that the paper lacks: which p* makes the method work, and what lambda_M does on CIFAR-10.

MNIST's natural p* is CIFAR-10 in grey, which is none of its OOD sets. CIFAR-10's is the test split of SVHN, whose train
split is an OOD set: other images of one distribution, so that row is no fair one for it.
"""

from greedy_ensembles.paper.study import Case, Section, Study

SIZE, EPOCHS = 5, 30
WEIGHTINGS = ("none", "clip", "wrap", "uniform")
CURVE = (0.1, 1.0, 3.0, 5.0, 7.0, 10.0)
VGG = "VGG16BN"


def _cases(dataset: str, model: str, strength: float, images: str, epochs: int | None) -> tuple[Case, ...]:
    chosen = (Case(dataset, model, SIZE, strength, name, epochs) for name in (*WEIGHTINGS, images))
    return (Case(dataset, model, SIZE, epochs=epochs), *chosen)


STUDY = Study(
    "weighting",
    "The weighting distribution p*",
    "not in the paper",
    (
        Section("MNIST, PreResNet8, M = 5", _cases("mnist", "PreResNet8", 0.1, "cifar10", None)),
        Section("CIFAR-10, VGG16BN, M = 5, 30 epochs", _cases("cifar10", VGG, 3.0, "svhn/test", EPOCHS)),
        Section(
            "CIFAR-10, VGG16BN, M = 5, 30 epochs, lambda_M",
            (
                Case("cifar10", VGG, SIZE, epochs=EPOCHS),
                *(Case("cifar10", VGG, SIZE, strength, epochs=EPOCHS) for strength in CURVE),
            ),
            curve=True,
        ),
    ),
    seeds=1,
    grid=CURVE,
)
