"""What training M = 11 small members at once, stacked, costs beside training one: the second table of `cpu.py`.

The target is at most 3. What is left of the ratio is arithmetic: eleven times one member's matrix products, which
threads share while one member's are too small for that; with one thread it is missed.

One member is trained as users get it: `ge.fit` alone with size=1, which takes the eager engine, since one has no others
to be stacked with. The method's ratio is to a member that has a term, the last one, against ten before it, by the same
engine; the last line has the ratio to one without a term, which has half the work. Their work beside the epochs
(checks, and for the last member the outputs of the ten) is left out on all sides.

Every figure is a ratio of epochs' times, bookkeeping between epochs included, pooled over trainings that took turns in
this run: absolute times differ from machine to machine. The medians are what training cost here; the first deciles,
behind them, come near to what it costs where nothing else runs: other programs interrupt most long epochs before they
interrupt most short ones, and hold up two threads where one has to wait. Far apart, they say that others were busy.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge
from greedy_ensembles.paper.two_moons import RECIPE, SIZE

REPEATS = 3
TARGET = 3
COMPARISONS = [
    ("deep, sequential", "deep, one"),
    ("deep, concurrent", "deep, one"),
    ("greedy, sequential", "greedy, one"),
    ("greedy, concurrent", "greedy, one"),
    ("greedy, concurrent", "deep, one"),
    ("deep, its products alone", "deep, one"),
    ("greedy, its products alone", "greedy, one"),
]
POINTS, WIDTHS = 300, (2, 128, 128, 2)
Listener = Callable[[ge.Epoch], None]


def trainings() -> dict[str, Callable[[Listener], object]]:
    """Return what is timed: trainings that tell a listener of every epoch of every member."""
    points, labels = make_moons(POINTS, noise=0.3, random_state=0)
    data = torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)
    fit = partial(ge.fit, partial(ge.models.MLP, 2), data, recipe=RECIPE, device="cpu", progress=False)
    ten = fit(size=SIZE - 1, strength=1.0, schedule="concurrent")
    return {
        "deep, one": lambda tell: fit(size=1, method="deep", callbacks=[tell]),
        "deep, sequential": lambda tell: fit(size=SIZE, method="deep", callbacks=[tell]),
        "deep, concurrent": lambda tell: fit(size=SIZE, method="deep", schedule="concurrent", callbacks=[tell]),
        "greedy, one": lambda tell: fit(size=SIZE, strength=1.0, earlier=ten, callbacks=[tell]),
        "greedy, sequential": lambda tell: fit(size=SIZE, strength=1.0, callbacks=[tell]),
        "greedy, concurrent": lambda tell: fit(size=SIZE, strength=1.0, schedule="concurrent", callbacks=[tell]),
    }


Times = dict[int, list[float]]  # of the epochs of each member


def times_of(runs: dict[str, Callable[[Listener], object]]) -> dict[str, Times]:
    """Return how long epochs took in each."""
    epochs: dict[str, Times] = {name: defaultdict(list) for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():  # in turn, so that a busy spell of the machine meets all of them
            for member, ends in ends_of_epochs(run).items():
                epochs[name][member] += np.diff(ends).tolist()
    return epochs


def floors() -> dict[str, Times]:
    """Return the times of what no engine can leave out of an epoch of all members: their matrix products, stacked."""
    batch = RECIPE.batch_size
    sizes = [min(batch, POINTS - start) for start in range(0, POINTS, batch)]
    return {
        "deep, its products alone": {1: products_of(sizes)},
        "greedy, its products alone": {1: products_of([size + batch for size in sizes])},  # and samples of p*
    }


def products_of(sizes: list[int]) -> list[float]:
    """Return how long the products of an epoch took, each time that they were made: forward, and twice backward."""
    layers = [
        [(torch.rand(SIZE, rows, i), torch.rand(SIZE, i, o), torch.rand(SIZE, rows, o)) for i, o in pairwise(WIDTHS)]
        for rows in sizes
    ]
    times = []
    for _ in range(REPEATS * RECIPE.epochs):
        start = time.perf_counter()
        for step in layers:
            for number, (rows, weight, gradient) in enumerate(step):
                torch.bmm(rows, weight)
                torch.bmm(rows.mT, gradient)
                if number > 0:  # points need no gradient
                    torch.bmm(gradient, weight.mT)
        times.append(time.perf_counter() - start)
    return times


def cost(name: str, epochs: Times, share: float) -> float:
    """Return the time of an epoch of all members that this share of them stays below."""
    # Members at once end their epochs together: those of the first are those of all.
    kept = [epochs[1]] if name.endswith("concurrent") else epochs.values()
    return float(sum(np.quantile(times, share) for times in kept))


def ends_of_epochs(run: Callable[[Listener], object]) -> dict[int, list[float]]:
    """Return when the epochs of each member ended in a training."""
    ends: dict[int, list[float]] = defaultdict(list)
    run(lambda epoch: ends[epoch.member].append(time.perf_counter()))
    return ends


def ratios() -> dict[int, list[dict[str, Any]]]:
    """Return the ratios by number of threads: one, and as many as there are."""
    found, most = {}, torch.get_num_threads()
    for threads in sorted({1, most}):
        torch.set_num_threads(threads)
        epochs = times_of(trainings()) | floors()
        median, decile = ({name: cost(name, times, share) for name, times in epochs.items()} for share in (0.5, 0.1))
        found[threads] = [
            {
                "what": what,
                "over": base,
                "median": median[what] / median[base],
                "first decile": decile[what] / decile[base],
            }
            for what, base in COMPARISONS
        ]
    torch.set_num_threads(most)
    return found
