"""What `ge.fit` promises: Algorithm 2, its seeds, and what depends on what."""

import random
import weakref
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from tests.training.members import Recorder, all_same, same
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.generators import WEIGHTING_SET, generator
from greedy_ensembles.training.validate import split


def with_batchnorm():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def with_dropout():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))


@pytest.mark.parametrize("model", [with_batchnorm, with_dropout, lambda: ge.models.MLP(2, (8,))])
@pytest.mark.parametrize("method", [{"method": "deep"}, {"strength": 3.0}])
def test_two_runs_of_one_seed_agree_bit_for_bit(model, method, blobs, quick):
    first, second = (ge.fit(model, blobs, size=3, seed=5, **method, **quick) for _ in range(2))
    assert all_same(first, second)
    other = ge.fit(model, blobs, size=3, seed=50, **method, **quick)
    assert not any(same(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("model", [with_batchnorm, lambda: ge.models.MLP(2, (8,))])
def test_strength_zero_is_deep_ensembles_bit_for_bit(model, blobs, quick):
    deep = ge.fit(model, blobs, size=3, method="deep", **quick)
    zero = ge.fit(model, blobs, size=3, strength=0, **quick)
    strong = ge.fit(model, blobs, size=3, strength=5.0, **quick)
    assert all_same(deep, zero)
    assert same(deep[0], strong[0])  # the first member has no diversity term
    assert not same(deep[1], strong[1])


def test_a_member_depends_on_no_later_one(blobs, make_model, quick):
    # Their terms hold lambda_M / M: the same ratio at another size gives the same members.
    small = ge.fit(make_model, blobs, size=2, strength=2.0, **quick)
    large = ge.fit(make_model, blobs, size=4, strength=4.0, **quick)
    assert all_same(small, large[:2])


def test_a_member_depends_on_all_earlier_ones(blobs, make_model, quick):
    base = ge.fit(make_model, blobs, size=3, strength=5.0, **quick)
    for changed in range(2):
        members = [make_model() if k == changed else base[k] for k in range(2)]
        other = ge.fit(make_model, blobs, size=3, strength=5.0, earlier=ge.Ensemble.from_members(members), **quick)
        assert not same(other[2], base[2])


def test_seeds_of_members_follow_algorithm_2(blobs, make_model, quick):
    """Member k of seed s starts from s + k - 1: with the split fixed, it is the first member of that seed."""
    options = {**quick, "validation": 0}
    three = ge.fit(make_model, blobs, size=3, method="deep", seed=10, **options)
    for k in range(3):
        alone = ge.fit(make_model, blobs, size=1, method="deep", seed=10 + k, **options)
        assert same(three[k], alone[0])


def test_one_member_by_hand(blobs):
    """The second member of a greedy ensemble, trained again by a plain loop that shares no code with the engine."""
    x, y = blobs
    fields = {"epochs": 2, "batch_size": 20, "weighting_batch_size": 7, "lr": 0.05, "weight_decay": 0.01}
    recipe = ge.Recipe(**fields, schedule="constant", weighting_statistics="running")
    ensemble = ge.fit(
        with_batchnorm, blobs, size=2, strength=3.0, seed=4, recipe=recipe, validation=0, progress=False, device="cpu"
    )
    mean, std = x.double().mean(0).float(), x.double().std(0, unbiased=False).float()
    draw = torch.randn(60, 2, generator=generator(WEIGHTING_SET, 4))
    samples = draw * (5 * std) + mean
    with torch.no_grad():
        row = ensemble[0](samples).softmax(1)
    torch.manual_seed(4 + 1)
    model = with_batchnorm()
    velocity = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    step = 0
    for epoch in range(2):
        order = torch.randperm(60, generator=generator(3, 5, epoch))
        for batch in order.split(20):
            chosen = torch.randint(60, (7,), generator=generator(2, 4, step))
            model.train()
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            model.eval()  # all of BatchNorm, and there is no dropout
            squares = (model(samples[chosen]).softmax(1) - row[chosen]) ** 2
            term = -(3.0 / 2) * squares.sum(1).mean()  # the log of one exponential
            pushes = torch.autograd.grad(term, list(model.parameters()))
            with torch.no_grad():
                for (name, p), gradient, push in zip(model.named_parameters(), gradients, pushes, strict=True):
                    velocity[name] = 0.9 * velocity[name] + gradient + push + 0.01 * p
                    p -= 0.05 * velocity[name]
            step += 1
    for name, value in model.state_dict().items():
        torch.testing.assert_close(ensemble[1].state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_greedy_members_differ_more_on_p_star_at_equal_validation_accuracy(blobs):
    x, y = blobs
    recipe = ge.Recipe(epochs=40, batch_size=16)
    _, held_out = split(y, 0.2, seed=0)
    options = {"size": 4, "recipe": recipe, "progress": False, "validation": 0.2, "device": "cpu"}
    deep = ge.fit(lambda: ge.models.MLP(2, (32,)), blobs, method="deep", **options)
    greedy = ge.fit(lambda: ge.models.MLP(2, (32,)), blobs, strength=4.0, **options)
    samples = ge.weighting.Gaussian.from_data(x).sample(2000, torch.Generator().manual_seed(9))

    def distance(ensemble):
        probs = ensemble.predict_proba(samples)
        pairs = [(probs[i] - probs[j]).square().sum(1).mean() for i in range(4) for j in range(i)]
        return float(torch.stack(pairs).mean())

    def correct(ensemble):
        return int((ensemble.predict_proba(x[held_out]).mean(0).argmax(1) == y[held_out]).sum())

    assert abs(correct(greedy) - correct(deep)) <= 1  # of 12
    assert distance(greedy) > 2 * distance(deep)


def test_the_split_is_stratified_and_of_the_seed_alone():
    labels = torch.tensor([0] * 80 + [1] * 20)
    train, held_out = split(labels, 0.1, seed=3)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(100))
    assert torch.bincount(labels[held_out]).tolist() == [8, 2]
    expected = train_test_split(np.arange(100), test_size=0.1, stratify=labels.numpy(), random_state=3)[1]
    assert held_out.tolist() == expected.tolist()
    assert held_out.tolist() != split(labels, 0.1, seed=4)[1].tolist()
    everything, nothing = split(labels, 0, seed=3)
    assert (everything.tolist(), len(nothing)) == (list(range(100)), 0)


def test_the_best_epoch_is_kept_and_of_equal_ones_the_latest(blobs, make_model):
    record = Recorder()
    recipe = ge.Recipe(epochs=12, batch_size=8, lr=0.3)
    ensemble = ge.fit(
        make_model, blobs, size=2, method="deep", recipe=recipe, validation=0.3, progress=False, callbacks=[record]
    )
    for k in range(2):
        accuracies = [event.validation_accuracy for event in record.events[12 * k : 12 * k + 12]]
        best = [epoch for epoch, accuracy in enumerate(accuracies) if accuracy == max(accuracies)]
        assert len(best) > 1  # a tie, which the test is about
        assert same(ensemble[k], record.models[12 * k + best[-1]])
        assert not same(ensemble[k], record.models[12 * k + best[0]])


def test_without_validation_the_last_epoch_is_kept(blobs, make_model, quick):
    record = Recorder()
    ensemble = ge.fit(make_model, blobs, size=1, method="deep", validation=0, callbacks=[record], **quick)
    assert same(ensemble[0], record.models[-1])
    assert record.events[0].validation_accuracy is None


def test_callbacks_hear_every_epoch_and_cannot_disturb_training(blobs, quick):
    def meddle(event):
        torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002

    record = Recorder()
    plain = ge.fit(with_dropout, blobs, size=2, strength=1.0, **quick)
    watched = ge.fit(with_dropout, blobs, size=2, strength=1.0, callbacks=[record, meddle], **quick)
    assert all_same(plain, watched)
    assert [(e.member, e.epoch, e.size, e.epochs) for e in record.events] == [
        (m, e, 2, 3) for m in (1, 2) for e in (1, 2, 3)
    ]
    assert [e.diversity is None for e in record.events] == [True] * 3 + [False] * 3
    assert all(e.loss > 0 and e.seconds > 0 for e in record.events)


def test_the_callers_generators_are_left_alone(blobs, make_model, quick):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ge.fit(make_model, blobs, size=1, method="deep", **quick)
    assert torch.equal(torch.rand(3), expected)


def test_batchnorm_statistics_never_see_p_star(blobs):
    """With p* a million away, statistics that had seen it would show it."""
    far = ge.weighting.Gaussian(torch.full((2,), 1e6), torch.ones(2))
    recipe = ge.Recipe(epochs=1, batch_size=16, lr=1e-6)
    ensemble = ge.fit(
        with_batchnorm, blobs, size=2, strength=1.0, weighting=far, recipe=recipe, progress=False, device="cpu"
    )
    assert ensemble[1][1].running_mean.abs().max() < 100


def test_distance_of_logits_is_another_method(blobs, make_model, quick):
    a = ge.fit(make_model, blobs, size=2, strength=1e-3, **quick)
    b = ge.fit(make_model, blobs, size=2, strength=1e-3, distance="logits", **quick)
    assert same(a[0], b[0])
    assert not same(a[1], b[1])


def test_earlier_members_count_as_already_there(blobs, make_model, quick):
    whole = ge.fit(make_model, blobs, size=4, strength=2.0, **quick)
    continued = ge.fit(make_model, blobs, size=4, strength=2.0, earlier=whole[:2], **quick)
    assert len(continued) == 4
    assert continued[0] is whole[0]
    assert all_same(whole, continued)


@pytest.mark.parametrize("folder", [None, "run"])
def test_earlier_members_may_be_of_another_kind(blobs, make_model, quick, folder, tmp_path):
    elsewhere = ge.Ensemble.from_members([nn.Linear(2, 2), with_dropout()])
    run_dir = None if folder is None else tmp_path / folder
    ensemble = ge.fit(make_model, blobs, size=3, strength=2.0, earlier=elsewhere, run_dir=run_dir, **quick)
    assert len(ensemble) == 3
    assert isinstance(ensemble[0], nn.Linear)
    assert ensemble.predict_proba(blobs[0]).shape == (3, 60, 2)


def test_callbacks_may_come_from_a_generator(blobs, make_model, quick):
    heard = []
    ge.fit(make_model, blobs, size=1, method="deep", callbacks=(c for c in [heard.append]), **quick)
    assert len(heard) == 3


def test_one_model_at_a_time_is_alive(blobs, quick, tmp_path):
    alive = weakref.WeakSet()

    def make():
        model = ge.models.MLP(2, (4,))
        alive.add(model)
        return model

    counts = []
    ge.fit(
        make,
        blobs,
        size=4,
        strength=1.0,
        run_dir=tmp_path / "run",
        callbacks=[lambda e: counts.append(len(alive))],
        **quick,
    )
    assert max(counts) == 1


def test_custom_loss_optimizer_and_augmentation_are_used(blobs, make_model):
    calls = {"loss": 0, "augment": 0}

    def loss(logits, targets):
        calls["loss"] += 1
        return nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)

    def augment(batch):
        calls["augment"] += 1
        return batch + 0.01 * torch.randn_like(batch)

    recipe = ge.Recipe(
        epochs=2, batch_size=18, loss=loss, augment=augment, optimizer=lambda p: torch.optim.Adam(p, lr=0.01)
    )
    ge.fit(make_model, blobs, size=2, strength=1.0, recipe=recipe, progress=False, device="cpu")
    assert calls == {"loss": 1 + 2 * 2 * 3, "augment": 1 + 2 * 2 * 3}  # one trial, then members x epochs x batches


def test_p_star_samples_of_a_step_are_the_same_for_every_member(blobs, make_model, quick):
    seen = []

    class Noting(ge.Coupling):
        label = "noting"

        def terms(self, live, bank):
            seen.append(bank[0].clone())  # what the first member says of the step's samples
            return live.sum(dim=(1, 2)) * 0

    ge.fit(make_model, blobs, size=3, method=Noting(), **quick)
    steps = 3 * 4  # epochs x batches of 54 in 16
    second, third = seen[1 : 1 + steps], seen[1 + steps :]  # the first is a trial before training
    assert len(third) == steps
    assert all(torch.equal(a, b) for a, b in zip(second, third, strict=True))
    assert all(len(rows) == 16 for rows in second)
    assert not any(torch.equal(a, b) for a, b in pairwise(second))


def test_earlier_members_of_bytes_and_floats_of_one_scale_go_together(quick):
    images = torch.randint(256, (60, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2

    def make_model():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    for first, second in ((images, images.float() / 255), (images.float() / 255, images)):
        earlier = ge.fit(make_model, (first, y), size=1, strength=1.0, **quick)
        both = ge.fit(make_model, (second, y), size=2, strength=1.0, earlier=earlier, **quick)
        torch.testing.assert_close(both[0](images / 255), earlier[0](images / 255))
