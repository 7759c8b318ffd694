"""Is the concurrent schedule weaker since it selects snapshots of different epochs? Two moons, M = 4, lambda_M = 6.

    python benchmarks/snapshots.py [--out results/two-moons]

Eight seeds, both schedules, and the epochs of members that can be kept. A few minutes on one core.
"""

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from result import facts, how, parser, publish
from sklearn.datasets import make_moons
from torch import Tensor

import greedy_ensembles as ge
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table

SIZE, STRENGTH, SEEDS = 4, 6.0, range(0, 32, 4)
LATEST, FIRST, SAME, LAST = "latest of the best", "first of the best", "one for all", "last, nothing held out"


def first_of_best() -> Callable[[Tensor, Tensor], float]:
    """Return a score of epochs by which the first of equals is kept."""
    count = itertools.count()  # of equal accuracies, the later one is a little worse
    return lambda probs, labels: float((probs.argmax(1) == labels).double().mean()) - 1e-9 * next(count)


def measure(seed: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return mean MI on a ring of radius 6, and on how much of it members split evenly, by schedule and epoch."""
    points, labels = make_moons(300, noise=0.3, random_state=seed)
    x, y = torch.from_numpy(points).float(), torch.from_numpy(labels)
    make = partial(ge.models.MLP, 2, hidden=(128, 128), classes=2)
    train = partial(ge.fit, make, (x, y), size=SIZE, strength=STRENGTH, seed=seed, device="cpu", progress=False)
    angles = torch.arange(360) * (2 * torch.pi / 360)
    ring = x.mean(dim=0) + 6 * torch.stack([angles.cos(), angles.sin()], dim=1)
    epochs: dict[int, list[Any]] = {}
    kept: dict[tuple[str, str], ge.Ensemble] = {}

    def note(event: ge.Epoch) -> None:
        assert event.model is not None
        weights = {name: value.clone() for name, value in event.model.state_dict().items()}
        epochs.setdefault(event.epoch, []).append((event.validation_accuracy, weights))

    for schedule in ("sequential", "concurrent"):
        kept[schedule, LATEST] = train(schedule=schedule, callbacks=[note] if schedule == "concurrent" else [])
        kept[schedule, FIRST] = train(schedule=schedule, recipe=ge.Recipe(select_by=first_of_best()))
        kept[schedule, LAST] = train(schedule=schedule, validation=0)
    best = max(epochs, key=lambda epoch: (sum(accuracy for accuracy, _ in epochs[epoch]), epoch))
    alike = [make() for _ in range(SIZE)]
    for member, (_, weights) in zip(alike, epochs[best], strict=True):
        member.load_state_dict(weights)
    kept["concurrent", SAME] = ge.Ensemble.from_members(alike)
    said = {which: ensemble.predict_proba(ring) for which, ensemble in kept.items()}
    even = {which: float((probs.argmax(2).sum(0) == SIZE // 2).double().mean()) for which, probs in said.items()}
    return {key: (float(ge.metrics.mutual_information(probs).mean()), even[key]) for key, probs in said.items()}


def page(content: dict[str, Any]) -> Page:
    """Return the table of means over seeds."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for _, schedule, epoch, *figures in content["runs"]:
        rows.setdefault((schedule, epoch), []).append(figures)
    shown = [
        [*kept, *(f"{own.mean:.3f} ± {own.error:.3f}" for own in map(ge.benchmark.estimate, zip(*found, strict=True)))]
        for kept, found in rows.items()
    ]
    table = markdown_table(["schedule", "epoch that is kept", "MI far from the data", "members split evenly"], shown)
    return Page("Two moons, all members at once", how(content, {}), table)


if __name__ == "__main__":
    out = parser(__doc__).parse_args().out
    warnings.simplefilter("ignore")  # of weak members: 30 held-out points are few
    seeds = {seed: measure(seed) for seed in SEEDS}
    runs = [[seed, *which, *found[which]] for which in seeds[0] for seed, found in seeds.items()]
    publish(out, "snapshots", page, {**facts("snapshots.py --out results/two-moons"), "runs": runs})
