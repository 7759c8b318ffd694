import importlib.util
import pickle

import numpy as np
import pytest
import torch
from tests.test_storage import left_behind
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles import export

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra greedy-ensembles[onnx] and onnxruntime",
)
OUTPUTS = ["probabilities", "epistemic", "aleatoric", "total"]


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 36, 5)
    )


def table():
    return ge.models.MLP(4, hidden=(8,), classes=3)


def members(factory, example, count=2, spread=4.0):
    torch.manual_seed(0)
    made = [factory() for _ in range(count)]
    for member in made:
        if example.ndim == 4:
            member(torch.rand(16, *example.shape[1:]))  # move BatchNorm's statistics
        with torch.no_grad():
            member[-1].weight.mul_(spread)  # members that disagree, so that a mistake in the mutual information shows
    return made


def batch(like, n):
    generator = torch.Generator().manual_seed(n)
    shape = (n, *like.shape[1:])
    if like.dtype == torch.uint8:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return torch.randn(shape, dtype=like.dtype, generator=generator)


IMAGES = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
CASES = {
    "uint8 images, one number a channel": (convolutional, IMAGES, ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))),
    "uint8 images": (convolutional, IMAGES, None),
    "a table": (table, torch.zeros(5, 4), ((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0))),
    "a table in double precision": (table, torch.zeros(1, 4, dtype=torch.float64), (0.5, 2.0)),
    "a model in double precision": (lambda: table().double(), torch.zeros(1, 4), (0.5, 2.0)),
}


def case(name):
    factory, example, normalize = CASES[name]
    return ge.Ensemble.from_members(members(factory, example), normalize), example


def expected_outputs(ensemble, x):
    uncertainty = ensemble.uncertainty(x)
    return {"probabilities": ensemble.predict_proba(x).mean(dim=0), **uncertainty._asdict()}


def run_onnx(path, x, outputs=OUTPUTS):
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [(value.name, value.shape[0]) for value in session.get_inputs()] == [("x", "batch")]
    assert [value.name for value in session.get_outputs()] == outputs
    return dict(zip(outputs, session.run(None, {"x": x.numpy()}), strict=True))


@needs_onnx
@pytest.mark.parametrize("name", ["uint8 images, one number a channel", "a model in double precision"])
def test_onnx_gives_what_pytorch_gives_for_any_length_of_batch(name, tmp_path):
    ensemble, example = case(name)
    ensemble.export_onnx(tmp_path / "ensemble.onnx", example)
    assert [file.name for file in tmp_path.iterdir()] == ["ensemble.onnx"]
    for n in (1, 2, 17):
        x = batch(example, n)
        found, expected = run_onnx(tmp_path / "ensemble.onnx", x), expected_outputs(ensemble, x)
        for name in OUTPUTS:
            np.testing.assert_allclose(found[name], expected[name].numpy(), rtol=0, atol=1e-5, err_msg=name)
    assert expected["epistemic"].max() > 0.05


@pytest.mark.parametrize("name", CASES)
def test_torch_export_gives_what_the_ensemble_gives_for_any_length_of_batch(name, tmp_path):
    ensemble, example = case(name)
    ensemble.export_torch(tmp_path / "ensemble.pt2", example)
    program = torch.export.load(tmp_path / "ensemble.pt2").module()
    for n in (1, 2, 17):
        x = batch(example, n)
        found, expected = program(x), expected_outputs(ensemble, x)
        assert list(found) == OUTPUTS
        for name in OUTPUTS:
            torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6)


