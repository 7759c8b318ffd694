"""An earlier member never depends on a later one, whatever becomes of that: in no method, and in no engine."""

import pytest
import torch
from tests.engines.groups import Group, build

import greedy_ensembles as ge
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.engines.stacked import StackedEngine
from greedy_ensembles.method import METHODS

IN_ORDER = [name for name, method in METHODS.items() if method.sees == "earlier"]
X = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def test_there_are_such_methods():
    assert {"greedy", "pairwise"} <= set(IN_ORDER)


def terms_and_gradients(name, strength, live, bank):
    coupling = METHODS[name]()
    coupling.strength, coupling.size = strength, 5
    leaf = live.clone().requires_grad_()
    terms = coupling.terms(leaf, bank)
    (gradients,) = torch.autograd.grad(terms.sum(), leaf)
    return terms.detach(), gradients


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e19, 1e30, -3e38])
@pytest.mark.parametrize("finished", [0, 2])
@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize("share", ["a number", "all"])
def test_a_member_that_left_the_range_of_numbers_harms_no_earlier_one(name, bad, finished, position, share):
    generator = torch.Generator().manual_seed(0)
    live, bank = (torch.randn(count, 4, 2, generator=generator).softmax(2) for count in (3, finished))
    expected = terms_and_gradients(name, 3.0, live, bank)
    live[(position, 1, 0) if share == "a number" else position] = bad
    for unharmed, before in zip(terms_and_gradients(name, 3.0, live, bank), expected, strict=True):
        assert torch.isfinite(before).all()
        assert torch.equal(unharmed[:position], before[:position])


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("strength", [1e38, 1e40, 1e300])
@pytest.mark.parametrize("scale", [1.0, 1e20])
def test_a_strength_beyond_numbers_gives_the_first_member_no_gradient(name, strength, scale):
    live = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    live[1:] *= scale
    terms, gradients = terms_and_gradients(name, strength, live, torch.empty(0, 4, 2))
    assert terms[0] == 0
    assert gradients[0].eq(0).all()


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("engine", [PlainEngine, StackedEngine])
@pytest.mark.parametrize("distance", ["probabilities", "logits"])
def test_the_first_member_trains_the_same_beside_members_that_break(name, engine, distance):
    found = []
    for strength in (1.0, 1e300):
        options = {"method": name, "distance": distance, "recipe": ge.Recipe(epochs=2, batch_size=8)}
        group = Group(build(lambda: ge.models.MLP(2, (4,)), (X, Y), strength=strength, **options))
        group.train(engine(group.members, group.step), epochs=2)
        found.append(group.values())
    calm, broken = found
    first = [key for key in calm if key.startswith("0 ")]
    assert len(first) == 8  # two layers' weights, biases and momenta
    assert all(torch.equal(calm[key], broken[key]) for key in first)
    assert not all(torch.isfinite(broken[key]).all() for key in broken)


@pytest.mark.parametrize("name", IN_ORDER)
@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
@pytest.mark.parametrize("distance", ["probabilities", "logits"])
def test_the_member_that_broke_is_named_and_strength_first(name, schedule, distance):
    options = {"method": name, "distance": distance, "schedule": schedule, "device": "cpu", "progress": False}
    recipe = ge.Recipe(epochs=1, batch_size=8)
    with pytest.raises(ge.NonFiniteLossError, match=r"member 2 of 3, epoch 1 .*= 1e\+300 .*Try a smaller strength"):
        ge.fit(lambda: ge.models.MLP(2, (4,)), (X, Y), size=3, strength=1e300, recipe=recipe, **options)


def test_one_number_that_left_the_range_breaks_a_member_unless_it_was_there_at_the_start():
    class Masked(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    member = Group(build(Masked, (X, Y), method="deep")).members[0]
    assert member.is_finite()
    for name, value in member.model.state_dict().items():
        if name != "mask" and value.is_floating_point():
            before = value.flatten()[0].item()
            for bad in (torch.nan, torch.inf, -torch.inf):
                value.view(-1)[0] = bad
                assert not member.is_finite(), name
            value.view(-1)[0] = before
    assert member.is_finite()


def test_a_loss_that_is_infinite_is_told_though_no_weight_is():
    """A constant has no gradient, so that only the loss shows it; the first member has no term beside it."""
    steps = iter(range(99))

    def loss(logits, targets):
        return torch.nn.functional.cross_entropy(logits, targets) + (torch.inf if next(steps) > 4 else 0.0)

    recipe = ge.Recipe(epochs=3, batch_size=8, loss=loss)
    with pytest.raises(ge.NonFiniteLossError, match=r"member 1 of 1, epoch 2 \(mean loss inf\)"):
        ge.fit(
            lambda: ge.models.MLP(2, (4,)), (X, Y), size=1, method="deep", recipe=recipe, validation=0, progress=False
        )
