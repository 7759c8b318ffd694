"""The stacked engine: the plain engine's training, for all members at once."""

import pytest
import torch
from tests.engines.groups import Group, assert_close, assert_same_members, build
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.engines.stacked import Linear, StackedEngine, StackedModel, why_not_stacked
from greedy_ensembles.training.algorithm import NonFiniteLossError

QUIET = {"progress": False, "device": "cpu"}
RECIPES = {
    "momentum, milestones": ge.Recipe(
        epochs=4, batch_size=16, weight_decay=0.01, schedule="milestones", milestones=(1, 3), gamma=0.3
    ),
    "nesterov, warm-up": ge.Recipe(epochs=4, batch_size=25, nesterov=True, warmup_epochs=2, weighting_batch_size=7),
    "no momentum": ge.Recipe(epochs=4, batch_size=17, momentum=0.0, schedule="constant"),
    "adamw": ge.Recipe(epochs=4, batch_size=16, optimizer="adamw", lr=0.01, weight_decay=0.1),
    "clipped": ge.Recipe(epochs=4, batch_size=16, clip=0.7),
}


def mlp():
    return ge.models.MLP(2, hidden=(8, 5), classes=3).double()


def partly_frozen():
    model = mlp()
    model[2].weight.requires_grad_(False)
    return model


