"""The stacked engine: the eager engine's training, for all members at once."""

import pytest
import torch
from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import pose
from greedy_ensembles.training.stackable import why_not_stacked
from greedy_ensembles.training.stacked import StackedEngine
from greedy_ensembles.training.weighting_set import WeightingSet
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.method import METHODS, Coupling
from greedy_ensembles.training import engines, schedule

QUIET = {"progress": False, "device": "cpu"}
RECIPES = {
    "momentum, milestones": ge.Recipe(
        epochs=4, batch_size=16, weight_decay=0.01, schedule="milestones", milestones=(1, 3), gamma=0.3
    ),
    "nesterov, warm-up": ge.Recipe(epochs=4, batch_size=25, nesterov=True, warmup_epochs=2, weighting_batch_size=7),
    "no momentum": ge.Recipe(epochs=4, batch_size=17, momentum=0.0, schedule="constant"),
    "adamw": ge.Recipe(epochs=4, batch_size=16, optimizer="adamw", lr=0.01, weight_decay=0.1),
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


def posed(data, model=mlp, **changes):
    arguments = {
        "size": 4, "method": "greedy", "strength": 8.0, "weighting": None, "distance": "probabilities", "recipe": None,
        "seed": 5, "validation": 0.1, "earlier": None, "schedule": "concurrent", "device": "cpu",
    }  # fmt: skip
    return pose(model, data, **{**arguments, **changes})


def made(engine, problem, bank=0):
    """Members that are next after those of a bank, with their engine."""
    members = [Member(problem, number) for number in range(bank + 1, problem.size + 1)]
    weighting = None
    if problem.weighting is not None:
        weighting = WeightingSet(problem, problem.weighting)
        for number in range(bank):
            rows = torch.randn(len(weighting.samples), 3, generator=torch.Generator().manual_seed(number))
            weighting.bank.append(rows.softmax(dim=1))
    assert why_not_stacked(members, problem) is None
    return members, engine(members, problem, weighting)


def run(members, engine, epochs):
    """Train, and return all that came out of it."""
    results = []
    for _ in range(epochs):
        losses, correct = engine.train_epoch(), engine.count_correct()
        for member, right in zip(members, correct, strict=True):
            member.end_epoch({}, right)
        results.append((losses, correct))
    return results


def values(members):
    """The tensors of the members' states by name."""
    found = {}
    for k, member in enumerate(members):
        state = member.state()
        found.update({f"{k} {name}": value.clone() for name, value in state["model"].items()})
        for index, moments in state["optimizer"]["state"].items():
            found.update({f"{k} {index} {name}": torch.as_tensor(value).clone() for name, value in moments.items()})
    return found


def check_same_training(problem, bank=0, epochs=4):
    ours, theirs = made(StackedEngine, problem, bank), made(EagerEngine, problem, bank)
    for (losses, correct), (expected, expected_correct) in zip(run(*ours, epochs), run(*theirs, epochs), strict=True):
        assert correct == expected_correct
        for own, other in zip(losses, expected, strict=True):
            assert own.loss == pytest.approx(other.loss, rel=1e-9)
            assert own.diversity == (None if other.diversity is None else pytest.approx(other.diversity, rel=1e-9))
    expected = values(theirs[0])
    found = values(ours[0])
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name} {text}"
        )
    for a, b in zip(ours[0], theirs[0], strict=True):
        assert a.state()["optimizer"]["param_groups"] == b.state()["optimizer"]["param_groups"]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
@pytest.mark.parametrize("bank", [0, 1, 3])
def test_it_is_the_training_of_the_eager_engine(data, recipe, bank):
    """Losses, terms, correct answers, weights, optimizer states and learning rates, also with a last smaller batch."""
    check_same_training(posed(data, recipe=recipe, size=bank + 3), bank)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "deep", "strength": None},
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
    check_same_training(posed(data, **{"recipe": RECIPES["momentum, milestones"], **changes}))


def test_it_is_the_same_for_inputs_of_more_dimensions(data):
    x = torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    check_same_training(posed((x, data[1]), pictures, recipe=RECIPES["adamw"]))


