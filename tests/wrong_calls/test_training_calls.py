"""Wrong calls of what trains: each is refused before anything is trained."""

from functools import partial

import numpy as np
import pytest
import torch
from tests.wrong_calls.table import INF, NAN, assert_refused, wrong
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.method import Hyper, Repulsive

X = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 2
TABLE, LABELS = X.numpy().astype(np.float64), Y.numpy()
MODEL = partial(ge.models.MLP, 2, hidden=(4,))
COUNTS = [0, -1, 1.5, "3", None, True]
NO_COUNTS = [0, -1, 1.5, "3", True]
RATES = [0, -0.1, NAN, INF, "0.1", None, True]
MASKED = np.ma.masked_array(TABLE, mask=TABLE > 1)
ELSEWHERE = nn.Linear(2, 2)
ITEMS = TensorDataset(X, Y)
BYTES = torch.arange(320).remainder(256).reshape(20, 1, 4, 4).to(torch.uint8)


def never(event):
    raise AssertionError("it trained")


def bad_pairs():
    with_nan = X.clone()
    with_nan[3, 1] = NAN
    return [
        None, 3, "iris", X, (X,), (X, Y[:-1]), (X[:0], Y[:0]), (with_nan, Y), (X[:, 0], Y), (X.cfloat(), Y),
        (TABLE.astype(str), LABELS), (TABLE.astype(object), LABELS), (MASKED, LABELS),
    ]  # fmt: skip


def bad_labels():
    return [
        Y.float(), Y - 1, Y.bool(), Y[:, None], nn.functional.one_hot(Y), LABELS.astype(str), LABELS.astype(object),
        LABELS.astype(np.uint64) + np.uint64(2**63), LABELS + 2**40, np.ma.masked_array(LABELS, mask=LABELS > 0),
    ]  # fmt: skip


class Named(ge.Coupling):
    label = "named"

    def __init__(self, sees="earlier", terms=None):
        self.sees, self._terms = sees, terms

    def terms(self, live, bank):
        return self._terms


def of_pixels():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


class Nameless(Named):
    label = None


