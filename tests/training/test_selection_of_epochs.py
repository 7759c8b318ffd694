"""Which epoch of a member is kept: by what score, with how much patience, of which weights."""

import dataclasses
import math

import pytest
import torch
from tests.training.members import Recorder, all_same, same
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.method import Deep

SCHEDULES = ["sequential", "concurrent"]


def noisy(n, seed):
    """Labels that a network learns by heart, so that the likelihood of others falls while accuracy stays."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    return torch.randn(n, 2, generator=generator) + y[:, None], y


def network():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


def train(record, schedule="sequential", data=None, size=2, **fields):
    fields = {"epochs": 15, "batch_size": 8, "lr": 0.2, "schedule": "constant", **fields}
    options = {"recipe": ge.Recipe(**fields), "schedule": schedule, "progress": False, "device": "cpu"}
    data = noisy(40, 0) if data is None else data
    return ge.fit(network, data, size=size, method="deep", validation=noisy(50, 1), callbacks=[record], **options)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_by_likelihood_the_epoch_of_the_smallest_nll_is_kept(schedule):
    record = Recorder()
    ensemble = train(record, schedule, select_by="nll")
    (x, y), reached = noisy(50, 1), []
    for number, kept in enumerate(ensemble, start=1):
        losses = [cross_entropy(model(x), y).item() for _, model in record.of(number)]
        accuracies = [(model(x).argmax(1) == y).float().mean().item() for _, model in record.of(number)]
        best = losses.index(min(losses))
        assert best not in (accuracies.index(max(accuracies)), len(losses) - 1)  # neither by accuracy nor the last
        assert same(kept, record.of(number)[best][1])
        reached.append(accuracies[best])
        assert [e.validation_score for e, _ in record.of(number)] == pytest.approx([-loss for loss in losses], abs=1e-5)
    shown = " to ".join(f"{share:.2%}" for share in sorted(set(reached)))
    assert ensemble.notes["Validation accuracy"].startswith(f"{shown} a member")


def test_by_likelihood_also_where_probabilities_round_to_zero():
    """Beyond a difference of 104 between logits, single precision has 0 for a probability."""

    class Sharp(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network()

        def forward(self, x):
            return 1000 * self.network(x)

    def own_loss(logits, targets):
        return cross_entropy(logits / 1000, targets)

    record = Recorder()
    recipe = ge.Recipe(epochs=10, batch_size=8, lr=0.2, schedule="constant", select_by="nll", loss=own_loss)
    options = {"size": 1, "method": "deep", "recipe": recipe, "progress": False, "device": "cpu"}
    x, y = noisy(50, 1)
    ensemble = ge.fit(Sharp, noisy(40, 0), validation=(x, y), callbacks=[record], **options)
    losses = [cross_entropy(model(x), y).item() for model in record.models]
    assert losses.index(min(losses)) != len(losses) - 1
    assert same(ensemble[0], record.models[losses.index(min(losses))])


def test_by_a_score_of_ones_own_the_largest_is_kept():
    record = Recorder()
    ensemble = train(record, size=1, select_by=lambda probs, labels: -probs.max(dim=1).values.mean())  # least certain
    x, _ = noisy(50, 1)
    certain = [model(x).softmax(1).max(1).values.mean().item() for _, model in record.of(1)]
    assert same(ensemble[0], record.models[certain.index(min(certain))])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_member_stops_when_it_did_not_improve_for_as_long_as_it_has_patience(schedule):
    whole, record = Recorder(), Recorder()
    train(whole, schedule, select_by="nll")
    ensemble = train(record, schedule, select_by="nll", patience=2)
    lengths = []
    for number, kept in enumerate(ensemble, start=1):
        scores = [e.validation_score for e, _ in whole.of(number)]
        stop = next(k for k in range(2, 15) if max(scores[: k - 1]) > max(scores[k - 1 : k + 1])) + 1
        lengths.append(stop)
        assert same(kept, whole.of(number)[scores.index(max(scores[:stop]))][1])
    assert max(lengths) < 15
    expected = lengths if schedule == "sequential" else [max(lengths)] * 2  # together, until all have stopped
    assert [len(record.of(number)) for number in (1, 2)] == expected


def test_equal_scores_are_no_improvement():
    record = Recorder()
    train(record, size=1, select_by=lambda probs, labels: 0.0, patience=3)
    assert len(record.events) == 4


def test_gradients_are_cut_down_to_a_norm_in_every_engine():
    """One step of plain SGD moves the weights by lr times the gradient, which is as long as `clip` at the most."""
    x, y = noisy(40, 0)
    fields = {"epochs": 1, "batch_size": 40, "momentum": 0.0, "weight_decay": 0.0, "lr": 0.5}
    for schedule in SCHEDULES:  # plain and stacked
        for clip in (0.01, None):
            torch.manual_seed(0)
            start = network()
            recipe = ge.Recipe(clip=clip, **fields)
            options = {"method": "deep", "validation": 0, "schedule": schedule, "progress": False, "device": "cpu"}
            ensemble = ge.fit(network, (x, y), size=2, recipe=recipe, **options)
            moved = [a - b for a, b in zip(ensemble[0].parameters(), start.parameters(), strict=True)]
            length = torch.cat([part.flatten() for part in moved]).norm().item() / 0.5
            if clip is None:
                assert length > 0.05
            else:
                assert length == pytest.approx(clip, rel=1e-3)


def test_an_average_that_is_mostly_the_initial_weights_is_told():
    """Of the README's example, 300 points and the default recipe, 0.999 made an NLL of .41 of .05, without a word."""
    x, y = noisy(60, 0)
    for ema, share in ((0.999, "82%"), (0.99, "13%")):
        with pytest.warns(UserWarning, match=f"ema={ema} leaves {share} .* initial weights .* 200 steps. Use 0.975 or"):
            ge.fit(network, (x, y), size=1, recipe=ge.Recipe(epochs=50, batch_size=16, ema=ema), progress=False)
    ge.fit(network, (x, y), size=1, recipe=ge.Recipe(epochs=50, batch_size=16, ema=0.98), progress=False)
    ge.fit(network, (x, y), size=1, recipe=ge.Recipe(epochs=3, batch_size=16, ema=0.999), progress=False)  # a try


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("validation", [0, 0.25])
def test_members_are_judged_and_kept_with_their_averaged_weights(schedule, validation):
    """The average of member 1, by a loop of its own over its weights after every step (one step an epoch)."""
    x, y = noisy(40, 0)
    trained, kept = [], []
    for ema in (None, 0.8):
        record = Recorder()
        fields = {"epochs": 6, "batch_size": 40, "lr": 0.3, "schedule": "constant", "ema": ema}
        options = {"method": "deep", "validation": validation, "schedule": schedule, "callbacks": [record]}
        recipe = ge.Recipe(**fields)
        ensemble = ge.fit(network, (x, y), size=2, recipe=recipe, progress=False, device="cpu", **options)
        trained.append(record.of(1))
        kept.append(ensemble[0])
    for (_, plain), (_, averaging) in zip(*trained, strict=True):
        assert all(
            torch.allclose(a, b, atol=1e-6) for a, b in zip(plain.parameters(), averaging.parameters(), strict=True)
        )
    torch.manual_seed(0)
    average = [p.detach().clone() for p in network().parameters()]
    averages = []
    for _, model in trained[0]:
        average = [0.8 * a + 0.2 * p.detach() for a, p in zip(average, model.parameters(), strict=True)]
        averages.append(average)
    scores = [event.validation_score for event, _ in trained[1]]
    chosen = 5 if validation == 0 else max(k for k in range(6) if scores[k] == max(scores))
    for value, expected in zip(kept[1].parameters(), averages[chosen], strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_validation_data_of_its_own_leaves_all_examples_to_learn_from(tmp_path):
    data, own = noisy(40, 0), noisy(50, 1)
    record = Recorder()
    options = {"recipe": ge.Recipe(epochs=3, batch_size=7), "progress": False, "device": "cpu", "size": 2}
    ensemble = ge.fit(network, data, validation=own, callbacks=[record], run_dir=tmp_path / "run", **options)
    x, y = own
    for event, model in zip(record.events, record.models, strict=True):
        assert event.validation_accuracy == pytest.approx((model(x).argmax(1) == y).float().mean().item())
    assert "data of their own" in ensemble.notes["Validation accuracy"]
    with pytest.raises(ge.FolderError, match="validation is"):
        ge.fit(network, data, validation=noisy(50, 2), run_dir=tmp_path / "run", **options)
    again = ge.fit(network, data, validation=own, run_dir=tmp_path / "run", **options)
    assert same(again[1], ensemble[1])
    with pytest.raises(ValueError, match=r"validation holds .* shape \(3,\), and data"):
        ge.fit(network, data, validation=(torch.zeros(5, 3), y[:5]), **options)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_of_it_survives_an_interruption(tmp_path, schedule):
    """Patience, averages and scores are part of what is saved."""

    def stop_after(count):
        heard = []

        def watch(event):
            heard.append(event)
            if len(heard) == count:
                raise KeyboardInterrupt

        return watch

    fields = {"epochs": 8, "batch_size": 8, "lr": 0.2, "select_by": "nll", "patience": 3, "ema": 0.9, "clip": 1.0}
    options = {"recipe": ge.Recipe(**fields), "schedule": schedule, "progress": False, "device": "cpu", "size": 2}
    data, own = noisy(40, 0), noisy(50, 1)
    whole = ge.fit(network, data, validation=own, **options)
    for count in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            ge.fit(network, data, validation=own, run_dir=tmp_path / "run", callbacks=[stop_after(count)], **options)
    resumed = ge.fit(network, data, validation=own, run_dir=tmp_path / "run", **options)
    assert all_same(whole, resumed)


class Restless(Deep):
    """Its second member has less patience, and another score."""

    label = "restless"

    def recipe(self, recipe, number, seed):
        second = {"patience": 2, "select_by": lambda probs, labels: 0.0 * len(labels)}
        return dataclasses.replace(recipe, **second) if number == 2 else recipe


def test_a_method_may_change_them_for_a_member():
    """A score that stays 0 has its best epoch first, and the latest of equals is kept."""
    recipe, told = ge.Recipe(epochs=5, patience=4), []
    options = {"size": 2, "method": Restless(), "recipe": recipe, "validation": 0.2, "progress": False}
    ge.fit(network, noisy(60, 0), callbacks=[told.append], **options)
    assert [event.epoch for event in told if event.member == 2] == [1, 2, 3]
    with pytest.raises(ValueError, match="schedule"):
        ge.fit(network, noisy(60, 0), schedule="concurrent", **options)


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (lambda probs, labels: "best", r"number for probabilities \(12, 2\) and labels \(12,\).*'best'"),
        (lambda probs, labels: probs, "number"),
        (lambda probs: 0.0, "2 were given"),
        (lambda probs, labels: ge.metrics.brier_score(probs, labels), "-score.probs"),
        (lambda probs, labels: -probs.gather(1, labels[:, None]).log().mean(), "-score.probs"),
    ],
)
def test_a_score_that_is_none_is_refused_before_training(score, told):
    recipe, never = ge.Recipe(select_by=score), Recorder()
    with pytest.raises(ValueError, match=f"select_by .*{told}"):
        ge.fit(network, noisy(60, 0), size=2, recipe=recipe, validation=0.2, progress=False, callbacks=[never])
    assert not never.events


