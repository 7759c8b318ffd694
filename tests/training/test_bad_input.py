"""What `ge.fit` refuses before it trains anything; each message names the argument and what would do."""

import pytest
import torch
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.forms import InputForm
from greedy_ensembles.method import Deep


def model():
    return ge.models.MLP(2, hidden=(4,))


def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


def normed():
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Loses(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)

    def forward(self, x):
        return {}["lost"]


class Squashed(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)

    def forward(self, x):
        return super().forward(x).sigmoid()


class ReturnsTuple(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x):
        return self.linear(x), x


class Shape(nn.Module):
    """A model whose outputs have a shape that cannot be logits."""

    def __init__(self, change):
        super().__init__()
        self.linear, self.change = nn.Linear(2, 2), change

    def forward(self, x):
        return self.change(self.linear(x))


SHARED = nn.Linear(2, 2)
NORM = nn.BatchNorm1d(2, momentum=0.0).requires_grad_(False)
X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2


def coupling(reduce=lambda live: live.sum(dim=(1, 2)), **attributes):
    """Return a method of one's own."""
    terms = {"terms": lambda self, live, bank: reduce(live)}
    return type("Own", (ge.Coupling,), {"label": "own", **terms, **attributes})()


def refusal(error, message, **changes):
    return pytest.param(error, message, changes, id=f"{next(iter(changes))}-{message[:40]}")


