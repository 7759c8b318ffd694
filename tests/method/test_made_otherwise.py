"""Methods that change how members are made, each against a loop of its own in double precision."""

import itertools
import math
import types

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear

import greedy_ensembles as ge
from greedy_ensembles.method import Batch, Dropout, Hyper

EXAMPLES, CLASSES, BATCH, LR, MOMENTUM, DECAY, SEED = 22, 3, 8, 0.05, 0.9, 0.01, 7
SMALL = {"batch_size": BATCH, "lr": LR, "weight_decay": DECAY, "schedule": "constant"}


def mlp(dropout=0.25):
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Dropout(dropout), nn.Linear(6, CLASSES)).double()


def plain_mlp():
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def data():
    y = torch.arange(EXAMPLES) % CLASSES
    return torch.randn(EXAMPLES, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + y[:, None], y


def fit(make_model=mlp, size=3, **options):
    own = {"schedule": "anneal"} if options.get("method") == "snapshot" else {}  # which has a schedule of its own
    recipe = ge.Recipe(**{"epochs": 4, **SMALL, **own, **options.pop("recipe", {})})
    return ge.fit(make_model, data(), size=size, recipe=recipe, seed=SEED, validation=0, progress=False, **options)


def batches(epoch, seed=SEED):
    """Return the examples of an epoch's steps: shuffled by (3, seed, epoch), as all members are."""
    key = int(np.random.SeedSequence((3, seed, epoch)).generate_state(1, np.uint64)[0])
    return torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(key)).split(BATCH)


def descend(weights, loss, velocities, rate=LR, decay=DECAY):
    """Take a step of SGD with momentum and weight decay, written out."""
    gradients = torch.autograd.grad(loss, list(weights.values()))
    for (name, value), gradient in zip(list(weights.items()), gradients, strict=True):
        velocities[name] = MOMENTUM * velocities.get(name, 0) + gradient + decay * value.detach()
        weights[name] = (value.detach() - rate * velocities[name]).requires_grad_()


def assert_same(member, weights):
    state = member.state_dict()
    assert state.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(state[name], value.detach(), rtol=1e-9, atol=1e-11, msg=name)


def resumed(tmp_path, method, recipe, make_model=mlp):
    """Return an ensemble whose training was interrupted after its third epoch."""

    def interrupt(event):
        if event.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(make_model, method=method, recipe=recipe, run_dir=tmp_path, callbacks=[interrupt])
    return fit(make_model, method=method, recipe=recipe, run_dir=tmp_path)


# ---- Snapshot Ensembles


@pytest.mark.parametrize(("epochs", "ends"), [(6, [2, 4, 6]), (7, [3, 5, 7])])
def test_snapshots_are_those_of_one_cyclic_training(epochs, ends):
    """Weights and momentum go on from cycle to cycle; the rate falls along a cosine and starts again."""
    torch.manual_seed(SEED)
    weights = {name: value.detach().requires_grad_() for name, value in plain_mlp().named_parameters()}
    velocities, snapshots = {}, []
    starts = [0, *ends]
    for epoch in range(epochs):
        cycle = sum(epoch >= end for end in ends)
        length, steps = ends[cycle] - starts[cycle], batches(epoch)
        for number, chosen in enumerate(steps):
            x, y = (part[chosen] for part in data())
            hidden = linear(x, weights["0.weight"], weights["0.bias"]).tanh()
            loss = cross_entropy(linear(hidden, weights["2.weight"], weights["2.bias"]), y)
            passed = epoch - starts[cycle] + number / len(steps)
            descend(weights, loss, velocities, LR / 2 * (math.cos(math.pi * passed / length) + 1))
        if epoch + 1 in ends:
            snapshots.append({name: value.detach().clone() for name, value in weights.items()})
    for member, snapshot in zip(fit(plain_mlp, method="snapshot", recipe={"epochs": epochs}), snapshots, strict=True):
        assert_same(member, snapshot)


