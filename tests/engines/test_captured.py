"""The captured engine on a GPU: the same training as the plain engine's, or a line that says why not."""

import random
import warnings
from functools import partial

import pytest
import torch
from tests.engines.groups import assert_same_members
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines import captured
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.runs.notes import WeakMemberWarning
from greedy_ensembles.training import algorithm

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.fixture(autouse=True)
def _few_streams(monkeypatch):
    """Members share streams, as many do."""
    monkeypatch.setattr(captured, "STREAMS", 2)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(512, 3),
    )


@pytest.fixture
def images():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (120, 3, 8, 8), dtype=torch.uint8, generator=generator), torch.arange(120) % 3


def fit(images, make_model=network, **options):
    fields = {"epochs": 2, "batch_size": 32, "augment": "flip_crop", "normalize": (0.5, 0.25), "deterministic": True}
    fields |= options.pop("recipe", {})
    chosen = {"size": 3, "strength": 2.0, "progress": False, "device": "cuda", "validation": 0.1, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakMemberWarning)  # a learning rate of 1 may leave some
        warnings.filterwarnings("error", "trained ")  # that it fell back
        return ge.fit(make_model, images, recipe=ge.Recipe(**fields), **chosen)


@pytest.fixture
def plainly(monkeypatch):
    """Run a fit with the plain engine instead."""

    def run(images, **options):
        with monkeypatch.context() as patch:
            patch.setattr(algorithm, "make_engine", lambda members, step, plan: PlainEngine(members, step))
            return fit(images, **options)

    return run


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
@pytest.mark.parametrize("method", ["greedy", "deep"])
@pytest.mark.parametrize(
    "recipe",
    [
        {"clip": 0.5, "ema": 0.9},
        {"nesterov": True, "warmup_epochs": 1, "weighting_batch_size": 4},
        {"optimizer": "adamw", "lr": 1e-3},
    ],
)
def test_it_is_the_same_training_as_the_plain_engines(images, plainly, schedule, method, recipe):
    """Dropout and augmentation included: the random numbers are the same, too."""
    ours, theirs = (run(images, schedule=schedule, recipe=recipe, method=method) for run in (fit, plainly))
    if recipe.get("optimizer") == "adamw":
        assert_same_members(ours, theirs, rtol=1e-2, atol=1e-4)  # Adam divides by gradients that may be almost nothing
    else:
        assert_same_members(ours, theirs, rtol=1e-4, atol=1e-6)


