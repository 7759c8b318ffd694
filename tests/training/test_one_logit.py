"""One logit z of class 1 is the two logits (0, z), in training, prediction and everything that follows."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.inputs import as_logits

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] + X[:, 1] > 0).long()


class Two(nn.Module):
    """The same network with the 0 written out."""

    def __init__(self, one):
        super().__init__()
        self.one = one

    def forward(self, x):
        z = self.one(x).reshape(-1)
        return torch.stack([torch.zeros_like(z), z], dim=1)


def column():
    return ge.models.MLP(3, hidden=(8,), classes=1)


def flat():
    return nn.Sequential(column(), nn.Flatten(0))


def convolved():  # with BatchNorm, which the plain engine trains
    return nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=6), st.booleans())
def test_probabilities_and_loss_are_the_binary_ones(values, label):
    z = torch.tensor(values, dtype=torch.float64)
    labels = torch.full((len(z),), int(label))
    for outputs in (z, z[:, None]):
        logits = as_logits(outputs)
        torch.testing.assert_close(logits.softmax(dim=1)[:, 1], z.sigmoid(), rtol=1e-12, atol=0)
        expected = binary_cross_entropy_with_logits(z, labels.double())
        torch.testing.assert_close(cross_entropy(logits, labels), expected, rtol=1e-9, atol=1e-12)
    assert as_logits(z[None, :, None], axes=3).shape == (1, len(z), 2)
    assert as_logits(z.half()).dtype == torch.float32


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
@pytest.mark.parametrize("make_model", [column, flat, convolved])
def test_it_trains_as_two_logits_do(make_model, schedule, quick, tmp_path):
    recipe = ge.Recipe(epochs=4, batch_size=16, lr=0.05)
    options = {**quick, "size": 3, "strength": 3.0, "schedule": schedule, "recipe": recipe, "validation": 0.2}
    one = ge.fit(make_model, (X, Y), run_dir=tmp_path / "run", **options)
    two = ge.fit(lambda: Two(make_model()), (X, Y), **options)
    assert one.predict_proba(X).shape == (3, 60, 2)
    torch.testing.assert_close(one.predict_proba(X), two.predict_proba(X), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(one.predict_log_proba(X), two.predict_log_proba(X), rtol=1e-3, atol=1e-3)
    again = ge.load_run(tmp_path / "run", make_model).ensemble
    assert torch.equal(again.uncertainty(X).epistemic, one.uncertainty(X).epistemic)


def test_it_meets_earlier_members_of_two_logits_and_is_exported(quick, tmp_path):
    recipe = ge.Recipe(epochs=2)
    first = ge.fit(lambda: ge.models.MLP(3, hidden=(8,)), (X, Y), size=1, **{**quick, "recipe": recipe})
    both = ge.fit(column, (X, Y), size=2, earlier=first, **{**quick, "recipe": recipe})
    both.calibrate(X, Y)
    both.export_torch(tmp_path / "graph.pt2")
    outputs = torch.export.load(tmp_path / "graph.pt2").module()(X)
    torch.testing.assert_close(outputs["probabilities"], both.predict_calibrated(X), rtol=0, atol=1e-6)
    assert torch.equal(outputs["flag"], both.flag(X))


@pytest.mark.parametrize("make_model", [column, flat])
def test_all_members_of_a_batch_ensemble_are_judged_by_it(make_model, quick):
    recipe, told = ge.Recipe(epochs=4, batch_size=16), []
    options = {**quick, "method": "batch", "recipe": recipe, "validation": (X, Y), "callbacks": [told.append]}
    ensemble = ge.fit(make_model, (X, Y), size=3, **options)
    best = max(event.validation_accuracy for event in told)
    assert ge.metrics.accuracy(ensemble.predict_proba(X).mean(dim=0), Y) == pytest.approx(best)


def test_a_third_class_is_refused(quick):
    with pytest.raises(ValueError, match="labels go up to 2, but the model has 2 classes"):
        ge.fit(column, (X, torch.arange(60) % 3), size=1, **quick)


def test_the_estimator_takes_such_models():
    classifier = ge.GreedyEnsembleClassifier(2, make_model=column, recipe=ge.Recipe(epochs=20), device="cpu")
    fitted = copy.copy(classifier).fit(X.numpy(), Y.numpy())
    assert fitted.predict_proba(X.numpy()).shape == (60, 2)
    assert fitted.score(X.numpy(), Y.numpy()) > 0.8


class Gated(nn.Module):
    """A network with a sigmoid that is not its end; its first logits are from 0 to 1, as a sigmoid's are."""

    def __init__(self):
        super().__init__()
        self.last, self.gate = nn.Linear(3, 1), nn.Sigmoid()
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.last.bias, 0.5)

    def forward(self, x):
        return self.last(x * self.gate(x))


def test_a_sigmoid_within_is_none_at_the_end(quick):
    assert len(ge.fit(Gated, (X, Y), size=1, **quick)) == 1


def test_members_that_end_in_a_sigmoid_are_noticed_once_they_say_enough():
    ensemble = ge.Ensemble([nn.Sequential(nn.Linear(3, 1), nn.Sigmoid())])
    ensemble.predict_proba(X[:1])  # of one row a logit may be from 0 to 1
    with pytest.warns(UserWarning, match="sigmoid"):
        ensemble.predict_proba(X)
    ge.Ensemble([nn.Linear(3, 1)]).predict_proba(10 * X)