def test_snapshots_have_histories_of_their_own_cycles(tmp_path):
    fit(method="snapshot", recipe={"epochs": 7}, run_dir=tmp_path)
    run = ge.load_run(tmp_path, mlp)
    assert [[epoch["epoch"] for epoch in history] for history in run.histories] == [[1, 2, 3], [4, 5], [6, 7]]
    assert [member["selected_epoch"] for member in run.members] == [3, 5, 7]


# ---- Hyper ensembles


def test_a_hyper_member_is_trained_with_what_it_drew(tmp_path):
    """By a loop with the rate, decay and smoothing that its file tells; the network has no dropout."""
    ensemble = fit(plain_mlp, method="hyper", run_dir=tmp_path)
    for k, facts in enumerate(ge.load_run(tmp_path, plain_mlp).members):
        drawn = facts["recipe"]
        smoothing = drawn["loss"]["keywords"]["label_smoothing"]
        torch.manual_seed(SEED + k)
        weights = {name: value.detach().requires_grad_() for name, value in plain_mlp().named_parameters()}
        velocities = {}
        for epoch in range(4):
            for chosen in batches(epoch, SEED + k):
                x, y = (part[chosen] for part in data())
                hidden = linear(x, weights["0.weight"], weights["0.bias"]).tanh()
                logs = linear(hidden, weights["2.weight"], weights["2.bias"]).log_softmax(dim=1)
                targets = (1 - smoothing) * torch.eye(CLASSES, dtype=torch.float64)[y] + smoothing / CLASSES
                descend(weights, -(targets * logs).sum(dim=1).mean(), velocities, drawn["lr"], drawn["weight_decay"])
        assert_same(ensemble[k], weights)


def test_hyperparameters_fill_their_ranges():
    """Factors are log-uniform, shares uniform: a half of each on either side of its middle."""
    method = Hyper(lr=(0.1, 10.0), weight_decay=(0.01, 1.0), label_smoothing=(0.1, 0.3), dropout=(0.1, 0.5))
    recipe = ge.Recipe(lr=0.2, weight_decay=0.5)
    drawn = [method.recipe(recipe, k, seed) for k, seed in itertools.product(range(1, 11), range(40))]
    values = {
        "lr": np.array([math.log10(one.lr / 0.2) for one in drawn]) / 2 + 0.5,
        "weight_decay": np.array([math.log10(one.weight_decay / 0.5) for one in drawn]) / 2 + 1,
        "smoothing": np.array([one.loss.keywords["label_smoothing"] for one in drawn]) / 0.2 - 0.5,
        "dropout": np.array([method.build(mlp(), k, s)[2].p for k in range(1, 11) for s in range(40)]) / 0.4 - 0.25,
    }
    for name, shares in values.items():
        assert 0 <= shares.min() < 0.05 < 0.95 < shares.max() <= 1, name
        assert 0.4 < (shares < 0.5).mean() < 0.6, name  # four standard errors
    assert len({one.lr for one in drawn}) == 400


def test_smoothing_keeps_what_rows_weigh():
    """Of shares of classes, such as mixup's, and of rows that weigh something; a class index is a row of weight 1."""
    loss = Hyper(label_smoothing=(0.3, 0.3)).recipe(ge.Recipe(), 1, SEED).loss
    logits, rows = torch.randn(4, CLASSES, dtype=torch.float64), torch.rand(4, CLASSES, dtype=torch.float64)
    one_hot = torch.eye(CLASSES, dtype=torch.float64)[[2, 0, 1, 2]]
    for given, targets in ((rows, rows), (one_hot, one_hot), (torch.tensor([2, 0, 1, 2]), one_hot)):
        expected = 0.0
        for z, row in zip(logits.tolist(), targets.tolist(), strict=True):
            scale = math.log(sum(map(math.exp, z)))
            smooth = [0.7 * share + 0.3 * sum(row) / CLASSES for share in row]
            expected -= sum(share * (one - scale) for share, one in zip(smooth, z, strict=True)) / 4
        assert loss(logits, given).item() == pytest.approx(expected, rel=1e-12)


# ---- BatchEnsemble


