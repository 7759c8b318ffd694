"""All studies. Those of image sets are here: the paper's, and some that it lacks, with what is trained for which table.

Most have three arms on one recipe: Deep Ensembles, the paper's settings, and ours (`study.OURS`), which differ in
lambda_M, p*, its batch and what it is normalised by, and the schedule. Of PreResNet20 and of M = 3, 5 and 7 the paper
does not say which lambda_M it chose; ours is 1. Of PreResNet20 it says that it is smaller than PreResNet164's (3 on
CIFAR-10), that nothing is gained, and that training diverges at a high one. In `weighting` CIFAR-10's natural p* is the
test split of SVHN, whose train split is an OOD set: other images of one distribution, so that row is no fair one for
it. MNIST's is CIFAR-10 in grey, which is none of its OOD sets. In `outlier-exposure` it is made of classes of Tiny
ImageNet that resemble none of CIFAR-10's, and Tiny ImageNet is not judged on. `robustness` and `qualitative` have runs
of `cifar10` and `cifar100`.

`default-p-star` asks which p* `ge.fit` should take for images. Its rule was written down before it ran
(`benchmarks/p_star.py` applies it). First `p-star-batch`: p* batches of 8, 32 and 128 on CIFAR-10 with VGG16BN; then,
with the batch that was chosen there (`--weighting-batch`), the sections of `default-p-star`; runs of the first of these
are there by then. Candidates that lose more than 0.002 of Deep Ensembles' validation accuracy are out. Of the others,
the one that is cheapest to draw wins whose mean AUC of mutual information on the choosing sets, over three seeds, is
within one standard error of the best one's; where all are out, wrapped noise stays. A batch is as good as its best
candidate that is not out; the smallest wins that is within one standard error of the best. Other sets are reported as
not chosen on.

`default-p-star-small` is what a CPU can do of it in an hour or two, and decides until the whole has run: PreResNet8,
M = 3, 10,000 training images of CIFAR-10 and of MNIST, p* batches of 32. Its rule, also written down before it ran: a
seed's figure is the mean AUC on the choosing sets, then the mean of the two sections. A candidate is out where members'
validation accuracy, of their kept epochs, is below Deep Ensembles' by more than 0.002 and by more than two standard
errors of the difference over seeds: 1,000 held-out images tell no less. Of the others the cheapest wins whose mean over
seeds is within one standard error of the best one's.

`p-star-search` looks for a p* of the training images alone that helps on natural images, first in that small setting,
which a CPU can train. What it finds is judged by the choosing sets (DTD, SVHN and noise) as above; the others, LSUN,
Places and Tiny ImageNet, are for reporting.
"""

from collections.abc import Mapping

from greedy_ensembles.paper import methods, published, two_moons
from greedy_ensembles.paper.images import SEARCHED, UNLIKE
from greedy_ensembles.paper.study import MODELS, NOISE, Case, Section, Study, Target

#: Ours: lambda_M and p*.
STRENGTH, WEIGHTING = 1.0, "scramble"

#: The paper's M, and the values of lambda_M that it tried.
SIZE = 11
GRID = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 3.0, 5.0, 7.0, 10.0)
MNIST_GRID = (0.0001, 0.001, 0.01, 0.1, 1.0, 7.0)
_TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "mnist": "MNIST"}
_UNNAMED = ("The paper does not say which lambda_M it chose here, so its figures stand beside any.",)
_MNIST_TARGETS = (
    Target("auc", (*NOISE, "dtd", "fashion_mnist"), least=0.99),
    Target("auc", ("omniglot",), least=0.97),
    Target("accuracy", least=0.994),
)
_OTHER = ("lsun", "places365", "tiny_imagenet")  # natural sets that nothing is chosen on
_VGG_TARGETS = (
    Target("accuracy", least=0.943),
    Target("accuracy", gain=-0.002),
    Target("nll", gain=-0.003),
    Target("auc", ("uniform", "bernoulli"), least=0.995),
    Target("auc", gain=0.02),
    Target("auc", ("svhn", "dtd", *_OTHER), gain=0.03, mean=True),
    Target("auc", _OTHER, gain=0.02, mean=True),
    Target("auc_predictive_entropy", _OTHER, gain=0.01, mean=True),
)