def test_it_is_the_same_for_bytes(data):
    x = torch.randint(0, 256, (60, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    check_same_training(posed((x, data[1]), recipe=RECIPES["adamw"]))


class Crowd(Coupling):
    """Not the paper's: to one's own distance from the others' mean, which is no function of theirs one by one."""

    def term(self, outputs, others):
        return -self.strength * (outputs - others.mean(dim=0)).square().mean()


def test_a_method_that_knows_nothing_of_stacks_trains_in_one(data, monkeypatch):
    monkeypatch.setitem(METHODS, "crowd", Crowd)
    check_same_training(posed(data, method="crowd", strength=0.5, recipe=RECIPES["momentum, milestones"]))


class Silent(Coupling):
    """A method may have nothing to say, in a step or ever: its term is a constant."""

    def term(self, outputs, others):
        return outputs.new_full((), 0.25)


def test_a_term_without_gradients_trains_in_a_stack(data, monkeypatch):
    monkeypatch.setitem(METHODS, "silent", Silent)
    check_same_training(posed(data, method="silent", strength=0.5, recipe=RECIPES["momentum, milestones"]))


@pytest.mark.parametrize("wrong", ["also the later ones", "none of the group", "not detached"])
def test_other_couplings_would_be_noticed(data, monkeypatch, wrong):
    def terms(self, outputs, others):
        if wrong == "not detached":
            met = [torch.cat([others, outputs[:k]]) for k in range(len(outputs))]
        elif wrong == "none of the group":
            met = [others for _ in outputs]
        else:
            rest = outputs.detach()
            met = [torch.cat([others, rest[:k], rest[k + 1 :]]) for k in range(len(outputs))]
        return torch.stack([self.term(own, some) for own, some in zip(outputs, met, strict=True)])

    monkeypatch.setattr(METHODS["greedy"], "terms", terms)
    with pytest.raises(AssertionError):
        check_same_training(posed(data, recipe=RECIPES["adamw"]), bank=1)


def test_shared_momentum_would_be_noticed(data, monkeypatch):
    take_back = StackedEngine._take_back

    def shared(self):
        for moments in self._optimizer.state.values():
            moments["momentum_buffer"][:] = moments["momentum_buffer"].mean(dim=0)
        take_back(self)

    monkeypatch.setattr(StackedEngine, "_take_back", shared)
    with pytest.raises(AssertionError):
        check_same_training(posed(data, recipe=RECIPES["momentum, milestones"]))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_an_engine_made_anew_goes_on_bit_for_bit(data, recipe):
    problem = posed(data, recipe=recipe)
    whole, engine = made(StackedEngine, problem)
    run(whole, engine, 4)
    begun, engine = made(StackedEngine, problem)
    run(begun, engine, 2)
    states = [member.state() for member in begun]
    resumed, _ = made(StackedEngine, problem)
    for member, state in zip(resumed, states, strict=True):
        member.restore(state)
    run(resumed, StackedEngine(resumed, problem, WeightingSet(problem, problem.weighting)), 2)
    found, expected = values(resumed), values(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_members_keep_nothing_of_each_other(data):
    """Neither weights nor optimizer states share memory, which copies of one member would drag along."""
    members, engine = made(StackedEngine, posed(data, recipe=RECIPES["adamw"]))
    run(members, engine, 1)
    before = {name: value.clone() for name, value in values(members).items()}
    engine.close()
    assert all(torch.equal(value, before[name]) for name, value in values(members).items())
    held = [
        tensor.untyped_storage().data_ptr()
        for member in members
        for tensor in (*member.model.parameters(), *(v for s in member.optimizer.state.values() for v in s.values()))
    ]
    assert len(held) == len(set(held))


def pruned(model):
    model[0].weight[:4] = 0


def pruned_as_data(model):
    model[0].weight.data[:4] = 0


def given_others(model):
    for parameter in model.parameters():
        parameter.data = 0.5 * parameter.data


@pytest.mark.parametrize("change", [pruned, pruned_as_data, given_others])
def test_what_others_do_to_a_member_between_epochs_counts(data, change):
    """A callback may prune, for example; the eager engine would go on from that, too."""
    problem = posed(data, recipe=RECIPES["momentum, milestones"])
    trained = []
    for kind in (StackedEngine, EagerEngine):
        members, engine = made(kind, problem)
        run(members, engine, 1)
        with torch.no_grad():
            change(members[1].model)
        run(members, engine, 1)
        trained.append(values(members))
    for name, value in trained[1].items():
        torch.testing.assert_close(trained[0][name], value, rtol=1e-9, atol=1e-12)


def test_generators_are_left_alone(data):
    before = torch.get_rng_state()
    members, engine = made(StackedEngine, posed(data, recipe=RECIPES["adamw"]))
    own = [member.state()["generators"]["torch"] for member in members]
    torch.set_rng_state(before)
    run(members, engine, 2)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(m.state()["generators"]["torch"], state) for m, state in zip(members, own, strict=True))


def same(a, b):
    states = [(m.state_dict(), n.state_dict()) for m, n in zip(a, b, strict=True)]
    return all(torch.equal(value, theirs[name]) for ours, theirs in states for name, value in ours.items())


class Stop(Exception):
    pass


@pytest.mark.parametrize("where", [(1, 1), (3, 2), (4, 1), (7, 3)])
def test_fit_in_groups_is_that_of_the_eager_engine_and_can_be_interrupted(data, tmp_path, monkeypatch, where):
    def stop(event):
        if (event.member, event.epoch) == where:
            raise Stop

    recipe = ge.Recipe(epochs=3, batch_size=16, members_at_once=3)
    options = {"size": 7, "strength": 5.0, "recipe": recipe, "schedule": "concurrent", **QUIET}
    chosen = []

    def listen(members, *others):
        chosen.append(engines.make_engine(members, *others))
        return chosen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(schedule, "make_engine", listen)
        whole = ge.fit(mlp, data, **options)
    assert [type(engine) for engine in chosen] == [StackedEngine, StackedEngine, EagerEngine]  # 3, 3 and 1 members
    assert same(whole, ge.fit(mlp, data, **options))
    with pytest.raises(Stop):
        ge.fit(mlp, data, run_dir=tmp_path, callbacks=[stop], **options)
    assert same(whole, ge.fit(mlp, data, run_dir=tmp_path, **options))
    with monkeypatch.context() as patch:
        patch.setattr(schedule, "make_engine", EagerEngine)
        eager = ge.fit(mlp, data, **options)
    for a, b in zip(whole, eager, strict=True):
        for name, value in b.state_dict().items():
            # The bank holds single precision, in which members of the second group may differ by a rounding.
            torch.testing.assert_close(a.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_a_member_that_leaves_the_range_of_numbers_is_named(data):
    recipe = ge.Recipe(epochs=3, batch_size=16, lr=1e200)
    with pytest.raises(schedule.NonFiniteLossError, match="member 1 of 3"):
        ge.fit(mlp, data, size=3, strength=1.0, recipe=recipe, schedule="concurrent", **QUIET)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_engine_tells_who_left_the_range_of_numbers(data, bad):
    members, engine = made(StackedEngine, posed(data, method="deep", strength=None, size=3))
    assert engine.are_finite() == [True, True, True]
    with torch.no_grad():
        members[1].model[0].weight[0, 0] = bad
    engine.train_epoch()
    assert engine.are_finite() == [member.is_finite() for member in members] == [True, False, True]
