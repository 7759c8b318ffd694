"""What samples of p* are normalised by in training, as the recipe says."""

import pytest
import torch
from torch import nn

import greedy_ensembles as ge


def biased():
    """A network with a bias right before BatchNorm, which takes it out of the examples: the loss does not move it."""
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


class Mixing(nn.Module):
    """Subtracts the mean over the batch: what a row becomes depends on the others."""

    def __init__(self):
        super().__init__()
        self.layers = biased()

    def forward(self, x):
        return self.layers(x - x.mean(dim=0))


def biases(statistics, schedule, blobs, seed=0):
    """Return the bias of the second member, at its start and after training."""
    recipe = ge.Recipe(epochs=5, batch_size=16, weight_decay=0.0, weighting_statistics=statistics)
    started = []

    def make_model():
        model = biased()
        started.append(model[0].bias.detach().clone())
        return model

    options = {"size": 2, "strength": 2.0, "seed": seed, "schedule": schedule, "validation": 0, "device": "cpu"}
    ensemble = ge.fit(make_model, blobs, recipe=recipe, progress=False, **options)
    ended = ensemble[1][0].bias.detach()
    return min(started, key=lambda start: (start - ended).abs().max()), ended


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_by_the_examples_statistics_nothing_moves_what_batchnorm_takes_out(blobs, schedule):
    start, end = biases("batch", schedule, blobs)
    torch.testing.assert_close(end, start, rtol=0, atol=1e-5)


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_by_running_statistics_the_diversity_term_does(blobs, schedule):
    start, end = biases("running", schedule, blobs)
    assert (end - start).abs().max() > 1e-2


def test_a_model_that_mixes_rows_is_refused_with_the_way_out(blobs):
    recipe = ge.Recipe(epochs=1, weighting_statistics="batch")
    with pytest.raises(ValueError, match=r"needs samples of p\* to share a pass .* use 'running'"):
        ge.fit(Mixing, blobs, size=2, strength=1.0, recipe=recipe, progress=False, device="cpu")
    ge.fit(Mixing, blobs, size=2, method="deep", recipe=recipe, progress=False, device="cpu")  # which has no p*