def test_step_by_step(images, plainly):
    """After one step, two, three: rounding has no time to hide a difference."""
    x, y = images
    for examples in (32, 64, 96):
        part = x[:examples], y[:examples]
        options = {"recipe": {"epochs": 1}, "validation": 0.0, "schedule": "concurrent"}
        ours, theirs = (run(part, **options) for run in (fit, plainly))
        assert_same_members(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_model_that_comes_in_eval_mode_trains(images, plainly):
    def make_model():
        return network().eval()

    ours, theirs = (run(images, make_model=make_model, schedule="concurrent") for run in (fit, plainly))
    assert_same_members(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(images, schedule):
    first, second = (fit(images, schedule=schedule) for _ in range(2))
    assert_same_members(first, second)


class Stop(Exception):
    pass


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_a_run_that_was_stopped_goes_on_to_the_same_weights(images, tmp_path, schedule):
    def stop(event):
        if (event.member, event.epoch) == (2, 1):
            raise Stop

    whole = fit(images, schedule=schedule)
    with pytest.raises(Stop):
        fit(images, schedule=schedule, run_dir=tmp_path, callbacks=[stop])
    assert_same_members(whole, fit(images, schedule=schedule, run_dir=tmp_path))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_other_precisions_train(images, precision, deterministic):
    recipe = {"precision": precision, "epochs": 20, "deterministic": deterministic, "lr": 0.02, "augment": None}
    losses = []

    def listen(event):
        losses.append(event.loss)

    ensemble = fit(images, recipe=recipe, schedule="concurrent", callbacks=[listen])
    assert losses[-1] < losses[0]
    assert next(ensemble[0].parameters()).dtype == torch.float32
    torch.testing.assert_close(ensemble.predict_proba(images[0]).sum(2), torch.ones(3, 120))


@pytest.mark.parametrize("make_model", [partial(ge.models.PreResNet, 8), ge.models.VGG16BN, ge.models.WideResNet28x10])
@pytest.mark.parametrize("examples", [32, 64])
def test_our_networks_take_the_plain_engines_steps(images, plainly, make_model, examples):
    """A step or two in single precision, dropout included."""
    part = [values[:examples] for values in images]
    part[0] = part[0].repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    options = {"make_model": make_model, "schedule": "concurrent", "validation": 0.0, "size": 2}
    options["recipe"] = {"epochs": 1, "lr": 0.01}
    assert_same_members(fit(tuple(part), **options), plainly(tuple(part), **options), rtol=1e-3, atol=1e-5)


def vgg():
    """Our network without dropout, whose masks differ from precision to precision."""
    net = ge.models.VGG16BN()
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return net


@pytest.mark.parametrize(
    "make_model", [partial(ge.models.PreResNet, 8), partial(ge.models.PreResNet, 11, block="bottleneck"), vgg]
)
@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_in_half_precision_our_networks_are_as_exact_as_in_plain_steps(images, plainly, make_model, schedule):
    """Fused layers and parallel streams, and one operation after another: as near to single precision as each other."""
    part = images[0][:64].repeat_interleave(4, dim=2).repeat_interleave(4, dim=3), images[1][:64]
    recipe = {"epochs": 1, "augment": None, "lr": 0.01}
    options = {"make_model": make_model, "schedule": schedule, "validation": 0.0, "size": 6}
    exact = plainly(part, recipe=recipe, **options)
    half = {"recipe": {**recipe, "precision": "bf16"}, **options}
    for ours, theirs, expected in zip(fit(part, **half), plainly(part, **half), exact, strict=True):
        found, plain, right = (
            torch.cat([value.flatten() for value in one.parameters()]) for one in (ours, theirs, expected)
        )
        assert 0 < (found - right).norm() < 1.5 * (plain - right).norm()


def reads_the_host(x):
    return x + 0.01 * random.random()


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Flatten(), nn.Linear(192, 3)

    def forward(self, x):
        x = self.first(x)
        return self.last(x if float(x.mean()) > 0 else -x)


class Counting(nn.Module):
    """What it returns depends on how often it was called, which no recording of a call shows."""

    def __init__(self):
        super().__init__()
        self.calls, self.last = 0, nn.Linear(192, 3)

    def forward(self, x):
        self.calls += 1
        return self.last(x.flatten(1)) * (1 + self.calls % 3)


class CountingInAList(Counting):
    """The same, where no attribute of its own changes."""

    def __init__(self):
        super().__init__()
        self.counts = [0]

    def forward(self, x):
        self.counts[0] += 1
        return self.last(x.flatten(1)) * (1 + self.counts[0] % 3)


class Averaging(nn.Module):
    """Every call puts a new tensor in the place of one; a recording would read the old one for ever."""

    def __init__(self):
        super().__init__()
        self.average, self.last = torch.zeros((), device="cuda"), nn.Linear(192, 3)

    def forward(self, x):
        self.average = 0.9 * self.average + x.detach().mean()
        return self.last(x.flatten(1) - self.average)


class CountingLoss:
    def __init__(self):
        self.calls = 0

    def __call__(self, logits, targets):
        self.calls += 1
        return nn.functional.cross_entropy(logits, targets) * self.calls


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"make_model": Branching}, "captur"),
        ({"make_model": Counting}, "replayed steps differ from plain ones"),
        ({"make_model": CountingInAList}, "replayed steps differ from plain ones"),
        ({"make_model": Averaging}, "replayed steps differ from plain ones"),
        ({"recipe": {"loss": CountingLoss()}}, "replayed steps differ from plain ones"),
        ({"recipe": {"augment": reads_the_host}}, "draws random numbers on the host"),
        ({"recipe": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.01)}}, "optimizers of one's own"),
    ],
)
def test_what_cannot_be_captured_is_trained_step_by_step_and_says_why(images, plainly, options, why):
    """In one line, and to the weights of the plain engine: nothing is left of what was tried."""
    recipe = {"epochs": 2, "batch_size": 32, "deterministic": True, "lr": 0.01, **options.get("recipe", {})}
    make_model = options.get("make_model", network)
    chosen = {"size": 2, "strength": 1.0, "progress": False, "device": "cuda", "schedule": "concurrent"}
    with pytest.warns(UserWarning, match=why) as caught:
        ours = ge.fit(make_model, images, recipe=ge.Recipe(**recipe), **chosen)
    assert len([w for w in caught if "step by step" in str(w.message)]) == 1
    if "loss" not in recipe:  # one object for all, which remembers what was tried
        recipe = {"augment": None, "normalize": None, **recipe}
        theirs = plainly(images, make_model=make_model, recipe=recipe, **chosen)
        assert_same_members(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "recipe",
    [
        {},
        {"optimizer": "adamw", "lr": 1e-3},
        {"augment": None},
        {"weighting_statistics": "batch"},
        {"deterministic": False},
        {"deterministic": False, "precision": "bf16"},
        {"deterministic": False, "precision": "tf32", "optimizer": "adamw", "lr": 1e-3},
        {"lr": 1.0},
    ],
)
@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
def test_dropout_augmentation_batchnorm_and_optimizers_are_captured(images, recipe, schedule):
    """A recording has what is random or remembered on the device; `fit` takes a line that says no for an error."""
    fit(images, recipe={"epochs": 1, **recipe}, schedule=schedule)


def test_a_dataset_is_read_step_by_step(images):
    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return 60

        def __getitem__(self, index):
            return images[0][index], int(images[1][index])

    with pytest.warns(UserWarning, match="a Dataset is read item by item"):
        ge.fit(network, Files(), size=2, method="deep", recipe=ge.Recipe(epochs=1), progress=False, device="cuda")


def test_divergence_is_noticed_within_the_epoch(images):
    with pytest.raises(ge.NonFiniteLossError, match="epoch 1"):
        fit(images, recipe={"lr": 1e30}, schedule="concurrent")


def test_generators_are_left_alone(images):
    torch.cuda.manual_seed(3)
    expected = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(3)
    fit(images, schedule="concurrent")
    assert torch.equal(torch.rand(3, device="cuda"), expected)


@pytest.mark.filterwarnings("ignore:members .* learnt next to nothing")
@pytest.mark.parametrize("make_model", [partial(ge.models.PreResNet, 8, 3), partial(ge.models.VGG16BN, 3)])
def test_members_side_by_side_train_as_one_after_the_other(images, monkeypatch, make_model):
    """Not a bit differs, in as many streams and with as many members as in earnest: what differed would be a race."""
    x, y = (part.repeat(8, *[1] * (part.ndim - 1)) for part in images)
    large = torch.nn.functional.interpolate(x.float(), size=32).byte(), y
    found = []
    for count in (1, 6):
        monkeypatch.setattr(captured, "STREAMS", count)
        recipe = {"epochs": 4, "precision": "bf16", "weighting_batch_size": 8, "lr": 0.01}
        found.append(fit(large, make_model, size=11, schedule="concurrent", recipe=recipe))
    assert_same_members(*found)
