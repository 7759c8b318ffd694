"""Every method in every engine and schedule, against a plain loop that shares no code with them."""

import math
import warnings
from itertools import combinations

import numpy as np
import pytest
import torch
from tests.engines.groups import Group, assert_close, build
from torch import nn
from torch.nn.functional import conv2d, cross_entropy, linear

import greedy_ensembles as ge
from greedy_ensembles.engines.captured import CapturedEngine
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.engines.stacked import StackedEngine
from greedy_ensembles.method import METHODS
from greedy_ensembles.training.algorithm import make_engine

# In double precision, with a last batch of two examples. A recorded step holds its learning rate in single precision,
# which this one fits into.
EXAMPLES, CLASSES, EPOCHS, BATCH, SAMPLES = 26, 3, 2, 8, 5
SIZE, STRENGTH, LR, MOMENTUM, DECAY, SEED = 4, 4.0, 1 / 16, 0.9, 0.01, 7


# ---- Methods, written out for member `own` that may meet `met`, where `everyone` is all there is.


def apart(one, other):
    """The mean over samples of the squared distance between two members' probabilities."""
    return ((one - other) ** 2).sum(dim=1).mean()


def greedy(own, met, everyone):
    return torch.log(sum(torch.exp(-STRENGTH / SIZE * apart(own, other)) for other in met))


def pairwise(own, met, everyone):
    return -STRENGTH / SIZE * sum(apart(own, other) for other in met) / len(met)


def repulsive(own, met, everyone):
    distances = sorted(float(apart(a.detach(), b.detach())) for a, b in combinations(everyone, 2))
    bandwidth = distances[(len(distances) - 1) // 2] / math.log(len(everyone))
    return STRENGTH * torch.log(1 + sum(torch.exp(-apart(own, other) / bandwidth) for other in met))


def pointwise(own, met, everyone):
    distances = torch.stack([((own - other) ** 2).sum(dim=1) for other in met])
    return torch.log(torch.exp(-STRENGTH / SIZE * distances).sum(dim=0)).mean()


def angular(own, met, everyone):
    return STRENGTH * sum((own * other).sum(dim=1).mean() ** 3 for other in met)


class Angular(ge.Coupling):
    """A method of one's own, unlike those that are registered."""

    label = "angular"

    def terms(self, live, bank):
        met = [self.met(live, bank, i) for i in range(len(live))]
        return torch.stack(
            [self.strength * (own * others).sum(2).mean(1).pow(3).sum() for own, others in zip(live, met, strict=True)]
        )


class AngularToAll(Angular):
    """The same, where everyone meets everyone."""

    label = "angular to all"
    sees = "all"


#: By name: the formula (None: no term), and whom a member meets of those that train with it.
FORMULAS = {
    "greedy": (greedy, "earlier"),
    "deep": (None, "none"),
    "pairwise": (pairwise, "earlier"),
    "repulsive": (repulsive, "all"),
    "pointwise": (pointwise, "earlier"),
    Angular(): (angular, "earlier"),
    AngularToAll(): (angular, "all"),
}
GROUPS = {"sequential": [1, 1, 1, 1], "concurrent": [4], "concurrent, two at once": [2, 2]}
CASES = [(method, schedule) for method in FORMULAS for schedule in GROUPS]


#: These also change how members are made, each by a loop of its own in tests/method/.
MADE_OTHERWISE = {"snapshot", "hyper", "batch", "dropout"}


def test_every_method_has_a_formula_or_is_made_otherwise():
    assert {method for method in FORMULAS if isinstance(method, str)} | MADE_OTHERWISE == set(METHODS)


def name(value):
    return getattr(value, "label", value)


def refused(method, schedule):
    """Whether a method cannot train so: it needs all members together, and they are not."""
    return FORMULAS[method][1] == "all" and len(GROUPS[schedule]) > 1


# ---- Networks, as modules for `ge.fit` and as functions of a dict of tensors.


def mlp():
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, CLASSES)).double()


def of_mlp(weights, x, samples, statistics):
    first, last = (weights["0.weight"], weights["0.bias"]), (weights["2.weight"], weights["2.bias"])
    logits = [None if part is None else linear(linear(part, *first).tanh(), *last) for part in (x, samples)]
    return logits, {}


def convolution():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, CLASSES)
    ).double()