FIT = {"make_model": MODEL, "data": (X, Y), "size": 2, "device": "cpu", "progress": False, "callbacks": [never]}
SWEEP = {"make_model": MODEL, "data": (X, Y), "size": 2, "storage": "/dev/null/x", "on": None}
CASES = [
    *wrong(
        ge.fit,
        FIT,
        {"strength": "strength"},
        make_model=[None, 3, "mlp", MODEL(), lambda: 3, lambda: MODEL, lambda: nn.ReLU(), lambda width: 3, nn.Linear],
        size=COUNTS,
        targets=["label", None, 3, "labels"],
        strength=[-1.0, NAN, INF, "1", None, True, [1.0], torch.ones(2)],
        method=["greedi", None, 3, ge.Coupling, ["greedy"]],
        weighting=["gaussian", 3, ge.weighting.Gaussian, ge.weighting.Uniform(0, 1, (3,)), X],
        distance=["logit", None, 3],
        recipe=[{"lr": 0.1}, "paper", 3, ge.Recipe],
        seed=[-1, 1.5, "0", None, 2**32, True],
        validation=[1, 1.5, -0.1, NAN, "0.1", None, True, (X,), (X[:, :1], Y)],
        run_dir=[3, 1.5, b"run", ["run"], True],
        earlier=[3, [MODEL()], MODEL(), "run", ge.Ensemble([nn.Linear(3, 2)])],
        schedule=["sequental", None, 3],
        device=["tpu", "gpu0", 3, "cuda:x"],
        callbacks=[[3], never, None, 3, "print"],
        progress=["yes", None, 3],
    ),
    *wrong(ge.fit, FIT, {"data": "(x|y|X|data)"}, data=bad_pairs()),
    *wrong(lambda labels: ge.fit(**{**FIT, "data": (X, labels)}), {}, labels=bad_labels()),
    *wrong(lambda validation: ge.fit(**{**FIT, "validation": (X, validation)}), {}, validation=bad_labels()),
    *wrong(torch.no_grad()(lambda **given: ge.fit(**FIT)), {}, no_grad=[None]),
    *wrong(ge.fit, {**FIT, "method": "deep"}, weighting=[ge.weighting.Uniform(0, 1, (2,)), "paper"]),
    *(
        case
        for inputs, scale in ((BYTES, 1), (BYTES / 255, 255))
        for case in wrong(
            ge.fit,
            {**FIT, "make_model": of_pixels, "data": (inputs, Y[:20])},
            weighting=[ge.weighting.Uniform(0, scale, (1, 4, 4)), ge.weighting.FromData(BYTES.float() * scale / 255)],
        )
    ),
    *wrong(
        lambda optimizer: ge.fit(**{**FIT, "recipe": ge.Recipe(optimizer=optimizer)}),
        {},
        optimizer=[
            lambda p: torch.optim.SGD(ELSEWHERE.parameters(), 0.1),
            lambda p: torch.optim.SGD([*p, *ELSEWHERE.parameters()], 0.1),
            lambda p: torch.optim.SGD,
            lambda p: None,
        ],
    ),
    *wrong(
        lambda select_by: ge.fit(**{**FIT, "recipe": ge.Recipe(select_by=select_by)}),
        {},
        select_by=[
            ge.metrics.negative_log_likelihood,
            ge.metrics.expected_calibration_error,
            ge.metrics.brier_score,
            nn.functional.nll_loss,
        ],
    ),
    *wrong(
        ge.Recipe,
        {},
        epochs=COUNTS,
        batch_size=COUNTS,
        weighting_batch_size=NO_COUNTS,
        weighting_samples=NO_COUNTS,
        members_at_once=NO_COUNTS,
        patience=NO_COUNTS,
        warmup_epochs=[-1, 1.5, "1", None, 101],
        lr=RATES,
        lr_scale=RATES,
        gamma=RATES,
        clip=[0, -1, NAN, INF, "1"],
        ema=[-0.1, 1, 1.5, NAN, "0.9"],
        momentum=[-0.1, 1, 1.5, NAN, INF, "0.9", None],
        weight_decay=[-0.1, NAN, INF, "0", None],
        nesterov=[1, "yes", None],
        schedule=["cosine", "sequential", None, 3],
        lr_updates=["steps", None],
        precision=["fp16", None, 32],
        weighting_statistics=["none", None],
        deterministic=[1, "yes", None],
        optimizer=["adam", None, 3],
        loss=["nll", 3],
        augment=["flip", 3],
        select_by=["loss", None, 3],
        normalize=[3, "imagenet", (0.5,), (0.5, 0.0), (0.5, -1.0), (NAN, 1.0), ([0, 0], [1])],
        milestones=[30, "30", [-1], [1.5], None],
    ),
    *wrong(
        lambda **changes: ge.Recipe.paper(**changes), {"dataset": "cifar10", "model": "VGG16BN"},
        dataset=["imagenet", None, 3], model=["VGG", None, 3], epochs=[0, "2"], momentum=[1.5],
    ),
    *wrong(
        lambda **changes: ge.Recipe.paper("cifar10", "VGG16BN", **changes), {}, {"learning_rate": "learning_rate"},
        learning_rate=[0.1],
    ),
    *wrong(
        ge.select,
        {"make_model": MODEL, "data": (X, Y), "size": 2, "device": "cpu", "progress": False},
        make_model=[None, MODEL()],
        size=COUNTS,
        strengths=[[], [0.0], [-1.0], [NAN], ["1"], 1.0, None, "1", [1.0, 3.0, 1]],
        seeds=[0, -1, 1.5, "3", [], [1.5], [0, 1], None],
        by=["loss", None, 3],
        targets=["labels", None],
        validation=[0, 1.5, "0.1", None],
        run_dir=[3, b"run"],
        on=[3, "slurm"],
        cpus=COUNTS,
        gpus=[-1, NAN, "1"],
        seed=[0],
    ),
    *wrong(
        ge.sweep,
        {**SWEEP, "runs": {"seed": [0, 2]}},
        {"runs": "(runs|sead)"},
        make_model=[None, 3, MODEL()],
        runs=[None, 3, {}, [], "seed", {"seed": 0}, {"seed": []}, [3], {"sead": [0]}, {"seed": [0, 1]}, [{}, {}]],
        storage=[3, None, b"x", __file__],
        on=[3, "slurm"],
        cpus=COUNTS,
        gpus=[-1, NAN, "1"],
        progress=["yes", None],
        size=COUNTS,
        strength=[-1.0, "1"],
        callbacks=[3],
    ),
    *wrong(
        ge.diversity_term,
        {"outputs": torch.zeros(3, 2), "earlier": torch.zeros(1, 3, 2), "strength": 1.0, "size": 2},
        outputs=[torch.zeros(3), torch.zeros(3, 3), None, [[0.5, 0.5]], np.zeros((3, 2)), torch.zeros(3, 2).long()],
        earlier=[torch.zeros(3, 2), torch.zeros(1, 4, 2), None, np.zeros((1, 3, 2))],
        strength=[-1.0, NAN, INF, "1", None],
        size=COUNTS,
    ),
    *wrong(lambda model: ge.frozen_batchnorm(model).__enter__(), {}, model=[None, 3, MODEL]),
    *wrong(
        lambda **arguments: ge.split_batchnorm(**arguments).__enter__(), {"model": MODEL(), "count": 1},
        model=[None, 3, MODEL], count=[0, -1, 1.5, None], statistics=["none", None],
    ),
]  # fmt: skip
ESTIMATOR = {"X": TABLE, "y": LABELS}
CASES += [
    *wrong(
        lambda **given: ge.GreedyEnsembleClassifier(device="cpu", **given).fit(TABLE, LABELS),
        {},
        size=COUNTS,
        strength=[-1.0, NAN, "1"],
        hidden=[3, None, [0], ["4"], [1.5], "4"],
        make_model=[3, MODEL(), lambda: 3],
        method=["greedi", None],
        weighting=["gaussian", 3, ge.weighting.Uniform(0, 1, (3,))],
        recipe=["paper", {"lr": 1}, ge.Recipe(normalize=(0.5, 0.5))],
        validation=[1.5, "0.1", None, (TABLE, LABELS)],
        random_state=["x", 1.5],
    ),
    *wrong(
        lambda weighting: ge.GreedyEnsembleClassifier(method="deep", weighting=weighting).fit(TABLE, LABELS),
        {},
        weighting=[ge.weighting.Uniform(0, 1, (2,))],
    ),
    *wrong(ge.GreedyEnsembleClassifier(device="cpu").fit, ESTIMATOR, X=[TABLE * NAN, MASKED]),
    *wrong(
        ge.GreedyEnsembleClassifier(device="cpu").fit, ESTIMATOR, y=[TABLE, LABELS * 0, None],
    ),
]  # fmt: skip
CASES += [
    *wrong(
        Hyper, {}, lr=[3, None, (1, 0.5), (0, 1), (1,), "01", (NAN, 1), (1, INF), ("a", "b"), (1, 2, 3)],
        weight_decay=[3, (0, 1), (1,)], label_smoothing=[0.1, (0.5, 1), (-0.1, 0)], dropout=[0.1, (0, 1), None],
    ),
    *wrong(Repulsive, {}, bandwidth=[0, -1, NAN, INF, "1", True, [1.0]]),
    *wrong(lambda method: ge.fit(**{**FIT, "method": method}), {}, {"method": "(method|label)"}, method=[Nameless()]),
    *wrong(lambda sees: ge.fit(**{**FIT, "method": Named(sees)}), {}, sees=["everyone", None]),
    *wrong(lambda terms: ge.fit(**{**FIT, "method": Named(terms=terms)}), {}, terms=[0.0, None, torch.zeros(3)]),
]  # fmt: skip
SAMPLE = {"n": 2, "generator": torch.Generator()}
IMAGES = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
WEIGHTINGS = [
    ge.weighting.Gaussian(0.0, 1.0), ge.weighting.Uniform(0, 1, (2,)), ge.weighting.FromData(X),
    ge.weighting.PhaseScrambled(IMAGES), ge.weighting.Mixture([ge.weighting.Uniform(0, 1, (2,))]),
]  # fmt: skip
CASES += [
    *wrong(
        ge.weighting.Gaussian,
        {"mean": 0.0, "std": 1.0},
        mean=[NAN, INF, "0", None, True, [True, False]],
        std=[-1.0, NAN, "1", None],
        scale=[0, -1, NAN, "5", None],
        overflow=["warp", None, 3],
        levels=[1, 0, 1.5, "256", None],
    ),
    *wrong(
        ge.weighting.Gaussian, {"mean": 0.0, "std": 1.0, "overflow": "clip", "low": 0.0, "high": 1.0},
        low=[None, 2.0, NAN, "0"], high=[None, -1.0, NAN, "1"],
    ),
    *wrong(ge.weighting.Gaussian, {"mean": torch.zeros(2)}, std=[torch.ones(3)]),
    *wrong(
        ge.weighting.Gaussian.from_data, {"x": X},
        x=[None, X[:0], X * NAN, "iris", MASKED, 3.0, (X, Y), ITEMS, [[1.0], [1.0, 2.0]]], scale=[0, "5"],
    ),
    *wrong(
        ge.weighting.Uniform, {"low": 0.0, "high": 1.0, "shape": (2,)},
        low=[1.0, 2.0, NAN, "0", None, [0, 0, 0]], high=[0.0, NAN, INF, "1", None], shape=[3, "2", [-1], [1.5], None],
    ),
    *wrong(ge.weighting.FromData, {}, x=[None, [], X[0], X * NAN, "iris", MASKED, ITEMS, DataLoader(ITEMS)]),
    *wrong(ge.weighting.PhaseScrambled, {}, x=[None, X, X[:, None], IMAGES.long(), IMAGES[:0], IMAGES / 0.0]),
    *wrong(
        ge.weighting.Mixture, {"parts": [ge.weighting.Uniform(0, 1, (2,))]},
        parts=[None, [], [3], 3, [ge.weighting.Uniform(0, 1, (2,)), ge.weighting.Uniform(0, 1, (3,))]],
        shares=[[], [0], [-1], [NAN], ["1"], 3, [1, 1]],
    ),
    *(
        case
        for weighting in WEIGHTINGS
        for case in wrong(weighting.sample, SAMPLE, n=[-1, 1.5, "2", None], generator=[None, 0])
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments", "name"), CASES)
def test_the_argument_is_named(call, arguments, name):
    assert_refused(call, arguments, name)
