"""What the method costs beside Deep Ensembles, and what a run folder costs, with the eager engine on the CPU.

Every figure is a ratio of medians within this run, since absolute times differ from machine to machine.
"""

import statistics
import tempfile
import time
from collections.abc import Callable

import torch

import greedy_ensembles as ge

EPOCHS, SIZE, REPEATS = 30, 4, 3


def seconds_per_epoch(**options: object) -> float:
    """Return the median time of an epoch of the last member, over all repeats."""
    x = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    recipe = ge.Recipe(epochs=EPOCHS, weighting_batch_size=options.pop("weighting_batch_size", None))  # type: ignore[arg-type]
    times: list[float] = []

    def listen(epoch: ge.Epoch) -> None:
        if epoch.member == SIZE:
            times.append(epoch.seconds)

    for _ in range(REPEATS):
        ge.fit(
            lambda: ge.models.MLP(20),
            (x, y),
            size=SIZE,
            recipe=recipe,
            callbacks=[listen],
            progress=False,
            device="cpu",
            **options,  # type: ignore[arg-type]
        )
    return statistics.median(times)


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes, at the best of the repeats."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def coupling_cost(earlier: int) -> float:
    """Return the time of the diversity term, forward and backward, against so many members."""
    outputs = torch.randn(128, 10).softmax(1).requires_grad_()
    bank = torch.randn(earlier, 128, 10).softmax(2)
    return seconds(lambda: [ge.diversity_term(outputs, bank, 1.0, 100).backward() for _ in range(200)]) / 200


def main() -> None:
    """Print the ratios."""
    torch.set_num_threads(1)
    deep = seconds_per_epoch(method="deep")
    print("MLP 20-128-128-2, batch 128, 1,800 examples, one thread; times of an epoch relative to Deep Ensembles")
    for batch in (128, 16):
        ratio = seconds_per_epoch(strength=1.0, weighting_batch_size=batch) / deep
        print(f"  greedy, p* batch {batch:3d}: {ratio:.2f}")
    small, large = coupling_cost(5), coupling_cost(50)
    print(f"diversity term, forward and backward, against 50 members over against 5: {large / small:.1f}")
    x, y = torch.randn(2000, 20), torch.arange(2000) % 2
    recipe = ge.Recipe(epochs=EPOCHS)

    def train(run_dir: str | None) -> None:
        ge.fit(lambda: ge.models.MLP(20), (x, y), size=1, method="deep", recipe=recipe, run_dir=run_dir, progress=False)

    def train_in_folder() -> None:
        with tempfile.TemporaryDirectory() as folder:
            train(folder)

    ratio = seconds(train_in_folder) / seconds(lambda: train(None))
    print(f"with a run folder over without one, all of a run: {ratio:.2f}")


if __name__ == "__main__":
    main()