def of_convolution(weights, x, samples, statistics):
    """Also return the running statistics after x, by which samples are normalised if `statistics` says so."""

    def normalised(a, mean, variance):
        scale = weights["1.weight"] / (variance + 1e-5).sqrt()
        return (a - mean[:, None, None]) * scale[:, None, None] + weights["1.bias"][:, None, None]

    def head(a):
        return linear(a.clamp(min=0).flatten(1), weights["4.weight"], weights["4.bias"])

    running = weights["1.running_mean"], weights["1.running_var"]
    if x is None:
        return [None, head(normalised(conv2d(samples, weights["0.weight"], padding=1), *running))], {}
    a = conv2d(x, weights["0.weight"], padding=1)
    count = a.numel() / a.shape[1]
    mean = a.mean(dim=(0, 2, 3))
    variance = ((a - mean[:, None, None]) ** 2).mean(dim=(0, 2, 3))
    seen = mean.detach(), variance.detach() * count / (count - 1)
    running = [0.9 * old + 0.1 * new for old, new in zip(running, seen, strict=True)]
    logits = [head(normalised(a, mean, variance)), None]
    if samples is not None:
        of_samples = (mean, variance) if statistics == "batch" else running
        logits[1] = head(normalised(conv2d(samples, weights["0.weight"], padding=1), *of_samples))
    changed = dict(zip(("1.running_mean", "1.running_var"), running, strict=True))
    return logits, {**changed, "1.num_batches_tracked": weights["1.num_batches_tracked"] + 1}


NETWORKS = {"mlp": (mlp, of_mlp, (2,)), "convolution": (convolution, of_convolution, (1, 4, 4))}


# ---- Data, random numbers and the loop.


class Noise:
    """p*."""

    def __init__(self, shape):
        self.shape = shape

    def sample(self, n, generator):
        return 2 * torch.randn(n, *self.shape, generator=generator, dtype=torch.float64)


def data(shape):
    y = torch.arange(EXAMPLES) % CLASSES
    x = torch.randn(EXAMPLES, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x + y.view(-1, *(1,) * len(shape)), y


def draws(*keys):
    """Return a generator; the first key says what for: 1, the p* set; 2, its samples of a step; 3, shuffling."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(keys).generate_state(1, np.uint64)[0]))


def by_loop(network, method, groups, statistics):
    """Return all members' weights and statistics after some epochs."""
    make_model, forward, shape = NETWORKS[network]
    term, sees = FORMULAS[method]
    x, y = data(shape)
    pool, bank, trained = Noise(shape).sample(EXAMPLES, draws(1, SEED)), [], []
    for count in groups:
        weights, velocities = [], []
        for k in range(len(trained), len(trained) + count):
            torch.manual_seed(SEED + k)
            weights.append({name: value.clone() for name, value in make_model().state_dict().items()})
            velocities.append({})
        learnt = [name for name, _ in make_model().named_parameters()]
        step = 0
        for epoch in range(EPOCHS):
            orders = [
                torch.randperm(EXAMPLES, generator=draws(3, SEED + len(trained) + i, epoch)) for i in range(count)
            ]
            for start in range(0, EXAMPLES, BATCH):
                chosen = torch.randint(EXAMPLES, (SAMPLES,), generator=draws(2, SEED, step))
                losses, said, changes = [], [], []
                for own, order in zip(weights, orders, strict=True):
                    own.update({name: own[name].detach().requires_grad_() for name in learnt})
                    batch = order[start : start + BATCH]
                    (logits, others), changed = forward(own, x[batch], pool[chosen], statistics)
                    losses.append(cross_entropy(logits, y[batch]))
                    said.append(others.softmax(dim=1))
                    changes.append(changed)
                everyone = [row[chosen] for row in bank] + said
                for i, own in enumerate(weights):
                    others = said[:i] + (said[i + 1 :] if sees == "all" else [])
                    met = [row[chosen] for row in bank] + [other.detach() for other in others]
                    loss = losses[i]
                    if term is not None and met:
                        loss = loss + term(said[i], met, everyone)
                    gradients = torch.autograd.grad(loss, [own[name] for name in learnt], retain_graph=True)
                    changes[i]["gradients"] = dict(zip(learnt, gradients, strict=True))
                for own, velocity, changed in zip(weights, velocities, changes, strict=True):
                    for name, gradient in changed.pop("gradients").items():
                        pull = gradient + DECAY * own[name].detach()
                        velocity[name] = MOMENTUM * velocity.get(name, 0) + pull
                        own[name] = own[name].detach() - LR * velocity[name]
                    own.update(changed)
                step += 1
        for own in weights:
            (_, outputs), _ = forward(own, None, pool, statistics)
            bank.append(outputs.detach().softmax(dim=1).float().double())  # the bank has single precision
        trained += weights
    return trained


def options(network, method, schedule, statistics, engine, device):
    """Return arguments of `ge.fit` for this engine: an optimizer of one's own is neither stacked nor captured."""
    own = {"optimizer": lambda p: torch.optim.SGD(p, LR, MOMENTUM, weight_decay=DECAY)}
    recipe = ge.Recipe(
        **{
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "weighting_batch_size": SAMPLES,
            "weighting_statistics": statistics,
            "schedule": "constant",
            "lr": LR,
            "momentum": MOMENTUM,
            "weight_decay": DECAY,
            "members_at_once": 2 if schedule == "concurrent, two at once" else None,
            "deterministic": True,
            **(own if engine is PlainEngine else {}),
        }
    )
    return {
        "size": SIZE,
        "method": method,
        "strength": STRENGTH,
        "weighting": None if method == "deep" else Noise(NETWORKS[network][2]),
        "recipe": recipe,
        "schedule": schedule.partition(",")[0],
        "seed": SEED,
        "validation": 0,
        "device": device,
    }


def by_fit(network, engine, device, **others):
    """Return the members' weights and statistics, after seeing that they train in this engine."""
    make_model, _, shape = NETWORKS[network]
    chosen = options(network, engine=engine, device=device, **others)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "trained step by step")  # on a GPU, if it is to be the plain engine
        group = Group(build(make_model, data(shape), **chosen))
        first = make_engine(group.members, group.step, group.plan())
        # One member alone has no others to be stacked with.
        assert type(first) is (PlainEngine if engine is StackedEngine and len(group.members) == 1 else engine)
        return [member.cpu().state_dict() for member in ge.fit(make_model, data(shape), progress=False, **chosen)]


