"""What training M = 11 small members at once, stacked, costs beside training one, for the two-moons network.

The target is at most 3 with two threads or more. What is left of the ratio is arithmetic: eleven times one member's
matrix products, which threads share while one member's are too small for that.

One member is trained as users get it: `ge.fit` alone with size=1, which takes the eager engine, since one has no others
to be stacked with. The method's ratio is to a member that has a term, the last one, against ten before it, by the same
engine; the ratio to one without a term, which has half the work, stands in brackets. Their work beside the epochs
(checks, and for the last member the outputs of the ten) is left out on all sides.

Every figure is a ratio of epochs' times, bookkeeping between epochs included, pooled over trainings that took turns in
this run: absolute times differ from machine to machine. The time is the first decile, not the median: other programs on
the machine interrupt most long epochs before they interrupt most short ones, and hold up two threads where one waits.
"""

import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge
from greedy_ensembles.experiments.two_moons import RECIPE, SIZE

REPEATS = 3
Listener = Callable[[ge.Epoch], None]


def trainings() -> dict[str, Callable[[Listener], object]]:
    """Return what is timed: trainings that tell a listener of every epoch of every member."""
    points, labels = make_moons(300, noise=0.3, random_state=0)
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


def seconds(runs: dict[str, Callable[[Listener], object]]) -> dict[str, float]:
    """Return what an epoch of all members costs in each, the first decile over epochs and repetitions."""
    epochs: dict[str, dict[int, list[float]]] = {name: defaultdict(list) for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():  # in turn, so that a busy spell of the machine meets all of them
            for member, ends in ends_of_epochs(run).items():
                epochs[name][member] += np.diff(ends).tolist()
    return {
        # Members at once end their epochs together: those of the first are those of all.
        name: decile(of_member[1]) if name.endswith("concurrent") else sum(map(decile, of_member.values()))
        for name, of_member in epochs.items()
    }


def decile(times: list[float]) -> float:
    """Return the time that a tenth of them stays below."""
    return float(np.quantile(times, 0.1))


def ends_of_epochs(run: Callable[[Listener], object]) -> dict[int, list[float]]:
    """Return when the epochs of each member ended in a training."""
    ends: dict[int, list[float]] = defaultdict(list)
    run(lambda epoch: ends[epoch.member].append(time.perf_counter()))
    return ends


def main() -> None:
    """Print the ratios."""
    print(f"MLP 2-128-128-2, 300 points, {RECIPE.epochs} epochs, M = {SIZE}: time over that of one member")
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        time_of = seconds(trainings())
        for method in ("deep", "greedy"):
            one, sequential, concurrent = (time_of[f"{method}, {kind}"] for kind in ("one", "sequential", "concurrent"))
            beside = "" if method == "deep" else f" ({concurrent / time_of['deep, one']:.2f} over one without a term)"
            print(
                f"  {method:6s} {threads} thread{'s' if threads > 1 else ' '}  "
                f"sequential {sequential / one:5.2f}  concurrent {concurrent / one:.2f}{beside}"
            )


if __name__ == "__main__":
    main()
