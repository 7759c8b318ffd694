"""The method beside Deep Ensembles on images: who notices digits that were never shown, and noise?"""

from functools import partial

import numpy as np
from rich.console import Console
from sklearn.datasets import load_digits

import greedy_ensembles as ge
from greedy_ensembles.report.results import show

digits = load_digits()
images = (digits.images * 255 / 16).astype(np.uint8)[:, None]  # 1,797 of 8 x 8
known = digits.target < 8  # members never see an 8 or a 9
train, test = ge.data.ImageSet(images[known], digits.target[known], "digits 0 to 7").split(0.3)
ood = {"digits 8 and 9": ge.data.ImageSet(images[~known], None, "digits 8 and 9")}
ood |= {kind: ge.data.make_noise(kind, 500, size=8, channels=1) for kind in ("uniform", "bernoulli", "blobs")}


def main(size=5, seeds=3, epochs=10):
    fit = partial(ge.fit, partial(ge.models.PreResNet, 8, 8, 1), train, recipe=ge.Recipe(epochs=epochs, batch_size=64))
    methods = []
    for name, options in {"Deep Ensembles": {"method": "deep"}, "greedy, lambda_M = 3": {"strength": 3.0}}.items():
        ensembles = [fit(size=size, seed=seed * size, **options) for seed in range(seeds)]
        methods.append(ge.benchmark.Method(name, tuple(ge.benchmark.evaluate(e, test, ood) for e in ensembles)))
    return ge.benchmark.Comparison(tuple(methods))


if __name__ == "__main__":
    show(main(), Console())
