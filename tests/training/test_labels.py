"""Independent labels are as many problems of two classes, in training, prediction, files and the estimator."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.labels import DISTANCES, bernoulli, label_loss, log_bernoulli
from greedy_ensembles.method import METHODS

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
Y = torch.stack([X[:, 0] > 0, X[:, 1] > 0.5, X.sum(dim=1) > 0, X[:, 2] < 0], dim=1).long()
NUMBERS = st.floats(-30, 30)


def make_model():
    return ge.models.MLP(3, hidden=(8,), classes=4)


def linear():
    return nn.Linear(3, 4)


def double():
    return nn.Linear(3, 4).double()


def wide():  # with BatchNorm and in double precision
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4)).double()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of three members, and its folder."""
    folder = tmp_path_factory.mktemp("labels") / "run"
    recipe = ge.Recipe(epochs=30, batch_size=16, lr=0.3)
    options = {"targets": "labels", "recipe": recipe, "progress": False, "device": "cpu", "run_dir": folder}
    return ge.fit(make_model, (X, Y), size=3, strength=2.0, **options), folder


def labelled(rows, columns):
    return st.lists(st.lists(NUMBERS, min_size=columns, max_size=columns), min_size=rows, max_size=rows)


@given(labelled(3, 2), st.lists(st.booleans(), min_size=6, max_size=6))
def test_loss_and_probabilities_are_those_of_each_label(values, applies):
    z = torch.tensor(values, dtype=torch.float64)
    y = torch.tensor(applies, dtype=torch.float64).reshape(3, 2)
    losses, weighted, weights = [], [], [0.5, 2.0, 0.0]
    for i in range(3):
        for k in range(2):
            signed = z[i, k].item() if y[i, k] else -z[i, k].item()
            losses.append(math.log1p(math.exp(-signed)))
            weighted.append(weights[i] * losses[-1])
            assert bernoulli(z)[i, k, 1].item() == pytest.approx(1 / (1 + math.exp(-z[i, k].item())), rel=1e-12)
    assert label_loss(z, y).item() == pytest.approx(sum(losses) / 6, rel=1e-12)
    targets = torch.stack([1 - y, y], dim=-1) * torch.tensor(weights).double()[:, None, None]
    assert label_loss(z, targets).item() == pytest.approx(sum(weighted) / 6, rel=1e-12)
    assert torch.allclose(log_bernoulli(z).exp().sum(dim=-1), torch.ones(3, 2, dtype=torch.float64))