@needs_onnx
def test_a_calibrated_ensemble_flags_in_onnx_as_in_python(tmp_path):
    ensemble = ge.Ensemble.from_members(members(table, torch.zeros(1, 4)))
    known, x = batch(torch.zeros(1, 4), 60).split([20, 40])  # one of the known lies at the threshold, but for rounding
    ensemble.calibrate(known, torch.arange(20) % 3, fpr=0.3)
    ensemble.export_onnx(tmp_path / "flags.onnx", x)
    found = run_onnx(tmp_path / "flags.onnx", x, [*OUTPUTS, "flag"])
    assert found["flag"].dtype == bool
    assert 0 < found["flag"].sum() < 40
    np.testing.assert_array_equal(found["flag"], ensemble.flag(x).numpy())
    np.testing.assert_allclose(found["probabilities"], ensemble.predict_calibrated(x).numpy(), atol=1e-5)
    assert abs(ensemble.calibration.temperature - 1) > 0.1


@needs_onnx
def test_members_that_are_certain_have_no_entropy_rather_than_nan(tmp_path):
    # Logits a thousand apart: probabilities of exactly 0 and 1, where p log p must be 0.
    certain = [nn.Linear(2, 2, bias=False) for _ in range(2)]
    with torch.no_grad():
        certain[0].weight.copy_(torch.tensor([[1000.0, 0.0], [-1000.0, 0.0]]))
        certain[1].weight.copy_(torch.tensor([[-1000.0, 0.0], [1000.0, 0.0]]))
    ge.Ensemble.from_members(certain).export_onnx(tmp_path / "certain.onnx", torch.ones(1, 2))
    found = run_onnx(tmp_path / "certain.onnx", torch.ones(3, 2))
    np.testing.assert_allclose(found["epistemic"], np.log(2), rtol=1e-6)
    np.testing.assert_array_equal(found["aleatoric"], 0)
    np.testing.assert_array_equal(found["probabilities"], 0.5)


@needs_onnx
def test_a_fitted_estimator_exports_with_its_standardisation(tmp_path):
    x = 1000 + 50 * np.random.default_rng(0).normal(size=(60, 3))
    recipe = ge.Recipe(epochs=3)
    fitted = ge.GreedyEnsembleClassifier(size=2, hidden=(8,), recipe=recipe, device="cpu").fit(x, x[:, 0] > 1000)
    fitted.ensemble_.export_onnx(tmp_path / "table.onnx")
    found = run_onnx(tmp_path / "table.onnx", torch.from_numpy(x))
    np.testing.assert_allclose(found["probabilities"], fitted.predict_proba(x), atol=1e-5)


@needs_onnx
def test_weights_too_large_for_one_file_get_a_second_one(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONNX_LIMIT", 100)
    example = torch.zeros(1, 4)
    ensemble = ge.Ensemble.from_members(members(table, example))
    ensemble.export_onnx(tmp_path / "big.onnx", example)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["big.onnx", "big.onnx.data"]
    x = batch(example, 3)
    np.testing.assert_allclose(
        run_onnx(tmp_path / "big.onnx", x)["total"], ensemble.uncertainty(x).total.numpy(), atol=1e-5
    )


def test_exporting_leaves_the_ensemble_as_it_was_and_replaces_only_its_file(tmp_path):
    example = torch.zeros(1, 4)
    ensemble = ge.Ensemble.from_members(members(table, example))
    before = ensemble.predict_proba(batch(example, 5))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "e.pt2").write_text("old")
    (tmp_path / "new" / "mine.txt").write_text("mine")
    ensemble.export_torch(tmp_path / "new" / "e.pt2", example)
    assert sorted(file.name for file in (tmp_path / "new").iterdir()) == ["e.pt2", "mine.txt"]
    assert torch.equal(ensemble.predict_proba(batch(example, 5)), before)
    ensemble.export_torch(tmp_path / "made" / "on" / "the way.pt2", example.numpy())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64])
