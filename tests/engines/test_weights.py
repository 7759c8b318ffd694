"""Weights of examples: every engine multiplies each example's loss by its weight, and takes the mean over the batch."""

import copy

import pytest
import torch
from tests.engines.groups import Group, build
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.engines.captured import GroupStep
from greedy_ensembles.engines.graphs import DeviceGenerators, make_capturable
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.engines.stacked import StackedEngine
from greedy_ensembles.method import Hyper

CPU = torch.device("cpu")
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3
WEIGHTS = torch.rand(40, generator=torch.Generator().manual_seed(1)) * 3
RECIPE = ge.Recipe(batch_size=16, weight_decay=0.0, momentum=0.0, schedule="constant")


def make_model():
    return ge.models.MLP(3, hidden=(8,), classes=3)


def group_step(members, step, plan):
    make_capturable(members, CPU)
    totals = torch.zeros(2, len(members), dtype=torch.float64)
    for rows in (slice(2), slice(2, 3)):  # full batches, and the rest
        part = type(plan)(*(column[rows] for column in plan))
        of_rows = GroupStep(members, step, totals, part, DeviceGenerators(members, CPU))
        for _ in part.rates:
            of_rows.run()
    return (totals[0] / 40).tolist()


def by_epoch(engine):
    return lambda members, step, plan: [losses.loss for losses in engine(members, step).train_epoch(plan)]


@pytest.mark.parametrize("train", [by_epoch(PlainEngine), by_epoch(StackedEngine), group_step])
def test_engines_agree_with_a_loop(train):
    of = Group(build(make_model, (X, Y, WEIGHTS), method="deep", recipe=RECIPE, size=2))
    plan, models, sums = of.plan(), [copy.deepcopy(member.model) for member in of.members], [0.0, 0.0]
    for k, model in enumerate(models):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for examples in plan.examples:
            optimizer.zero_grad()
            losses = [WEIGHTS[i] * cross_entropy(model(X[i : i + 1]), Y[i : i + 1]) for i in examples[k].tolist()]
            (sum(losses) / len(losses)).backward()
            optimizer.step()
            sums[k] += sum(loss.item() for loss in losses)
    assert train(of.members, of.step, plan) == pytest.approx([total / 40 for total in sums], rel=1e-5)
    for member, model in zip(of.members, models, strict=True):
        for found, expected in zip(member.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_label_smoothing_has_them_too():
    """An example of weight 0 is as good as none, and one of weight 2 as two of them."""
    method = Hyper(label_smoothing=(0.2, 0.2))
    loss = method.recipe(RECIPE, 1, 0).loss
    logits, labels, weights = torch.randn(4, 3), torch.tensor([0, 1, 2, 1]), torch.tensor([1.0, 0.0, 2.0, 1.0])
    targets = torch.zeros(4, 3).scatter_(1, labels[:, None], weights[:, None])
    repeated = torch.tensor([0, 2, 2, 3])
    expected = cross_entropy(logits[repeated], labels[repeated], label_smoothing=0.2)
    torch.testing.assert_close(loss(logits, targets), expected)
    torch.testing.assert_close(loss(logits[repeated], labels[repeated]), expected)


def test_they_are_part_of_a_run_and_refused_where_they_will_not_do(tmp_path):
    options = {"size": 1, "method": "deep", "recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu"}
    ge.fit(make_model, (X, Y, WEIGHTS), run_dir=tmp_path / "run", **options)
    with pytest.raises(ge.FolderError, match="data"):
        ge.fit(make_model, (X, Y), run_dir=tmp_path / "run", **options)
    for weights, message in (
        (torch.ones(39), r"weights must have shape \(40,\)"),
        (-WEIGHTS, "at least 0"),
        (torch.zeros(40), "above 0 for some"),
        (torch.full((40,), torch.nan), "finite"),
    ):
        with pytest.raises(ValueError, match=message):
            ge.fit(make_model, (X, Y, weights), **options)
    own = {**options, "recipe": ge.Recipe(epochs=1, loss=lambda logits, labels: cross_entropy(logits, labels))}
    with pytest.raises(ValueError, match="weights of examples are for the recipe's own loss"):
        ge.fit(make_model, (X, Y, WEIGHTS), **own)
