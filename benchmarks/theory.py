"""Speed of the theory room: how lazy greedy is, how cost grows with the ground set, seconds and memory of large ones.

    python benchmarks/theory.py            all of it, about 20 seconds on two cores
    python benchmarks/theory.py lazy       or one of: lazy, growth, seconds, memory

Ratios are taken within one run, so that they hold on a busy machine as well.
"""

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from greedy_ensembles import theory

LOW, HIGH = -9.0, 19.0
GRID = np.linspace(LOW - 2, HIGH + 2, 4000)
RANGE = HIGH - LOW
SIZE = 20


class Counted(theory.SetFunction):
    """Another set function, counting the gains that are asked of it."""

    def __init__(self, function: theory.SetFunction) -> None:
        super().__init__(len(function), function.size)
        self.function, self.asked = function, 0

    def __call__(self, indices: Sequence[int]) -> float:
        """Return F of the set of these indices."""
        return self.function(indices)

    def start(self) -> theory.Selection:
        """Return an empty selection whose gains are counted."""
        selection = self.function.start()
        gains = selection.gains

        def counted(candidates: np.ndarray) -> np.ndarray:
            self.asked += len(candidates)
            return gains(candidates)

        selection.gains = counted  # type: ignore[method-assign]
        return selection


def objective(count: int, width: float, generator: str = "reverse_kl", size: int = SIZE) -> theory.DivergenceObjective:
    """Return the problem of covering a density with three modes and long tails by kernels of that width."""
    density = theory.KernelMixture([0.0, 3.0, 9.0], theory.laplace(1.0)).on_grid(GRID).mean(axis=0)
    kernels = theory.KernelMixture(np.linspace(LOW, HIGH, count), theory.gaussian(width)).on_grid(GRID)
    return theory.DivergenceObjective(density, kernels, theory.trapezoid_weights(GRID), size, generator)


def lazy() -> None:
    """Print how many times fewer gains lazy greedy asks for, as kernels widen."""
    print(f"gains that greedy asks for / that lazy greedy asks for (1,000 candidates, M = {SIZE}, reverse KL):")
    for share in (280, 140, 70, 35, 14, 7):
        eager, lazy_one = (Counted(objective(1000, RANGE / share)) for _ in range(2))
        start = time.perf_counter()
        chosen = theory.greedy(eager)
        eager_seconds, start = time.perf_counter() - start, time.perf_counter()
        assert theory.lazy_greedy(lazy_one) == chosen
        seconds = time.perf_counter() - start
        note = "   (at least 5 is promised here)" if share == 70 else ""
        ratio, faster = eager.asked / lazy_one.asked, eager_seconds / seconds
        print(f"  width 1/{share:<3} of the range: {ratio:5.1f} times fewer, {faster:5.1f} times faster{note}")


def growth() -> None:
    """Print the exponent of greedy's cost in the size of the ground set; 1 is linear."""
    counts = np.array([500, 1000, 2000, 4000])
    problems = [objective(int(count), RANGE / 70, size=5) for count in counts]
    rounds = []
    for _ in range(5):  # in turn, so that a busy spell of the machine meets all sizes
        rounds.append([_timed(theory.greedy, F) for F in problems])
    seconds = np.min(rounds, axis=0)
    exponent = np.polyfit(np.log(counts), np.log(seconds), 1)[0]
    shown = ", ".join(f"{count}: {second:.3f} s" for count, second in zip(counts, seconds, strict=True))
    print(f"cost of greedy grows as the ground set to the power {exponent:.2f} ({shown}; M = 5)")


def seconds() -> None:
    """Print the seconds of 2,000 candidates on a grid of 4,000 with M = 20."""
    F = objective(2000, RANGE / 70)
    eager, lazily = _timed(theory.greedy, F), _timed(theory.lazy_greedy, F)
    print(f"2,000 candidates on a grid of 4,000, M = {SIZE}: greedy {eager:.1f} s, lazy greedy {lazily:.2f} s")


def memory() -> None:
    """Print the peak memory of 20,000 candidates on a grid of 4,000, of which the kernels alone take 0.6 GiB."""
    F = objective(20_000, RANGE / 70, size=3)
    elapsed = _timed(theory.greedy, F)
    theory.lazy_greedy(F)
    theory.expected_gains(F, [0])
    theory.point_gains(F, [0])
    theory.divergence_bound(F)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    own = F.kernels.nbytes / 2**30
    print(
        f"20,000 candidates on a grid of 4,000, M = 3: peak {peak:.2f} GiB (kernels {own:.2f}), greedy {elapsed:.1f} s"
    )


def _timed(algorithm: object, F: theory.DivergenceObjective) -> float:
    start = time.perf_counter()
    algorithm(F)  # type: ignore[operator]
    return time.perf_counter() - start


PARTS = {"lazy": lazy, "growth": growth, "seconds": seconds, "memory": memory}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="one part; default: all")
    asked = parser.parse_args().part
    for part in [asked] if asked else PARTS:
        if part == "memory" and not asked:
            subprocess.run([sys.executable, __file__, "memory"], check=True)  # the peak of a process of its own
        else:
            PARTS[part]()