def normalised():
    """Work in place, parameters that go through vmap, and a layer without bias."""
    return nn.Sequential(
        nn.Linear(2, 4, bias=False),
        nn.LayerNorm(4),
        nn.Linear(4, 4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).double()


def pictures():
    """From inputs (n, 2, 3): a linear layer that acts on the last dimension of two."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(3)
    y = torch.arange(60) % 3
    return torch.randn(60, 2, generator=generator).double() + y[:, None], y


def algorithm(data, model=mlp, **changes):
    return build(model, data, **{"size": 4, "strength": 8.0, "seed": 5, "validation": 0.1, **changes})


def made(kind, of, in_bank=0):
    """Return members of an algorithm that are next after those of a bank, with their engine."""
    group = Group(of, in_bank)
    assert why_not_stacked(group.members, group.step) is None
    return group, kind(group.members, group.step)


def check_same_training(of, in_bank=0, epochs=4):
    """Losses, terms, validation scores, weights, optimizer states and learning rates."""
    (ours, stacked), (theirs, plain) = (made(kind, of, in_bank) for kind in (StackedEngine, PlainEngine))
    for (losses, scores), (expected, expected_scores) in zip(
        ours.train(stacked, epochs), theirs.train(plain, epochs), strict=True
    ):
        assert scores == expected_scores
        for own, other in zip(losses, expected, strict=True):
            assert own.loss == pytest.approx(other.loss, rel=1e-9)
            assert own.term == (None if other.term is None else pytest.approx(other.term, rel=1e-9))
    assert_close(ours.values(), theirs.values(), rtol=1e-9, atol=1e-12)
    for a, b in zip(ours.members, theirs.members, strict=True):
        assert a.state()["optimizer"]["param_groups"] == b.state()["optimizer"]["param_groups"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("in_bank", [0, 1, 3])
def test_it_is_the_training_of_the_plain_engine(data, recipe, in_bank):
    """Also with a last smaller batch."""
    check_same_training(algorithm(data, recipe=recipe, size=in_bank + 3), in_bank)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "deep"},
        {"method": "repulsive"},
        {"strength": 0.0},
        {"validation": 0.0},
        {"distance": "logits", "strength": 0.1},
        {"recipe": ge.Recipe(epochs=4, batch_size=16, normalize=(1.0, 2.0))},
        {"weighting": ge.weighting.Uniform(-4.0, 4.0, (2,))},
        {"model": partly_frozen},
        {"model": normalised},
    ],
    ids=lambda changes: ", ".join(changes),
)
def test_it_is_the_same_for_other_methods_data_and_models(data, changes):
    check_same_training(algorithm(data, **{"recipe": RECIPES["momentum, milestones"], **changes}))


def test_it_is_the_same_for_inputs_of_more_dimensions(data):
    x = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    check_same_training(algorithm((x, data[1]), pictures, recipe=RECIPES["adamw"]))


def test_it_is_the_same_for_bytes(data):
    x = torch.randint(0, 256, (60, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    check_same_training(algorithm((x, data[1]), recipe=RECIPES["adamw"]))


class Crowd(ge.Coupling):
    """Not the paper's: to one's own distance from the others' mean, which is no function of theirs one by one."""

    label = "crowd"

    def terms(self, live, bank):
        means = [self.met(live, bank, i).sum(dim=0) / (len(bank) + i + 1) for i in range(len(live))]
        return -self.strength * (live - torch.stack(means)).square().mean(dim=(1, 2))


class Silent(ge.Coupling):
    """A method may have nothing to say, in a step or ever: its terms are constants."""

    label = "silent"

    def terms(self, live, bank):
        return live.new_full((len(live),), 0.25)


@pytest.mark.parametrize("method", [Crowd(), Silent()])
@pytest.mark.parametrize("in_bank", [0, 2])
def test_it_is_the_same_for_methods_of_ones_own(data, method, in_bank):
    check_same_training(algorithm(data, method=method, recipe=RECIPES["momentum, milestones"]), in_bank)


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_an_engine_made_anew_goes_on_bit_for_bit(data, recipe):
    of = algorithm(data, recipe=recipe)
    whole, engine = made(StackedEngine, of)
    whole.train(engine, 4)
    begun, engine = made(StackedEngine, of)
    begun.train(engine, 2)
    states = [member.state() for member in begun.members]
    resumed, _ = made(PlainEngine, of)
    for member, state in zip(resumed.members, states, strict=True):
        member.restore(state)
    resumed.train(StackedEngine(resumed.members, resumed.step), 2)
    assert_close(resumed.values(), whole.values(), rtol=0, atol=0)


def test_finished_members_keep_nothing_of_each_other(data):
    """Weights share no memory, which copies of one member would drag along."""
    group, engine = made(StackedEngine, algorithm(data, recipe=RECIPES["adamw"]))
    group.train(engine)
    before = [{name: v.clone() for name, v in member.model.state_dict().items()} for member in group.members]
    for member in group.members:
        member.history[-1].update(validation_accuracy=None, loss=0.0, seconds=0.0)
        member.finish(3)
    for member, expected in zip(group.members, before, strict=True):
        assert_close(member.model.state_dict(), expected, rtol=0, atol=0)
        assert all(p.untyped_storage().nbytes() == p.nbytes for p in member.model.parameters())


def pruned(model):
    model[0].weight[:4] = 0


def pruned_as_data(model):
    model[0].weight.data[:4] = 0


def given_others(model):
    for parameter in model.parameters():
        parameter.data = 0.5 * parameter.data


@pytest.mark.parametrize("change", [pruned, pruned_as_data, given_others])
def test_what_others_do_to_a_member_between_epochs_counts(data, change):
    """A callback may prune, for example; the plain engine would go on from that, too."""
    of, trained = algorithm(data, recipe=RECIPES["momentum, milestones"]), []
    for kind in (StackedEngine, PlainEngine):
        group, engine = made(kind, of)
        group.train(engine)
        with torch.no_grad():
            change(group.members[1].model)
        group.train(engine)
        trained.append(group.values())
    assert_close(*trained, rtol=1e-9, atol=1e-12)


def test_generators_are_left_alone(data):
    before = torch.get_rng_state()
    group, engine = made(StackedEngine, algorithm(data, recipe=RECIPES["adamw"]))
    own = [member.state()["generators"]["torch"] for member in group.members]
    torch.set_rng_state(before)
    group.train(engine, 2)
    assert torch.equal(torch.get_rng_state(), before)
    for member, state in zip(group.members, own, strict=True):
        assert torch.equal(member.state()["generators"]["torch"], state)


class Stop(Exception):
    pass


@pytest.mark.parametrize("where", [(1, 1), (3, 2), (4, 1), (7, 3)])
def test_fit_in_groups_can_be_interrupted(data, tmp_path, where):
    """Groups of 3, 3 and 1 members, of which the last is not stacked."""

    def stop(event):
        if (event.member, event.epoch) == where:
            raise Stop

    recipe = ge.Recipe(epochs=3, batch_size=16, members_at_once=3)
    options = {"size": 7, "strength": 5.0, "recipe": recipe, "schedule": "concurrent", **QUIET}
    whole = ge.fit(mlp, data, **options)
    with pytest.raises(Stop):
        ge.fit(mlp, data, run_dir=tmp_path, callbacks=[stop], **options)
    assert_same_members(whole, ge.fit(mlp, data, run_dir=tmp_path, **options))


def test_a_member_that_leaves_the_range_of_numbers_is_named(data):
    recipe = ge.Recipe(epochs=3, batch_size=16, lr=1e200)
    with pytest.raises(NonFiniteLossError, match="member 1 of 3"):
        ge.fit(mlp, data, size=3, strength=1.0, recipe=recipe, schedule="concurrent", **QUIET)


@pytest.mark.parametrize(
    ("shape", "layers"),
    [
        ((2,), [lambda: nn.Linear(2, 5), nn.ReLU, lambda: nn.Linear(5, 3)]),
        ((2,), [lambda: nn.Linear(2, 5, bias=False), lambda: nn.LayerNorm(5), nn.Tanh, lambda: nn.Linear(5, 3)]),
        ((2,), [lambda: nn.ReLU(inplace=True), lambda: nn.Linear(2, 4), lambda: nn.ReLU(inplace=True)]),
        ((3, 4), [lambda: nn.Linear(4, 2), nn.GELU, nn.Flatten, lambda: nn.Linear(6, 2)]),
        ((3, 4), [nn.ReLU, lambda: nn.Linear(4, 2), nn.ReLU, nn.Flatten, lambda: nn.Linear(6, 2), nn.ReLU]),
        ((3, 4), [lambda: nn.LayerNorm((3, 4)), lambda: nn.Flatten(-2), lambda: nn.Linear(12, 2)]),
    ],
)
def test_a_stacked_model_is_its_members(shape, layers):
    models = [nn.Sequential(*(layer() for layer in layers)).double() for _ in range(3)]
    leaves = [torch.stack(own) for own in zip(*(m.parameters() for m in models), strict=True)]
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    inputs = torch.randn(3, 7, *shape, dtype=torch.float64)
    expected = torch.stack([model(own.clone()) for model, own in zip(models, inputs, strict=True)])
    found = StackedModel(models[0], leaves)(inputs.clone())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    expected.backward(weights)
    found.backward(weights)
    for leaf, *own in zip(leaves, *(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(leaf.grad, torch.stack([p.grad for p in own]), rtol=1e-12, atol=1e-14)


def test_inputs_are_left_alone():
    """ReLU works in place only on what a linear layer returned."""
    inputs = torch.randn(2, 5, 3)
    before = inputs.clone()
    model = nn.Sequential(nn.ReLU(), nn.Linear(3, 2), nn.ReLU(), nn.ReLU())
    StackedModel(model, [torch.stack([p, p]) for p in model.parameters()])(inputs)
    assert torch.equal(inputs, before)


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 5), (5, 2), (3, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_the_linear_map(inputs, outputs, bias):
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4, inputs), (3, outputs, inputs), (3, outputs)]
    arguments = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    arguments = arguments if bias else [*arguments[:2], None]
    assert torch.autograd.gradcheck(Linear.apply, arguments)