def chosen(model: str, dataset: str) -> float:
    """Return the lambda_M that the paper chose for a network and a data set, M = 11."""
    return published.strengths()[model, dataset, SIZE]


def pair(dataset: str, model: str, size: int, *strengths: float, epochs: int | None = None) -> tuple[Case, ...]:
    """Return Deep Ensembles and the greedy method on equal terms."""
    greedy = (Case(dataset, model, size, strength, epochs=epochs) for strength in strengths)
    return Case(dataset, model, size, epochs=epochs), *greedy


def three(dataset: str, model: str, size: int, *strengths: float, epochs: int | None = None) -> tuple[Case, ...]:
    """Return Deep Ensembles, the paper's settings, and ours."""
    ours = Case(dataset, model, size, STRENGTH, WEIGHTING, epochs, ours=True)
    return *pair(dataset, model, size, *strengths, epochs=epochs), ours


def as_published(dataset: str, model: str) -> tuple[Case, ...]:
    """Return the three at M = 11 and the lambda_M that the paper chose."""
    return three(dataset, model, SIZE, chosen(model, dataset))


def _by_model(dataset: str, targets: Mapping[str, tuple[Target, ...]] | None = None) -> Study:
    sections = (
        Section(f"{model}, M = {SIZE}", as_published(dataset, model), (targets or {}).get(model, ()))
        for model in MODELS
    )
    paper, radar = "Table 1 and its detailed tables", dataset == "cifar100"
    return Study(dataset, _TITLES[dataset], paper, tuple(sections), grid=GRID, radar=radar)


def _exposed(title: str, dataset: str, images: str) -> Section:
    """Return the three in a small setting, and ours with images as p*."""
    model, size, epochs = "VGG16BN", 5, 30
    exposed = Case(dataset, model, size, STRENGTH, images, epochs, ours=True)
    others = three(dataset, model, size, chosen(model, dataset), epochs=epochs)
    return Section(f"{title}, {model}, M = {size}, {epochs} epochs", (*others, exposed))


def _weightings(
    dataset: str,
    model: str,
    strength: float,
    names: tuple[str, ...],
    epochs: int | None = None,
    size: int = 5,
    images: int | None = None,
    batch: int | None = None,
) -> Section:
    """Return Deep Ensembles beside the method with several p*."""
    title = f"{_TITLES[dataset]}, {model}, M = {size}" + (f", {epochs} epochs" if epochs else "")
    title += "" if batch is None else f", p* batch {batch}"
    others = (Case(dataset, model, size, strength, name, epochs, images=images, batch=batch) for name in names)
    return Section(title, (Case(dataset, model, size, epochs=epochs, images=images), *others))


_NOISES = ("none", "clip", "wrap", "uniform")
CANDIDATES = ("wrap", "half", "scramble")  # in the order of what drawing them costs
BATCHES = (8, 32, 128)
_CURVE = (0.1, 1.0, 3.0, 5.0, 7.0, 10.0)

