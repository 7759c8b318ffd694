"""What M = 5 heads on one frozen backbone cost beside one, and beside one member that runs the backbone in every batch.

The target of the first ratio is at most 1.3: the backbone's pass over examples and samples of p* is most of the work,
and heads share it. Every figure is a ratio of whole calls of `ge.fit` that took turns in this run.
"""

import copy
import statistics
import time
from collections import defaultdict
from functools import partial

import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.models.headed import Headed

IMAGES, EPOCHS, REPEATS, TARGET = 512, 10, 3, 1.3


def measured(images: int = IMAGES, epochs: int = EPOCHS, repeats: int = REPEATS) -> dict[str, float]:
    """Return the seconds of each training, the median of its repeats."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(images) % 10
    x = (20 * labels[:, None, None, None] + torch.randint(50, (images, 3, 32, 32), generator=generator)).byte()
    backbone = nn.Sequential(*list(ge.models.PreResNet(20).children())[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with torch.no_grad():
        width = backbone.eval()(torch.zeros(1, 3, 32, 32)).shape[1]
    make_head = partial(nn.Linear, width, 10)
    shared = ge.models.heads(backbone, make_head)
    recipe = ge.Recipe(epochs=epochs, lr=0.01)
    fit = partial(ge.fit, data=(x, labels), recipe=recipe, device="cpu", progress=False)
    trainings = {
        "one head": partial(fit, shared, size=1),
        "five heads": partial(fit, shared, size=5),
        "one member": partial(fit, lambda: Headed(copy.deepcopy(shared.backbone), make_head()), size=1, method="deep"),
    }
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats):
        for name, train in trainings.items():
            start = time.perf_counter()
            train()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    found = measured()
    for other in ("one head", "one member"):
        print(f"five heads / {other}: {found['five heads'] / found[other]:.2f}")
    print(f"target of the first: {TARGET}")