def test_a_trained_ensemble_knows_its_inputs_wherever_it_has_been(tmp_path, dtype):
    make_model = Embedding if dtype == torch.int64 else Flat
    x, y = torch.randint(0, 9, (20, 1, 2, 2)).to(dtype), torch.arange(20) % 2
    weighting = ge.weighting.FromData(x)
    recipe = ge.Recipe(epochs=1)
    options = {"strength": 1.0, "weighting": weighting, "recipe": recipe, "device": "cpu", "progress": False}
    trained = ge.fit(make_model, (x, y), size=2, run_dir=tmp_path / "run", **options)
    trained.save(tmp_path / "saved")
    everywhere = (
        trained,
        trained[:1],
        pickle.loads(pickle.dumps(trained)),
        ge.Ensemble.load(tmp_path / "saved", make_model),
        ge.load_run(tmp_path / "run", make_model).ensemble,
    )
    assert [ensemble.inputs for ensemble in everywhere] == [trained.inputs] * 5
    everywhere[-1].export_torch(tmp_path / "e.pt2")
    program = torch.export.load(tmp_path / "e.pt2").module()
    torch.testing.assert_close(program(x)["total"], trained.uncertainty(x).total, rtol=0, atol=1e-6)


class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(4, 2))


class Embedding(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2))


class Bag(torch.utils.data.Dataset):
    """Inputs that are single numbers, whose form no file can name."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.tensor(index % 9), index % 2


class OfNumbers(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Embedding(9, 2))


def test_inputs_that_cannot_be_named_are_not_known(tmp_path):
    options = {"method": "deep", "recipe": ge.Recipe(epochs=1), "device": "cpu", "progress": False}
    trained = ge.fit(OfNumbers, Bag(), size=2, run_dir=tmp_path / "run", **options)
    trained.save(tmp_path / "saved")
    assert ge.Ensemble.load(tmp_path / "saved", OfNumbers).inputs is None
    assert ge.load_run(tmp_path / "run", OfNumbers).ensemble.inputs is None


def test_members_from_elsewhere_need_an_example(tmp_path):
    with pytest.raises(ValueError, match=r"example must be a batch of inputs: .*trained on .*not known"):
        ge.Ensemble.from_members([table()]).export_torch(tmp_path / "e.pt2")


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_what_cannot_be_exported_is_refused_and_leaves_no_file(tmp_path):
    example = torch.zeros(1, 4)
    ensemble = ge.Ensemble.from_members(members(table, example))
    for bad, shape in ((torch.zeros(4), r"\(4,\)"), (torch.zeros(0, 4), r"\(0, 4\)")):
        with pytest.raises(ValueError, match=rf"example must be a batch .*at least one .*got shape {shape}"):
            ensemble.export_torch(tmp_path / "e.pt2", bad)
    with pytest.raises(TypeError, match="must hold numbers"):
        ensemble.export_torch(tmp_path / "e.pt2", "x")
    with pytest.raises(ValueError, match=r"path must be that of a file, but .* is a folder"):
        ensemble.export_torch(tmp_path, example)
    message = r"the members cannot take float32 of shape \(5,\): mat1 and mat2"
    with pytest.raises(ValueError, match=message):
        ensemble.export_torch(tmp_path / "e.pt2", torch.zeros(1, 5))
    with pytest.raises(ValueError, match=r"torch\.export .*graph of the members: .*guard"):
        ge.Ensemble.from_members([Branching()]).export_torch(tmp_path / "e.pt2", example)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["e.pt2", pytest.param("e.onnx", marks=needs_onnx)])
def test_a_full_disk_is_an_error_and_leaves_the_old_file(tmp_path, name):
    """Files may have 1,000 bytes; PyTorch's own writer of files would end this process."""
    resource = pytest.importorskip("resource")
    path = tmp_path / name
    path.write_text("old")
    left_behind(path).mkdir()  # which goes, whatever comes of this
    ensemble = ge.Ensemble.from_members([table()])
    write = ensemble.export_torch if name == "e.pt2" else ensemble.export_onnx
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=f"could not write {path}"):
            write(path, torch.zeros(1, 4))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ensemble = ge.Ensemble.from_members([table()])
    with pytest.raises(ImportError, match=r"needs onnx and onnxscript: .*pip install 'greedy-ensembles\[onnx\]'"):
        ensemble.export_onnx(tmp_path / "e.onnx", torch.zeros(1, 4))