def rank_one(weights, name, k, x):
    """Return a member's layer with its weight written out: W times s r^T, element by element."""
    own = weights[f"{name}.layer.weight"] * torch.outer(weights[f"{name}.s"][k], weights[f"{name}.r"][k])
    return linear(x, own, weights[f"{name}.bias"][k])


def test_batch_members_are_those_of_written_out_weights():
    size = 3
    torch.manual_seed(SEED)
    built = Batch()
    built.size = size
    start = built.build(plain_mlp(), 1, SEED).network
    weights = {name: value.detach().clone().requires_grad_() for name, value in start.named_parameters()}
    velocities = {}
    for epoch in range(4):
        for chosen in batches(epoch):
            x, y = (part[chosen] for part in data())
            losses = [
                cross_entropy(rank_one(weights, "2", k, rank_one(weights, "0", k, x).tanh()), y) for k in range(size)
            ]
            descend(weights, sum(losses) / size, velocities)
    ensemble = fit(plain_mlp, size, method="batch")
    for k, member in enumerate(ensemble):
        state = member.state_dict()
        for name, value in weights.items():
            expected = value.detach() if name.endswith("layer.weight") else value.detach()[k : k + 1]
            torch.testing.assert_close(state[name], expected, rtol=1e-9, atol=1e-11, msg=f"{name} of member {k + 1}")
        x = data()[0]
        logits = rank_one(weights, "2", k, rank_one(weights, "0", k, x).tanh())
        torch.testing.assert_close(member(x), logits, rtol=1e-9, atol=1e-11)


def test_a_convolution_has_a_rank_one_weight_over_channels():
    torch.manual_seed(0)
    conv = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2).double()
    weight, bias = conv.weight.detach().clone(), conv.bias.detach().clone()
    built = Batch()
    built.size = 2
    tiled = built.build(nn.Sequential(conv, nn.Flatten(), nn.Linear(6 * 9, 2).double()), 1, 0)
    layer = tiled.network[0]
    assert set(layer.r.detach().unique().tolist()) <= {-1.0, 1.0}
    with torch.no_grad():
        layer.r.uniform_(0.5, 2.0)
        layer.s.uniform_(0.5, 2.0)
        layer.bias.uniform_(-1, 1)
    x = torch.randn(2 * 3, 4, 6, 6, dtype=torch.float64)
    for k, rows in enumerate(x.split(3)):
        inputs = layer.r[k].view(2, 2).repeat_interleave(3, dim=0)  # channels of its group that an output sees
        own = weight * (layer.s[k][:, None] * inputs)[:, :, None, None]
        expected = conv2d(rows, own, layer.bias[k], stride=2, padding=1, groups=2)
        torch.testing.assert_close(layer(x)[3 * k : 3 * k + 3], expected)
    assert not torch.allclose(layer.bias[0], bias)


def test_the_network_of_all_batch_members_predicts_their_mean():
    built = Batch()
    built.size = 3
    tiled = built.build(plain_mlp(), 1, 0).eval()
    x = data()[0]
    members = built.members(tiled, [], 0)
    mean = torch.stack([member(x).softmax(dim=1) for member in members]).mean(dim=0)
    torch.testing.assert_close(tiled(x).softmax(dim=1), mean)
    assert not torch.allclose(members[0](x), members[1](x))


