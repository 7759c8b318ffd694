"""Wrong calls of ensembles, of what reads and writes them, of image sets and of the benchmark."""

from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.wrong_calls.table import INF, NAN, assert_refused, wrong
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles import benchmark, data
from greedy_ensembles.forms import InputForm

COUNTS = [0, -1, 1.5, "3", None, True]
NO_COUNTS = [0, -1, 1.5, "3"]
MODEL = partial(ge.models.MLP, 2, hidden=(3,))
X = torch.zeros(4, 2)
TABLE = X.numpy()
MASKED = np.ma.masked_array(TABLE, mask=TABLE == 0)
ENSEMBLE = ge.Ensemble([MODEL(), MODEL()])
Y = torch.arange(40) % 2
EMPTY = TensorDataset(X[:0])
KNOWING = ge.Ensemble([MODEL(), MODEL()], inputs=InputForm((2,), torch.float32))
CALIBRATED = ge.Ensemble([MODEL(), MODEL()])
CALIBRATED.calibrate(torch.randn(40, 2), Y)
BAD_X = [None, 3.0, "iris", X[0], X * NAN, X + INF, X.cfloat(), MASKED, TABLE.astype(str), TABLE.astype(object), {}]
PATHS = [3, None, b"folder", 1.5, ["folder"]]

CASES = [
    *wrong(
        ge.Ensemble, {"members": [MODEL()]}, members=[None, 3, MODEL(), MODEL, [], [3], "ab", [MODEL]],
        normalize=[3, (0.5,), (0.5, 0.0), (NAN, 1.0), "imagenet"], notes=[3, "text", [1]],
        inputs=[3, "uint8", (2,), torch.float32, {"x": 3}, {}], targets=["label", None, 3],
    ),
    *wrong(
        ge.Ensemble.from_members, {"modules": [MODEL()]}, {"modules": "members"}, modules=[None, 3, MODEL(), [], [3]],
        normalize=[3, "imagenet"], targets=["classes and labels", None],
    ),
    *wrong(ENSEMBLE.to, {}, device=["tpu", 3, "cuda:x", None]),
    *(
        case
        for call in (ENSEMBLE.predict_proba, ENSEMBLE.predict_log_proba, ENSEMBLE.uncertainty)
        for case in wrong(call, {"x": X}, x=BAD_X, batch_size=COUNTS)
    ),
    *wrong(
        ENSEMBLE.calibrate, {"x": X.repeat(10, 1)}, x=BAD_X, fpr=[0, 1, -0.1, 0.001, NAN, "0.05", None, True],
        y=[3, Y[:3], Y.float(), Y - 1, Y + 1, "01", Y[:, None]], score=["mi", None, 3], batch_size=COUNTS,
    ),
    *wrong(KNOWING.predict_proba, {"x": X}, x=[X.cfloat(), X.to_sparse(), (X, X), (X, X, X), EMPTY, DataLoader(EMPTY)]),
    *wrong(
        ge.Ensemble([nn.Linear(2, 2), nn.Linear(2, 3)]).predict_proba, {"x": X}, {"x": "members"}, x=[X]
    ),
    *wrong(CALIBRATED.flag, {"x": X}, x=BAD_X, batch_size=COUNTS),
    *wrong(CALIBRATED.predict_set, {"x": X}, x=BAD_X, alpha=[0, 1, NAN, 0.001, "0.1", None], batch_size=COUNTS),
    *wrong(CALIBRATED.predict_calibrated, {"x": X}, x=BAD_X, batch_size=COUNTS),
    *wrong(ENSEMBLE.save, {}, folder=PATHS),
    *wrong(ENSEMBLE.save, {"folder": "/dev/null/x"}, notes=[3, "text", [1]]),
    *wrong(ENSEMBLE.export_torch, {"path": "x.pt2", "example": X}, path=PATHS, example=[3, "x", X[0]]),
    *wrong(
        ge.Ensemble.load, {"folder": ".", "make_model": MODEL}, folder=PATHS, make_model=[None, 3, MODEL()],
        device=["tpu", 3, "cuda:x"],
    ),
    *wrong(ge.load_run, {"folder": "."}, folder=PATHS, make_model=[3, "mlp", MODEL()], device=["tpu", 3]),
    *wrong(ge.TensorBoard, {}, folder=PATHS),
    *wrong(ge.Uncertainty.of, {}, probs=[None, X, [[0.5]], torch.full((2, 3, 2), 2.0)]),
]  # fmt: skip

