"""Every registered method on equal budgets: the same network and as many member-epochs, beside detectors without.

Three settings: scikit-learn's digits (classes 0-4 against 5-9 and noise; minutes on a CPU), MNIST and CIFAR-10 (with a
GPU, where their data are). Every method has its defaults, and the network and recipe of the setting; where it cannot
have one of these by its own definition, the setting says what it has instead, and the page says so. One that is added
to the registry is in the table with the next run.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.neighbors import NearestNeighbors
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Evaluation, judge_probabilities, judge_scores, load_preset
from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.data import SETS, data_root
from greedy_ensembles.data.registry import find
from greedy_ensembles.models import named
from greedy_ensembles.paper.images import cut
from greedy_ensembles.paper.method_runs import Data, Own, Setting, jobs, work
from greedy_ensembles.paper.methods_page import write
from greedy_ensembles.paper.studies.of_images import CHOOSING, NOISE
from greedy_ensembles.paper.study import Study, only

_REFERENCE = 5_000  # training images that features are compared with
_OOD = 5_000  # images of an OOD set at most: the distances of their features take as long as training does


def network() -> nn.Module:
    """Return the network for digits; the dropout is there for the methods that need one, and all have it."""
    return nn.Sequential(
        OrderedDict(body=ge.models.MLP(64, (64,), 64), relu=nn.ReLU(), dropout=nn.Dropout(0.1), last=nn.Linear(64, 5))
    )


def with_dropout(depth: int, classes: int, channels: int) -> nn.Module:
    """Return a PreResNet with dropout before its last layer."""
    model = ge.models.PreResNet(depth, classes, channels)
    model.add_module("linear", nn.Sequential(nn.Dropout(0.1), model.linear))
    return model


def digits() -> Data:
    """Return classes 0-4, half of them to train on; of the others 5 and 6 may choose a score."""
    content = load_digits()
    x, y = (content.data / 16).astype(np.float32), content.target
    order = np.random.default_rng(0).permutation(np.flatnonzero(y < 5))
    train, test = order[: len(order) // 2], order[len(order) // 2 :]
    rng = np.random.default_rng(1)
    uniform = rng.uniform(size=(400, 64)).astype(np.float32)
    shuffled = rng.permuted(x[test], axis=1)  # the pixels of each image in another order
    return Data(
        (x[train], y[train]),
        (x[test], y[test]),
        {"uniform": uniform, "shuffled": shuffled, **{f"digit {label}": x[y == label] for label in range(5, 10)}},
        {
            "noise": ("uniform", "shuffled"),
            "choosing": ("digit 5", "digit 6"),
            "other": ("digit 7", "digit 8", "digit 9"),
        },
        (x[train], y[train]),
    )


def detectors(data: Data, seed: int) -> dict[str, Evaluation]:
    """Return what needs no ensemble of networks: entropy of a random forest, an isolation forest, near neighbours."""
    (x, y), (x_test, y_test) = data.train, data.test
    forest = RandomForestClassifier(random_state=seed).fit(x, y)
    isolation = IsolationForest(random_state=seed).fit(x)
    known = NearestNeighbors(n_neighbors=5).fit(x)

    def everywhere(score: Callable[[Any], Any]) -> dict[str, Any]:
        return {name: score(inputs) for name, inputs in data.ood.items()}

    def far(inputs: Any) -> Any:
        return known.kneighbors(inputs)[0][:, -1]

    def odd(inputs: Any) -> Any:
        return -isolation.score_samples(inputs)

    probs = forest.predict_proba
    return {
        "random forest": judge_probabilities("random forest", probs(x_test), y_test, everywhere(probs)),
        "isolation forest": judge_scores("isolation", odd(x_test), everywhere(odd)),
        "5 neighbours": judge_scores("distance", far(x_test), everywhere(far)),
    }


def images(dataset: str) -> Data | None:
    """Return an image set with its preset; None without a GPU, or without the data."""
    if not torch.cuda.is_available() or find(SETS[dataset], "train", data_root()) is None:
        return None
    train, test = ge.data.load(dataset, "train"), ge.data.load(dataset, "test")
    ood = {name: cut(each, _OOD) for name, each in load_preset(dataset, test)[0].items()}
    noise = tuple(name for name in ood if name in (*NOISE, "blobs"))
    choosing = tuple(name for name in CHOOSING[dataset] if name in ood and name not in noise)
    other = tuple(name for name in ood if name not in (*noise, *choosing))
    groups = {"noise": noise, "choosing": choosing, "other": other}
    return Data(train, test, ood, groups, train.take(np.arange(_REFERENCE)))


SETTINGS = (
    Setting(
        "digits",
        "scikit-learn's digits, an MLP of 64 and 64 with dropout, M = 5, 30 epochs",
        digits,
        "MLP",
        network,
        "relu",
        ge.Recipe(epochs=30, batch_size=32),
        other="unseen digits 7 to 9",
        detectors=detectors,
    ),
    Setting(
        "mnist",
        "MNIST, PreResNet8, M = 5, bf16",
        partial(images, "mnist"),
        "PreResNet8",
        named("PreResNet8", classes=10, channels=1),
        "norm",
        ge.Recipe.paper("mnist", "PreResNet8", weighting_statistics="batch", precision="bf16"),
        own={
            "dropout": Own(
                "nn.Dropout(0.1) before the last layer: PreResNet8 has no dropout",
                make_model=partial(with_dropout, 8, 10, 1),
            )
        },
    ),
    Setting(
        "cifar10",
        "CIFAR-10, VGG16BN, M = 5, 30 epochs, bf16",
        partial(images, "cifar10"),
        "VGG16BN",
        named("VGG16BN", classes=10, channels=3),
        "head.5",
        ge.Recipe.paper("cifar10", "VGG16BN", epochs=30, weighting_statistics="batch", precision="bf16"),
        own={"snapshot": Own("no warm-up: its cycles are its learning rate", {"warmup_epochs": 0})},
    ),
)


def _run(
    folder: Path,
    progress: bool,
    seeds: int = 3,
    model: Sequence[str] | None = None,
    part: str | None = None,
    page_only: bool = False,
) -> None:
    """Do what is missing of the runs asked for, and write the page of all that there are."""
    check_count("--seeds", seeds, least=1)
    for name in model or ():
        check_choice("--model", name, [setting.network for setting in SETTINGS])
    asked = [replace(setting, seeds=seeds) for setting in SETTINGS if not model or setting.network in model]
    wanted = jobs(asked) if part is None else only(jobs(asked), part)
    if not page_only:
        work(folder, wanted, progress)
    write(folder, [replace(setting, seeds=max(seeds, setting.seeds)) for setting in SETTINGS])


STUDY = Study(
    "methods",
    "Every method",
    "not in the paper",
    (),
    seeds=3,
    special=_run,
    takes=("mnist, cifar10", "an hour on a GPU"),
)