_OF_IMAGES = (
    Study(
        "mnist",
        "MNIST",
        "tables of MNIST in the domain and on OOD sets, curve of lambda_M",
        (
            *(Section(f"M = {m}", three("mnist", "PreResNet8", m, 0.1), _MNIST_TARGETS) for m in (3, 5, 7, 9, 15)),
            *(
                Section(f"lambda_M, M = {m}", pair("mnist", "PreResNet8", m, *MNIST_GRID), curve=True)
                for m in (3, 5, 9, 15)
            ),
        ),
        seeds=3,
        grid=MNIST_GRID,
    ),
    _by_model("cifar10", {"VGG16BN": _VGG_TARGETS}),
    _by_model("cifar100"),
    _by_model("svhn"),
    Study(
        "capacity",
        "Small networks",
        "table of PreResNet20",
        tuple(Section(_TITLES[name], three(name, "PreResNet20", SIZE, 1.0, 10.0)) for name in ("cifar10", "cifar100")),
        grid=GRID,
        remarks=_UNNAMED,
    ),
    Study(
        "ensemble-size",
        "Small ensembles",
        "table of M = 3, 5 and 7",
        tuple(
            Section(f"{_TITLES[name]}, {model}, M = {size}", three(name, model, size, 1.0))
            for name, model in (("cifar10", "PreResNet164"), ("cifar100", "PreResNet164"), ("cifar10", "VGG16BN"))
            for size in (3, 5, 7)
        ),
        grid=(0.1, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0),
        remarks=_UNNAMED,
    ),
    Study(
        "outlier-exposure",
        "Outlier exposure",
        "table of outlier exposure",
        (
            _exposed("SVHN, p* = CIFAR-10", "svhn", "cifar10"),
            _exposed("CIFAR-10, p* = Tiny ImageNet", "cifar10", UNLIKE),
            Section(
                "CIFAR-100, p* = CIFAR-10",
                (
                    *pair("cifar100", "PreResNet164", SIZE, chosen("PreResNet164", "cifar100")),
                    Case("cifar100", "PreResNet164", SIZE, 1.0, "cifar10"),
                ),
            ),
        ),
    ),
    Study(
        "overhead",
        "Overhead of training",
        "table of training times: 74 to 89 % more",
        # The first of three epochs, which warms the engine up, is not counted.
        tuple(
            Section(f"{model}, M = {SIZE}", pair("cifar10", model, SIZE, chosen(model, "cifar10"), epochs=3))
            for model in MODELS
        ),
        seeds=1,
        evaluated=False,
    ),
    Study(
        "robustness",
        "Corrupted images",
        "Figure of robustness",
        tuple(Section(f"{model}, M = {SIZE}", as_published("cifar10", model)) for model in MODELS[:2]),
        evaluated=False,
        corruptions=True,
    ),
    Study(
        "qualitative",
        "Curves, histograms and examples",
        "figures of curves and of examples",
        tuple(
            Section(f"{_TITLES[dataset]}, {model}, M = {SIZE}", as_published(dataset, model))
            for dataset, model in (("cifar100", "PreResNet164"), ("cifar10", "VGG16BN"))
        ),
        pictures=True,
    ),
    Study(
        "weighting",
        "The weighting distribution p*",
        "not in the paper",
        (
            _weightings("mnist", "PreResNet8", 0.1, (*_NOISES, "cifar10")),
            _weightings("cifar10", "VGG16BN", 3.0, (*_NOISES, "svhn/test"), 30),
            Section(
                "CIFAR-10, VGG16BN, M = 5, 30 epochs, lambda_M",
                pair("cifar10", "VGG16BN", 5, *_CURVE, epochs=30),
                curve=True,
            ),
        ),
        seeds=1,
        grid=_CURVE,
    ),
    Study(
        "p-star-batch",
        "The default p* for images: its batch",
        "not in the paper",
        tuple(_weightings("cifar10", "VGG16BN", 1.0, CANDIDATES, 30, batch=batch) for batch in BATCHES),
        seeds=3,
    ),
    Study(
        "default-p-star",
        "The default p* for images",
        "not in the paper",
        (
            _weightings("cifar10", "VGG16BN", 1.0, CANDIDATES, 30),
            _weightings("mnist", "PreResNet8", 1.0, CANDIDATES),
            _weightings("cifar10", "PreResNet20", 1.0, CANDIDATES, 30),
            _weightings("svhn", "VGG16BN", 1.0, CANDIDATES, 30),
        ),
        seeds=3,
    ),
    Study(
        "default-p-star-small",
        "The default p* for images, on a CPU",
        "not in the paper",
        (
            _weightings("cifar10", "PreResNet8", 1.0, CANDIDATES, 15, size=3, images=10_000),
            _weightings("mnist", "PreResNet8", 1.0, CANDIDATES, 8, size=3, images=10_000),
        ),
        seeds=3,
    ),
    Study(
        "p-star-search",
        "More p* for natural images",
        "not in the paper",
        (
            _weightings("cifar10", "PreResNet8", 1.0, (*CANDIDATES, *SEARCHED), 15, size=3, images=10_000),
            _weightings("cifar10", "VGG16BN", 1.0, ("turned", "kaleidoscope-scramble"), 30),
        ),
        seeds=3,
    ),
)

#: By name.
STUDIES = {study.name: study for study in (two_moons.STUDY, *_OF_IMAGES, methods.STUDY)}
