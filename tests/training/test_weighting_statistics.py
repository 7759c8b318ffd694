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


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_in_two_passes_samples_are_normalised_by_the_examples_as_in_one(blobs, schedule):
    class InOne(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x):
            return self.layers(x)

    class InTwo(InOne):
        """The same network, of which the trial before training, in double precision, finds that rows mix."""

        def forward(self, x):
            return self.layers(x) + float(x.dtype == torch.float64 and len(x) > 3)

    recipe = ge.Recipe(epochs=3, batch_size=16, weighting_batch_size=5)
    options = {"size": 2, "strength": 2.0, "recipe": recipe, "progress": False, "device": "cpu", "schedule": schedule}
    one, two = (ge.fit(model, blobs, **options) for model in (InOne, InTwo))
    for a, b in zip(one, two, strict=True):
        for name, value in a.state_dict().items():
            torch.testing.assert_close(b.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_model_that_mixes_rows_trains_in_two_passes(blobs):
    with pytest.warns(UserWarning, match="depends on the others in its batch"):
        ensemble = ge.fit(Mixing, blobs, size=2, recipe=ge.Recipe(epochs=1), progress=False, device="cpu")
    assert len(ensemble) == 2


def test_token_ids_are_trained_on_with_the_default_statistics():
    tokens, labels = torch.arange(120).reshape(40, 3) % 11, torch.arange(40) % 2

    class Words:
        def sample(self, n, generator):
            return torch.randint(11, (n, 3), generator=generator)

    def model():
        return nn.Sequential(nn.EmbeddingBag(11, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

    options = {"weighting": Words(), "recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu"}
    assert ge.fit(model, (tokens, labels), size=2, **options).predict_proba(tokens).shape == (2, 40, 2)


class OwnNorm(nn.Module):
    """Running means of what it is given, and a spectral norm, whose buffers change with the weights alone."""

    def __init__(self, counts):
        super().__init__()
        self.counts, self.head = counts, nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        if self.training and self.counts:
            self.mean.lerp_(x.detach().mean(dim=0), 0.1)
        return self.head(x - self.mean)


def test_a_layer_that_counts_samples_of_p_star_is_named(blobs, quick):
    with pytest.warns(UserWarning, match=r"buffer 'mean' .*samples of p\*.* BatchNorm"):
        ge.fit(lambda: OwnNorm(True), blobs, size=2, strength=1.0, **quick)
    ge.fit(lambda: OwnNorm(False), blobs, size=2, strength=1.0, **quick)  # a warning would be an error
    ge.fit(lambda: OwnNorm(True), blobs, size=2, method="deep", **quick)