ENGINES = [
    pytest.param("mlp", PlainEngine, "cpu", id="plain, mlp"),
    pytest.param("mlp", StackedEngine, "cpu", id="stacked, mlp"),
    pytest.param("convolution", PlainEngine, "cpu", id="plain, convolution"),
    *(
        pytest.param(
            network,
            CapturedEngine,
            "cuda",
            id=f"captured, {network}",
            marks=[
                pytest.mark.cuda,
                pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
            ],
        )
        for network in NETWORKS
    ),
]


def check(network, engine, device, method, schedule, statistics="running"):
    found = by_fit(network, engine, device, method=method, schedule=schedule, statistics=statistics)
    expected = by_loop(network, method, GROUPS[schedule], statistics)
    tolerance = {"rtol": 1e-9, "atol": 1e-11} if device == "cpu" else {"rtol": 1e-7, "atol": 1e-9}
    for number, (own, other) in enumerate(zip(found, expected, strict=True), start=1):
        named = ({f"member {number} {name}": v.detach() for name, v in one.items()} for one in (own, other))
        assert_close(*named, **tolerance)


@pytest.mark.parametrize(("network", "engine", "device"), ENGINES)
@pytest.mark.parametrize(("method", "schedule"), [case for case in CASES if not refused(*case)], ids=name)
def test_weights_are_those_of_a_plain_loop(network, engine, device, method, schedule):
    """The answer may not depend on the engine. A new method adds its formula to `FORMULAS`."""
    check(network, engine, device, method, schedule)
    if network == "convolution":
        check(network, engine, device, method, schedule, "batch")


@pytest.mark.parametrize(("method", "schedule"), [case for case in CASES if refused(*case)], ids=name)
def test_methods_that_meet_all_are_refused_where_members_do_not_train_together(method, schedule):
    with pytest.raises(ValueError, match="meets all others, so they must train together"):
        ge.fit(mlp, data((2,)), **options("mlp", method, schedule, "running", PlainEngine, "cpu"))


@pytest.mark.parametrize(("network", "engine", "device"), ENGINES)
def test_other_terms_give_other_weights_in_every_engine(network, engine, device):
    """So that no engine has a term of its own; the first member, who meets no one, stays the same."""
    ours, theirs = (
        by_fit(network, engine, device, method=method, schedule="concurrent", statistics="running")
        for method in (Angular(), "greedy")
    )
    for name, value in ours[0].items():
        torch.testing.assert_close(value, theirs[0][name], rtol=1e-9, atol=1e-11)
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        assert all(not torch.allclose(own[name], other[name], rtol=1e-3) for name in own if name.endswith("0.weight"))