class TwoInputs(nn.Module):
    """What transformers look like: named inputs, and an object with logits."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(2, CLASSES).double(), nn.Linear(2, CLASSES).double()

    def forward(self, left, right):
        return types.SimpleNamespace(logits=self.left(left) + self.right(right))


@pytest.mark.parametrize("method", ["batch", "snapshot"])
def test_models_may_take_several_inputs_and_return_an_object(method):
    x, y = data()
    recipe = ge.Recipe(epochs=3, **SMALL | {"schedule": "anneal"})
    options = {"size": 3, "method": method, "recipe": recipe, "validation": 0, "progress": False}
    given = {"left": x, "right": x.flip(0)}, (x, x.flip(0))
    named, placed = (ge.fit(TwoInputs, (inputs, y), **options).predict_proba(inputs) for inputs in given)
    assert named.shape == (3, EXAMPLES, CLASSES)
    assert torch.equal(named, placed)


class Reading(nn.Module):
    """What asks its layers for something, beside calling them."""

    def __init__(self, name):
        super().__init__()
        self.name, self.first, self.last = name, nn.Linear(2, 6), nn.Linear(6, CLASSES)

    def forward(self, x):
        found = getattr(self.last, self.name)
        return linear(self.first(x), found) if self.name == "weight" else self.last(self.first(x)) / found


def test_a_weight_that_the_model_reads_is_refused_and_what_members_share_is_not():
    x, y = data()
    options = {"size": 2, "method": "batch", "recipe": ge.Recipe(epochs=1, **SMALL), "validation": 0, "progress": False}
    with pytest.raises(ValueError, match="weight of layer 'last'"):
        ge.fit(lambda: Reading("weight"), (x.float(), y), **options)
    assert len(ge.fit(lambda: Reading("in_features"), (x.float(), y), **options)) == 2


# ---- MC dropout


def test_a_mask_is_the_same_for_all_inputs_and_another_for_each_member():
    ensemble = fit(lambda: mlp(0.5), method="dropout")
    x = torch.randn(50, 2, dtype=torch.float64)
    alone = fit(lambda: mlp(0.5), 1, method="deep")[0].state_dict()  # the network of all of them
    for member in ensemble:
        state = member.state_dict()
        first, last = ((state[f"{i}.weight"], state[f"{i}.bias"]) for i in (0, 3))
        assert all(torch.equal(state[name], value) for name, value in alone.items())
        hidden = linear(x, *first).tanh()
        kept = [(member[2](hidden) / hidden)[i] for i in range(50)]
        assert all(torch.allclose(mask, kept[0]) for mask in kept)
        assert set(kept[0].round(decimals=9).tolist()) <= {0.0, 2.0}
        torch.testing.assert_close(member(x), linear(hidden * kept[0], *last))
        assert torch.equal(member(x), member(x))
    assert len({tuple(member[2](torch.ones(1, 6)).flatten().tolist()) for member in ensemble}) > 1


def test_a_layer_that_drops_all_of_its_units_returns_zeros():
    def make_model():
        return nn.Sequential(nn.Linear(2, 6), nn.Dropout(1.0), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, CLASSES))

    probs = fit(make_model, method="dropout").predict_proba(torch.randn(5, 2))
    assert torch.equal(probs[:, :1].expand_as(probs), probs)  # nothing of the input is left


def test_a_mask_comes_from_the_weights_that_were_loaded_last():
    one, other, _ = fit(method="dropout")
    x = torch.randn(5, 2, dtype=torch.float64)
    before = one(x)
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(x), other(x))
    assert not torch.equal(one(x), before)


def test_inputs_of_another_shape_have_a_mask_of_their_own():
    method = Dropout()
    method.size = 1
    model = nn.Sequential(nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 2))
    ones = {side: torch.ones(1, 1, side, side) for side in (4, 5)}
    member, fresh = (method.members(model, [], 5)[0][0] for _ in range(2))
    first = member(ones[4])
    assert torch.equal(member(ones[5]), fresh(ones[5]))
    assert torch.equal(member(ones[4]), first)


def test_a_channel_is_dropped_as_a_whole():
    model = nn.Sequential(nn.Conv2d(1, 64, 1), nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(64 * 9, 2))
    method = Dropout()
    method.size = 200
    masks = torch.stack([m[1](torch.ones(2, 64, 3, 3)) for m in method.members(method.build(model, 1, 0), [], 5)])
    assert torch.equal(masks, masks[:, :1, :, :1, :1].expand_as(masks))
    assert masks.unique().tolist() == pytest.approx([0, 1 / 0.75])
    # 12,800 draws: 4 standard errors are .015.
    assert (masks == 0).double().mean().item() == pytest.approx(0.25, abs=0.016)