CSV = Path(__file__).with_name("animals.csv")
PROBS, NUMBERS = np.full((3, 2), 0.5), np.arange(3.0)
IMAGES = np.zeros((4, 1, 4, 4), np.uint8)
LABELS = np.arange(4) % 2
SET = data.ImageSet(IMAGES, LABELS, "tiny")
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
OF_IMAGES = ge.Ensemble([NETWORK])
P = np.log(np.full((2, 4, 2), 0.5, np.float32))
PREDICTIONS = benchmark.Predictions("tiny", P, LABELS)
CASES += [
    *wrong(
        data.ImageSet, {"images": IMAGES, "labels": LABELS, "name": "tiny"},
        images=[None, IMAGES[0], IMAGES.astype(float), IMAGES.tolist(), IMAGES[:, 0]],
        labels=[LABELS[:3], LABELS.astype(float), LABELS - 1, "0101"],
    ),
    *wrong(
        data.load, {"name": "mnist"}, name=["minst", None, 3], split=["tset", None, 3], root=[3, b"x"],
        size=NO_COUNTS, channels=[0, 2, "3", 1.5], resize=["stretch", None],
    ),
    *wrong(data.data_root, {}, root=[3, 1.5, ["x"]]),
    *wrong(
        data.make_noise, {"kind": "gaussian"}, kind=["gauss", None, 3], count=COUNTS, size=COUNTS, channels=COUNTS,
        seed=[-1, 1.5, "0", None],
    ),
    *wrong(data.read, {"path": "images.npy"}, path=PATHS, size=[0, -1, "3"], channels=[0, 2, "3"], resize=["x", None]),
    *wrong(
        data.read_parts, {"path": "images"}, path=PATHS, size=[0, -1, 1.5, "3"], channels=[0, 2, "3"],
        resize=["x", None, 3], unreadable=[3, "skip", True],
    ),
    *wrong(
        data.read_table, {"path": CSV, "target": "kind"}, path=PATHS, target=["sort", 3, None, ["kind"]],
        leave_out=["a", ["z"], 3, [3], None], columns=["a", ["z"], [], 3, ["kind"], ["a", "a"]],
        classes=["cat", [], ["cat"], 3, [1, 2]],
    ),
    *wrong(
        benchmark.Predictions, {"name": "tiny", "log_probs": P},
        log_probs=[None, P[0], P.astype(float), P[:0], P.tolist()], labels=[LABELS[:3], LABELS.astype(float), "0101"],
    ),
    *wrong(
        benchmark.predict, {"ensemble": OF_IMAGES, "images": SET}, ensemble=[None, NETWORK, "run"],
        images=[None, 3, "mnist"], batch_size=[0, -1, 1.5, "3"], precision=["fp16", None], cache=[3, b"x"],
        fresh=["yes", None, 3],
    ),
    *wrong(
        benchmark.evaluate, {"ensemble": OF_IMAGES, "in_domain": SET}, ensemble=[None, NETWORK],
        in_domain=[None, IMAGES], ood=[3, {"x": 3}, "imagenet", [SET]], score=["mi", None, 3], batch_size=[0, 1.5],
        cache=[3, b"x"],
    ),
    *wrong(
        benchmark.judge, {"in_domain": PREDICTIONS, "ood": []}, in_domain=[None, P], ood=[3, [P], None],
        score=["mi", None], missing=[3, None],
    ),
    *wrong(
        benchmark.judge_probabilities, {"name": "mine", "probs": PROBS, "labels": LABELS[:3], "ood": {"far": PROBS}},
        {"ood": "(ood|far)"}, name=[3, None], probs=[None, 3, "ab", PROBS[0], PROBS * 2, PROBS * NAN, PROBS[:0]],
        labels=[None, LABELS, LABELS[:3] - 1, LABELS[:3] + 1, LABELS[:3] / 2, "010"], score=["mi", None, 3, "energy"],
        ood=[None, 3, [PROBS], {"far": PROBS * 2}, {"far": np.full((3, 4), 0.25)}, {"far": "ab"}, {3: PROBS}],
    ),
    *wrong(
        benchmark.judge_scores, {"name": "norm", "in_scores": NUMBERS, "ood": {"far": NUMBERS}}, {"ood": "(ood|far)"},
        name=[3, None], in_scores=[None, 3, "ab", [], NUMBERS * NAN, NUMBERS[None], ["a"]],
        ood=[None, 3, [NUMBERS], {"far": NUMBERS * NAN}, {"far": "ab"}, {"far": []}, {3: NUMBERS}],
    ),
    *wrong(
        ge.compare, {"methods": {"deep": ENSEMBLE}, "in_domain": (X, LABELS), "ood": {"far": X + 9}},
        {"ood": "(ood|far)"}, methods=[None, 3, {}, [ENSEMBLE], {"deep": 3}, {"deep": []}, {3: ENSEMBLE}],
        in_domain=[None, 3, X, (X, LABELS[:3]), (X, LABELS * 0.5)], score=["mi", 3, {"deep": "mi"}, {"shallow": "mi"}],
        ood=[None, 3, "cifar10", {"far": 3}, {"far": X[:, :1]}, [X]], features=["layer", 3],
        batch_size=[0, -1, 1.5, "3"], root=[3, b"x"],
    ),
    *wrong(benchmark.scores_of, {}, predictions=[None, P, 3]),
    *wrong(benchmark.estimate, {}, values=[[], None, 3, ["a"], "12"]),
    *wrong(
        benchmark.pack_predictions, {"file": "/dev/null/x.npz", "in_domain": PREDICTIONS, "ood": []},
        file=[*PATHS, "run.zip"], in_domain=[None, P], ood=[3, None, [P]], missing=[3, None, [3]],
        information=[3, "text", {"x": object()}], limit=[0, -1, 100, 1.5, "16", None],
    ),
    *wrong(benchmark.unpack_predictions, {}, file=PATHS),
    *wrong(benchmark.load_preset, {"name": "mnist", "in_domain": SET}, name=["imagenet", None, 3], in_domain=[None, 3]),
]  # fmt: skip


