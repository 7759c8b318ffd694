"""What training M = 11 small members at once, stacked, costs beside training one, for the two-moons network.

Deep Ensembles are held against one member, the method against one member that has a term: the last one, with ten
members before it. The method's first member has no term and so half the work; the ratio to it stands in brackets. The
target is at most 3. Every figure is a ratio of best times, of whole trainings without a run folder, within this run,
since absolute times differ from machine to machine. What is left of the ratio is arithmetic: eleven times one member's
matrix products, which more threads share while one member's are too small for that.
"""

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from sklearn.datasets import make_moons

import greedy_ensembles as ge
from greedy_ensembles.experiments.two_moons import RECIPE, SIZE

REPEATS = 3


def trainings() -> dict[str, Callable[[], object]]:
    """Return what is timed."""
    points, labels = make_moons(300, noise=0.3, random_state=0)
    data = torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)
    fit = partial(ge.fit, partial(ge.models.MLP, 2), data, recipe=RECIPE, device="cpu", progress=False)
    ten = fit(size=SIZE - 1, strength=1.0, schedule="concurrent")
    return {
        "deep, one": lambda: fit(size=1, method="deep"),
        "deep, sequential": lambda: fit(size=SIZE, method="deep"),
        "deep, concurrent": lambda: fit(size=SIZE, method="deep", schedule="concurrent"),
        "greedy, one": lambda: fit(size=SIZE, strength=1.0, earlier=ten),
        "greedy, sequential": lambda: fit(size=SIZE, strength=1.0),
        "greedy, concurrent": lambda: fit(size=SIZE, strength=1.0, schedule="concurrent"),
    }


def seconds(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the best time of each; in turn, so that a busy spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: min(values) for name, values in times.items()}


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