def test_a_score_may_be_none_of_some_probabilities():
    """As the precision of those that are sure, of which there may be none; it is no better than any number."""
    record = Recorder()
    given = iter([math.nan] * 3 + [0.5, math.nan, 0.4, math.nan])  # the first three are asked before training
    ensemble = train(record, size=1, epochs=4, select_by=lambda probs, labels: next(given))
    assert [math.isnan(event.validation_score) for event in record.events] == [False, True, False, True]
    assert same(ensemble[0], record.models[0])
    given = iter([0.0, 0.0, 0.0, math.nan, math.nan, 0.1])
    record = Recorder()
    assert same(train(record, size=1, epochs=3, select_by=lambda probs, labels: next(given))[0], record.models[2])


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.3, 0.2, math.nan], [math.nan, math.nan, 0.1, 0.05, 0.0]])
def test_patience_counts_from_the_best_epoch(scores):
    """The third here; a score that is none is no improvement."""
    record, given = Recorder(), iter([0.0, 0.0, 0.0, *scores])  # three are asked before training
    ensemble = train(record, size=1, patience=2, select_by=lambda probs, labels: next(given))
    assert [event.epoch for event in record.events] == [1, 2, 3, 4, 5]
    assert same(ensemble[0], record.models[2])


def test_a_score_that_fails_in_training_is_named():
    with pytest.raises(ValueError, match=r"select_by ended in IndexError: .*5"):
        train(Recorder(), size=1, epochs=2, select_by=lambda probs, labels: probs[:, 5].sum())


def test_a_score_is_tried_on_as_many_classes_as_the_model_has():
    y = torch.arange(40) % 3
    data, held_out = (torch.randn(40, 2), y), (torch.randn(20, 2), torch.arange(20) % 2)
    recipe, asked = ge.Recipe(epochs=1, select_by=lambda probs, labels: asked.append(probs.shape[1]) or 0.0), []
    ge.fit(lambda: nn.Linear(2, 3), data, size=1, recipe=recipe, validation=held_out, progress=False)
    assert asked == [3] * 4


@pytest.mark.parametrize("fields", [{"patience": 3}, {"select_by": "nll"}, {"patience": 3, "select_by": "nll"}])
def test_what_selects_epochs_needs_held_out_examples(fields):
    with pytest.raises(
        ValueError, match=f"{next(iter(fields))} needs held-out examples, and there are none; .*validation"
    ):
        ge.fit(network, noisy(60, 0), size=2, recipe=ge.Recipe(**fields), validation=0, progress=False)