@cache
def fitted():
    classifier = ge.GreedyEnsembleClassifier(device="cpu", size=1, recipe=ge.Recipe(epochs=1))
    return classifier.fit(np.eye(4)[:, :2], [0, 1, 0, 1])


def coupler(**changes):
    return ge.Coupler(**{"weighting": ge.weighting.Uniform(0, 1, (2,)), "size": 2, "samples": 8, **changes})


IMAGES = data.ImageSet(np.zeros((10, 1, 4, 4), np.uint8), np.arange(10) % 2, "tiny")
ROWS = np.zeros((4, 2))
BEYOND = np.array([0, 1, 0, 1], np.uint64) + np.uint64(2**63)
FOUND = benchmark.judge_probabilities("x", np.full((2, 2), 0.5), np.array([0, 1]), {"far": np.full((2, 2), 0.5)})
CASES += [
    *wrong(
        coupler, {}, weighting=[None, 3, "paper", ge.weighting.Uniform, X], size=COUNTS, samples=COUNTS,
        strength=[-1.0, NAN, "1", None], method=["greedi", None, 3, ge.Coupling], batch_size=COUNTS,
        statistics=["none", None], transform=[3, "x"], distance=["logit", None], targets=["label", None],
        seed=[-1, 1.5, "0", None],
    ),
    *wrong(lambda model: coupler().step(model).__enter__(), {}, model=[None, 3, MODEL]),
    *wrong(lambda model: coupler().term(model), {}, model=[None, 3, MODEL, MODEL()]),
    *wrong(lambda model: coupler().add(model), {}, model=[None, 3, MODEL]),
    *wrong(lambda **most: ge.limits(**most).__enter__(), {}, pixels=[-1, NAN, INF, "1", None, True], pixel=[3]),
    *wrong(
        ge.models.heads, {"backbone": nn.Linear(2, 4), "make_head": lambda: nn.Linear(4, 2)},
        backbone=[None, 3, MODEL], make_head=[None, 3, nn.Linear(4, 2)],
    ),
    *wrong(
        data.TableSet, {"rows": ROWS, "labels": np.array([0, 1, 0, 1]), "name": "t", "columns": ("a", "b")},
        rows=[None, ROWS.astype(int), ROWS[0], [[0.0, 1.0]], np.ma.masked_array(ROWS, mask=ROWS == 0)],
        labels=[np.array([0, 1]), np.eye(4)[0], "x", np.array([-1, 0, 0, 0]), BEYOND],
        columns=[("a",), 3, None], classes=[3, (1, 2)], name=[3, None], note=[3, None],
    ),
    *wrong(lambda **changes: IMAGES.replace(**changes), {}, labels=[BEYOND, "x"], images=[None], picturs=[3], name=[3]),
    *wrong(IMAGES.with_channels, {}, channels=[0, 2, "3", None, 1.5]),
    *wrong(IMAGES.resized, {"size": 2}, size=COUNTS, resize=["cut", None]),
    *wrong(IMAGES.split, {"share": 0.4}, share=[0, 1, -1, NAN, "0.4", None, True], seed=[-1, 1.5, "0", None]),
    *wrong(IMAGES.take, {}, indices=[None, "x", np.array([99]), np.array([-1]), np.array([0.5]), 3]),
    *wrong(IMAGES.with_note, {}, note=[3, None]),
    *wrong(ge.weighting.Tokens, {"vocabulary": 5, "length": 3}, vocabulary=[1, 1.5, "5", None], length=COUNTS),
    *wrong(ge.weighting.Shuffled, {}, x=[None, [], X * NAN, "iris", 3]),
    *(
        case
        for weighting in (ge.weighting.Tokens(5, 3), ge.weighting.Shuffled(X))
        for case in wrong(
            weighting.sample, {"n": 2, "generator": torch.Generator()}, n=[-1, 1.5, "2", None], generator=[None, 0]
        )
    ),
    *wrong(FOUND.by, {}, score=["x", None, 3]),
    *wrong(FOUND.mean, {"metric": "auc"}, metric=["x", None, 3], kind=["x", None]),
    *wrong(
        lambda X: fitted().score_samples(X), {},
        X=[None, 3, "x", ROWS * NAN, ROWS[:, :1], np.ma.masked_array(ROWS, mask=ROWS == 0)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments", "name"), CASES)
def test_the_argument_is_named(call, arguments, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert_refused(call, arguments, name)
    assert list(tmp_path.iterdir()) == []