@pytest.mark.parametrize(
    ("error", "message", "changes"),
    [
        refusal(ValueError, "method must be one of .*; got 'greedi'; did you mean 'greedy'", method="greedi"),
        refusal(TypeError, r"Deep is a class, use Deep\(\)", method=Deep),
        refusal(TypeError, "Own needs a label", method=coupling(label=None)),
        refusal(
            ValueError,
            "Own.sees must be one of 'earlier', 'all', 'none'; got 'Earlier'",
            method=coupling(sees="Earlier"),
        ),
        refusal(ValueError, r"Own.terms must return one number a member.*got shape \(\)", method=coupling(torch.sum)),
        refusal(ValueError, "'repulsive' meets all others.*schedule='sequential'", method="repulsive"),
        refusal(
            ValueError,
            "'repulsive' meets all others.*members_at_once=2 trains 3",
            method="repulsive",
            size=3,
            schedule="concurrent",
            recipe=ge.Recipe(members_at_once=2),
        ),
        refusal(ValueError, "device must be one of .*; got 'cudda'; did you mean 'cuda'", device="cudda"),
        refusal(ValueError, "validation=0.02 holds out 1 of 40 examples, and both parts need", validation=0.02),
        refusal(
            ValueError,
            "x holds torch.int64, for which there is no default p",
            data=(torch.arange(80).reshape(40, 2), Y),
        ),
        refusal(ValueError, "the model cannot take x: 3 inputs, float32 of shape", data=(torch.zeros(40, 3), Y)),
        refusal(
            ValueError,
            "normalize has 3 channels, but inputs of float32 of shape",
            recipe=ge.Recipe(normalize=([0] * 3, [1] * 3)),
        ),
        refusal(
            ValueError,
            "augment must return .* float32 of shape",
            recipe=ge.Recipe(augment="flip_crop"),
        ),
        *(
            refusal(ValueError, f"augment must return .*{what}", recipe=ge.Recipe(augment=augment))
            for what, augment in (
                ("shapes", lambda x: x[:, :1]),
                ("NoneType", lambda _: None),
                ("2 inputs of 3", lambda x: x[:-1]),
                ("ndarray", lambda x: x.numpy()),
                ("dtype", lambda x: x.double()),
            )
        ),
        refusal(ValueError, "earlier member 1 must return", earlier=ge.Ensemble([nn.Linear(2, 3)])),
        refusal(ValueError, "earlier member 1 cannot take x: 3 inputs", earlier=ge.Ensemble([nn.Linear(3, 2)])),
        refusal(
            ValueError,
            "cannot take batches of one example .use a larger batch_size.: .* ended in ValueError: Expected",
            make_model=normed,
            recipe=ge.Recipe(batch_size=1),
        ),
        refusal(ValueError, "the model cannot take x: .* ended in KeyError: 'lost'", make_model=Loses),
        refusal(ValueError, "share BatchNorm layers", make_model=lambda: nn.Sequential(nn.Linear(2, 2), NORM)),
        refusal(ValueError, "validation has weights", validation=(X, Y, torch.ones(40))),
        refusal(
            ValueError,
            "earlier was trained on other inputs .*float",
            data=(torch.zeros(40, 1, 4, 4, dtype=torch.uint8), Y),
            make_model=images,
            earlier=ge.Ensemble([images()], inputs=InputForm((1, 4, 4), torch.float32, (-2.0, 2.0))),
        ),
        refusal(
            ValueError,
            "earlier was trained on other inputs .*divide them by 255",
            data=(200 * torch.rand(40, 1, 4, 4), Y),
            make_model=images,
            earlier=ge.Ensemble([images()], inputs=InputForm((1, 4, 4), torch.float32, (0.0, 1.0))),
        ),
        refusal(
            ValueError,
            "samples of weighting are from 0.* multiply them by 255",
            data=(torch.randint(256, (40, 1, 4, 4), dtype=torch.uint8), Y),
            make_model=images,
            weighting=ge.weighting.Mixture(
                [ge.weighting.Uniform(0, 255, (1, 4, 4)), ge.weighting.Uniform(0, 1, (1, 4, 4))]
            ),
        ),
        refusal(ValueError, "size counts the 3 earlier members", earlier=ge.Ensemble([model() for _ in range(3)])),
        refusal(ValueError, "earlier was made with normalize=", earlier=ge.Ensemble([model()], normalize=(0.5, 0.5))),
        refusal(ValueError, "labels go up to 2, but the model has 2 classes", data=(X, torch.arange(40) % 3)),
        refusal(
            ValueError,
            "class 1 has one example, and a stratified validation split needs two",
            data=(X, (torch.arange(40) == 7).long()),
        ),
        refusal(ValueError, "make_model must build a new model at every call", make_model=lambda: SHARED),
        refusal(
            ValueError, "make_model must build a new model at every call", make_model=lambda: nn.Sequential(SHARED)
        ),
        refusal(ValueError, "lazy layers", make_model=lambda: nn.LazyLinear(2)),
        refusal(ValueError, "without a parameter to train", make_model=lambda: model().requires_grad_(False)),
        refusal(TypeError, r"must return a tensor of logits \(n, classes\), .* got tuple", make_model=ReturnsTuple),
        refusal(
            ValueError,
            r"3 inputs, float32 of shape \(2,\), gave \(6,\)",
            make_model=lambda: Shape(lambda z: z.flatten()),
        ),
        refusal(ValueError, r"or one logit .* gave \(3, 0\)", make_model=lambda: Shape(lambda z: z[:, :0])),
        refusal(ValueError, "ends in a sigmoid", make_model=lambda: nn.Sequential(nn.Linear(2, 1), nn.Sigmoid())),
        refusal(ValueError, "ends in a sigmoid", make_model=Squashed),
        refusal(TypeError, r"FromData.* got a Tensor$", weighting=torch.zeros(9, 2)),
        refusal(ValueError, "loss cannot take logits", recipe=ge.Recipe(loss=nn.BCEWithLogitsLoss())),
        refusal(
            ValueError,
            r"the model returns probabilities \(.*\) where logits are expected, .* leave out the softmax",
            make_model=lambda: nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=1)),
        ),
        refusal(
            ValueError,
            "earlier member 1 returns probabilities",
            earlier=ge.Ensemble([nn.Sequential(nn.Linear(2, 2), nn.Softmax(dim=1))]),
        ),
        refusal(
            ValueError,
            "InstanceNorm with track_running_stats=True",
            make_model=lambda: nn.Sequential(
                nn.Unflatten(1, (1, 2)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(2, 2)
            ),
        ),
        refusal(ValueError, r"gave \(1, 2\)", make_model=lambda: Shape(lambda z: z[:1])),
        refusal(
            ValueError, "loss must return a scalar tensor .* got shape", recipe=ge.Recipe(loss=lambda z, y: z.sum(1))
        ),
        refusal(ValueError, "loss must return a scalar tensor .* got float", recipe=ge.Recipe(loss=lambda z, y: 0.5)),
        refusal(
            ValueError,
            r"should have shape \(2, 2\) as the data, got \(2, 3\)",
            weighting=ge.weighting.Uniform(0, 1, (3,)),
        ),
        refusal(TypeError, r"weighting must have sample\(n, generator\)", weighting="gaussian"),
        refusal(
            ValueError,
            "samples of weighting are torch.uint8 while x is torch.float32",
            weighting=ge.weighting.FromData(torch.zeros(9, 2, dtype=torch.uint8)),
        ),
    ],
)
def test_each_is_refused_before_training(error, message, changes, tmp_path):
    arguments = {"make_model": model, "data": (X, Y), "size": 2, "strength": 1.0, "device": "cpu", "progress": False}
    arguments |= changes

    def never(event):
        raise AssertionError("it trained")

    arguments.setdefault("callbacks", [never])
    with pytest.raises(error, match=message):
        ge.fit(**arguments, run_dir=tmp_path / "run")
    assert not (tmp_path / "run" / "members").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_device_that_is_not_here_is_said_so():
    with pytest.raises(ValueError, match="device 'cuda' cannot be used here"):
        ge.fit(model, (X, Y), size=2, strength=1.0, device="cuda")


