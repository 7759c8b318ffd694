import numpy as np
import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import Evaluation, InDomain, OutOfDistribution, Predictions


class Counting(nn.Module):
    """A linear classifier of 4 x 4 grey images that counts the images it is shown."""

    def __init__(self, seed, classes=3):
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(16, classes)
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return 5 * self.layer(x.flatten(1))


@pytest.fixture
def counting():
    return Counting


@pytest.fixture
def image_set():
    """An ImageSet of random 4 x 4 grey images, the same for the same seed."""

    def make(name="inside", count=40, seed=0, labelled=False, note=""):
        generator = np.random.default_rng(seed)
        images = generator.integers(0, 256, (count, 1, 4, 4), np.uint8)
        labels = generator.integers(0, 3, count) if labelled else None
        return ge.data.ImageSet(images, labels, name, note=note)

    return make


@pytest.fixture
def random_predictions():
    """Predictions of members that agree more or less, the larger the spread the less."""

    def make(name="x", *, members=3, count=50, classes=4, scale=3.0, spread=1.0, seed=0, labelled=False, note=""):
        generator = np.random.default_rng(seed)
        shared = scale * generator.normal(size=(1, count, classes))
        logits = shared + spread * generator.normal(size=(members, count, classes))
        log_probs = torch.from_numpy(logits).log_softmax(-1).float().numpy()
        sums = torch.from_numpy(logits).logsumexp(-1).float().numpy()
        return Predictions(name, log_probs, shared[0].argmax(1) if labelled else None, note, logsumexp=sums)

    return make


@pytest.fixture
def evaluation():
    """An evaluation of given figures."""

    def make(accuracy=0.9, nll=0.3, ace=0.01, areas=None, note="", missing=(), score="mutual_information"):
        areas = {"uniform": 0.8, "dtd": 0.6} if areas is None else areas
        inside = InDomain("mnist", 100, note, accuracy, nll, 0.2, ace, 0.02, np.zeros(100))
        kinds = {
            name: "synthetic" if name in ("uniform", "gaussian", "bernoulli", "blobs") else "natural" for name in areas
        }
        outside = tuple(
            OutOfDistribution(name, kinds[name], 50, "", area, area / 2, 1 - area, np.ones(50))
            for name, area in areas.items()
        )
        return Evaluation(score, 5, inside, outside, tuple(missing))

    return make