@given(labelled(2, 3), labelled(2, 3))
def test_distance_is_the_mean_over_labels_of_that_of_two_classes(one, other):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (one, other))
    for name, of_classes in DISTANCES["classes"].items():
        expected = []
        for k in range(3):  # each label as logits (0, z) of two classes
            pair = [of_classes(torch.stack([torch.zeros(2), z[:, k]], dim=1).double()) for z in (a, b)]
            expected.append((pair[0] - pair[1]).square().sum(dim=1))
        found = (DISTANCES["labels"][name](a) - DISTANCES["labels"][name](b)).square().sum(dim=1)
        torch.testing.assert_close(found, torch.stack(expected).mean(dim=0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["mutual_information", "predictive_entropy", "expected_entropy", "mean_pairwise_kl"])
def test_uncertainty_is_the_sum_over_labels(name):
    probs = bernoulli(torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 4)
    metric = getattr(ge.metrics, name)
    expected = sum(metric(probs[:, :, k]) for k in range(3))
    torch.testing.assert_close(metric(probs), expected, rtol=1e-12, atol=0)
    assert isinstance(metric(probs.numpy()), np.ndarray)
    with pytest.raises(ValueError, match="probs"):
        metric(torch.full((2, 5, 3, 4), 0.25))  # labels of four outcomes
    with pytest.raises(ValueError, match="probs"):
        ge.metrics.max_probability(probs)


def test_joint_mutual_information_is_that_of_all_outcomes_of_one_member():
    """For one member the sum is the entropy of the joint distribution, which a mean over labels is not."""
    p = torch.tensor([0.2, 0.7, 0.9], dtype=torch.float64)
    joint = [math.prod(p[k].item() if o >> k & 1 else 1 - p[k].item() for k in range(3)) for o in range(8)]
    found = ge.metrics.predictive_entropy(torch.stack([1 - p, p], dim=1)[None, None])
    assert found.item() == pytest.approx(-sum(q * math.log(q) for q in joint), rel=1e-12)


def by_hand(model, earlier, x, y, samples, steps, strength, size, lr):
    """Train a member as the definitions say."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    for _ in range(steps):
        p = model(x).sigmoid()
        loss = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
        own, distances = model(samples).sigmoid(), []
        for other in earlier:
            theirs = other(samples).sigmoid().detach()
            pairs = (own - theirs).square() + ((1 - own) - (1 - theirs)).square()
            distances.append(pairs.mean(dim=1).mean())
        term = torch.logsumexp(-(strength / size) * torch.stack(distances), dim=0) if earlier else 0.0
        optimizer.zero_grad()
        (loss + term).backward()
        optimizer.step()
    return model


def test_training_is_what_the_definitions_say():
    class Always:
        """One sample of p* only, so that every step takes the same."""

        def sample(self, n, generator):
            return torch.tensor([[4.0, -3.0, 2.0]], dtype=torch.float64).repeat(n, 1)

    recipe = ge.Recipe(epochs=5, batch_size=60, lr=0.5, momentum=0, weight_decay=0, schedule="constant")
    options = {"recipe": recipe, "validation": 0, "progress": False, "device": "cpu", "weighting": Always()}
    found = ge.fit(double, (X.double(), Y), size=3, strength=30.0, targets="labels", **options)
    starts = []
    for seed in range(3):
        torch.manual_seed(seed)
        starts.append(double())
    sample, done = Always().sample(4, None), []
    for model in starts:
        done.append(by_hand(model, list(done), X.double(), Y.double(), sample, 5, 30.0, 3, 0.5))
    expected = torch.stack([model(X.double()).sigmoid() for model in done])
    torch.testing.assert_close(found.predict_proba(X.double())[..., 1], expected, rtol=1e-5, atol=1e-6)


def test_it_learns_and_is_read_again(fitted, tmp_path):
    ensemble, folder = fitted
    probs = ensemble.predict_proba(X)
    assert probs.shape == (3, 60, 4, 2)
    assert (probs.mean(dim=0).argmax(dim=-1) == Y).float().mean() > 0.9
    torch.testing.assert_close(ensemble.predict_log_proba(X).exp(), probs)
    expected = sum(ge.metrics.mutual_information(probs[:, :, k]) for k in range(4))
    torch.testing.assert_close(ensemble.uncertainty(X).epistemic, expected)
    assert ge.load_run(folder).information["configuration"]["targets"] == "labels"
    ensemble.calibrate(X)
    assert ensemble.flag(X).shape == (60,)
    ensemble.save(tmp_path / "saved")
    for again in (
        ge.load_run(folder, make_model).ensemble,
        ge.Ensemble.load(tmp_path / "saved", make_model),
        copy.deepcopy(ensemble),
        ge.Ensemble.from_members(ensemble, targets="labels"),
    ):
        assert torch.equal(again.predict_proba(X), probs)
    assert torch.equal(ensemble[:2].predict_proba(X), probs[:2])
    assert torch.equal(ge.Ensemble.load(tmp_path / "saved", make_model).flag(X), ensemble.flag(X))


def test_the_exported_graph_says_the_same(fitted, tmp_path):
    ensemble = ge.Ensemble.from_members(fitted[0], targets="labels")
    ensemble.export_torch(tmp_path / "graph.pt2", X)
    outputs = torch.export.load(tmp_path / "graph.pt2").module()(X)
    torch.testing.assert_close(outputs["probabilities"], ensemble.predict_proba(X).mean(dim=0))
    torch.testing.assert_close(outputs["epistemic"], ensemble.uncertainty(X).epistemic, rtol=1e-4, atol=1e-6)


class Items(Dataset):
    def __len__(self):
        return len(X)

    def __getitem__(self, position):
        return X[position], Y[position].float()


def test_data_of_every_kind_trains_the_same(quick):
    options = {**quick, "size": 2, "targets": "labels", "validation": (X[:20], Y[:20])}
    pair = ge.fit(make_model, (X, Y), **options).predict_proba(X)
    for data in ((X.numpy(), Y.numpy().astype(bool)), TensorDataset(X, Y), Items(), (X, Y, torch.ones(60))):
        torch.testing.assert_close(ge.fit(make_model, data, **options).predict_proba(X), pair, rtol=1e-4, atol=1e-5)
    loader = ge.fit(make_model, DataLoader(Items(), batch_size=16, shuffle=True), **options)
    assert loader.predict_proba(X).shape == pair.shape


@pytest.mark.parametrize("select_by", ["accuracy", "nll", "own"])
def test_the_best_epoch_is_chosen_over_all_labels(select_by, quick):
    seen = []

    def own(probs, labels):
        assert probs.shape == (12, 4, 2)
        assert labels.shape == (12, 4)
        return float((probs.argmax(dim=-1) == labels).all(dim=1).double().mean())  # all labels of an example

    def judge(event):
        model = copy.deepcopy(event.model).eval()
        with torch.no_grad():
            p = model(held_x).sigmoid()
        of_labels = torch.where(held_y == 1, p, 1 - p)
        score = {"accuracy": (of_labels > 0.5).float().mean(), "nll": of_labels.log().mean()}.get(select_by)
        seen.append((event, own(bernoulli(model(held_x)), held_y) if score is None else score.item()))

    held_x, held_y = X[:12], Y[:12]
    recipe = ge.Recipe(epochs=4, batch_size=16, select_by=own if select_by == "own" else select_by)
    data = {"validation": (held_x, held_y), "callbacks": [judge]}
    ge.fit(linear, (X, Y), size=1, targets="labels", **{**quick, "recipe": recipe}, **data)
    for event, score in seen:
        assert event.validation_score == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_methods_train_labels_or_say_why_not(method, quick):
    chosen = ge.method.Hyper(label_smoothing=(0, 0)) if method == "hyper" else method
    schedule = "concurrent" if METHODS[method].sees == "all" else "sequential"
    options = {**quick, "size": 2, "targets": "labels", "schedule": schedule, "method": chosen}
    model = wide if method != "dropout" else lambda: nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 4))
    if method == "batch":
        with pytest.raises(ValueError, match="targets"):
            ge.fit(model, (X, Y), **options)
    else:
        assert ge.fit(model, (X, Y), **options).predict_proba(X).shape == (2, 60, 4, 2)


def test_what_will_not_do_is_refused(fitted, quick):
    def one():
        return nn.Linear(3, 1)

    classes = ge.Ensemble.from_members([make_model()])
    for told, model, data, options in (
        ("labels must have shape", make_model, (X, Y[:, 0]), {}),
        ("two classes", one, (X, Y[:, :1]), {}),
        ("0 and 1", make_model, (X, Y * 2), {}),
        ("0 and 1", make_model, (X, Y * 0.5), {}),
        ("labels have 2 columns", one, (X, Y[:, :2]), {}),
        ("labels have 4 columns", lambda: nn.Linear(3, 5), (X, Y), {}),
        ("sigmoid", lambda: nn.Sequential(nn.Linear(3, 4), nn.Sigmoid()), (X, Y), {}),
        ("validation", make_model, (X, Y), {"validation": (X, Y[:, :3])}),
        ("labels of validation", make_model, (X, Y), {"validation": (X, Y[:, 0])}),
        ("earlier", make_model, (X, Y), {"earlier": classes, "size": 2}),
        ("label smoothing", make_model, (X, Y), {"method": "hyper"}),
        ("targets='labels'", make_model, (X, Y), {"targets": "classes"}),
        ("targets", make_model, (X, Y), {"targets": "several"}),
    ):
        with pytest.raises(ValueError, match=told):
            ge.fit(model, data, **{"size": 1, "targets": "labels", **quick, **options})
    ensemble = fitted[0]
    with pytest.raises(ValueError, match="y must be left out"):
        ensemble.calibrate(X, Y)
    for predict in (ensemble.predict_set, ensemble.predict_calibrated):
        with pytest.raises(ValueError, match="this ensemble predicts labels"):
            predict(X)
    with pytest.raises(ValueError, match="two labels or more"):
        ge.Ensemble.from_members([one()], targets="labels").predict_proba(X)
    with pytest.raises(ValueError, match="independent labels"):
        ge.benchmark.predict(ensemble, X)


def test_commands_say_that_they_are_for_classes(fitted, invoke, tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    done = invoke("predict", fitted[1], tmp_path / "x.npy", "--model", f"{__name__}:make_model")
    assert done.exit_code != 0
    assert "labels" in done.output


def test_the_estimator_takes_an_indicator_matrix():
    recipe = ge.Recipe(epochs=30, optimizer="adamw", lr=0.02)
    classifier = ge.GreedyEnsembleClassifier(2, hidden=(16,), recipe=recipe, device="cpu")
    fitted = copy.copy(classifier).fit(X.numpy(), Y.numpy())
    probabilities = fitted.predict_proba(X.numpy())
    assert probabilities.shape == (60, 4)
    assert fitted.classes_.tolist() == [0, 1, 2, 3]
    assert ((probabilities > 0.5) == fitted.predict(X.numpy())).all()
    assert fitted.score(X.numpy(), Y.numpy()) > 0.6
    again = copy.deepcopy(fitted)
    np.testing.assert_array_equal(again.uncertainty(X.numpy()).epistemic, fitted.uncertainty(X.numpy()).epistemic)
    # A row of weight 0 counts as not there, and one of weight 2 as two.
    weights = np.r_[np.zeros(20), np.ones(20), np.full(20, 2.0)]
    rows = np.r_[20:60, 40:60]
    weighted = copy.copy(classifier).fit(X.numpy(), Y.numpy(), sample_weight=weights)
    repeated = copy.copy(classifier).fit(X.numpy()[rows], Y.numpy()[rows])
    np.testing.assert_array_equal(weighted.predict_proba(X.numpy()), repeated.predict_proba(X.numpy()))
    with pytest.raises(ValueError, match="class_weight"):
        ge.GreedyEnsembleClassifier(class_weight="balanced").fit(X.numpy(), Y.numpy())


def test_what_was_trained_on_can_be_predicted_labels_and_all(fitted):
    ensemble = fitted[0]
    expected = ensemble.predict_proba(X)
    for data in ((X, Y), (X.numpy(), Y.numpy()), (X, Y.bool()), (X, Y, torch.ones(60)), TensorDataset(X, Y)):
        assert torch.equal(ensemble.predict_proba(data), expected)
    with pytest.raises(ValueError, match="tuple"):  # two tables, of which one would be left out
        ensemble.predict_proba((X, X))