def test_a_run_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"run_dir must be a folder, but .*file is a file"):
        ge.fit(model, (X, Y), size=2, strength=1.0, run_dir=tmp_path / "file", progress=False)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_class_with_one_example_trains_without_validation(quick):
    assert len(ge.fit(model, (X, (torch.arange(40) == 7).long()), size=1, method="deep", validation=0, **quick)) == 1


class LastStep(nn.Module):
    """A recurrent classifier of (n, steps, 3), whose layer takes n for steps where it has its own default."""

    def __init__(self, layer, **changes):
        super().__init__()
        self.layer, self.head = layer(3, **changes), nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_model_that_mixes_the_inputs_of_a_batch_is_told_of(kind):
    x, y = torch.randn(40, 5, 3, generator=torch.Generator().manual_seed(2)), torch.arange(40) % 2
    options = {"size": 1, "recipe": ge.Recipe(epochs=1), "progress": False, "device": "cpu"}
    with pytest.warns(UserWarning, match="depends on the others in its batch"):
        mixing = ge.fit(lambda: LastStep(kind, hidden_size=6), (x, y), **options)
    assert not torch.allclose(mixing.predict_proba(x), mixing.predict_proba(x, batch_size=1), atol=1e-4)
    apart = ge.fit(lambda: LastStep(kind, hidden_size=6, batch_first=True), (x, y), **options)
    assert torch.allclose(apart.predict_proba(x), apart.predict_proba(x, batch_size=1), atol=1e-6)


def test_an_optimizer_that_needs_a_closure_is_refused():
    x, y = torch.randn(40, 2), torch.arange(40) % 2
    with pytest.raises(ValueError, match="LBFGS needs a closure"):
        ge.fit(model, (x, y), size=1, recipe=ge.Recipe(epochs=1, optimizer=torch.optim.LBFGS), progress=False)


@pytest.mark.parametrize("loss", [nn.NLLLoss(), nn.functional.nll_loss], ids=["module", "function"])
def test_a_loss_of_log_probabilities_wants_these(loss):
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(3))
    y = (x[:, 0] > 0).long()
    options = {"size": 1, "progress": False, "device": "cpu"}
    with pytest.raises(ValueError, match="loss takes log-probabilities, and the model returns logits"):
        ge.fit(model, (x, y), recipe=ge.Recipe(epochs=1, loss=loss), **options)
    recipe = ge.Recipe(epochs=3, loss=loss)
    logs = ge.fit(lambda: nn.Sequential(model(), nn.LogSoftmax(1)), (x, y), recipe=recipe, **options)
    same = ge.fit(model, (x, y), recipe=ge.Recipe(epochs=3), **options)
    torch.testing.assert_close(logs.predict_proba(x), same.predict_proba(x))
