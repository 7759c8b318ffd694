import resource

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles import storage
from greedy_ensembles.storage import FolderError


def network():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))


@pytest.fixture
def ensemble():
    torch.manual_seed(0)
    members = [network() for _ in range(3)]
    for member in members:
        member(torch.randn(16, 3))  # move BatchNorm's statistics
    return ge.Ensemble.from_members(members)


@pytest.fixture
def x():
    return torch.randn(50, 3, generator=torch.Generator().manual_seed(1))


def test_logarithms_are_of_the_same_probabilities(ensemble, x):
    torch.testing.assert_close(ensemble.predict_log_proba(x), ensemble.predict_proba(x).log())
    torch.testing.assert_close(ensemble.predict_log_proba(x, batch_size=2), ensemble.predict_log_proba(x))


def test_logarithms_survive_where_probabilities_vanish():
    class Certain(nn.Module):
        def forward(self, x):
            return torch.tensor([[0.0, 300.0, 100.0]]).repeat(len(x), 1)

    ensemble = ge.Ensemble([Certain()])
    assert ensemble.predict_proba(torch.zeros(1, 2)).tolist() == [[[0.0, 1.0, 0.0]]]
    assert ensemble.predict_log_proba(torch.zeros(1, 2)).tolist() == [[[-300.0, 0.0, -200.0]]]


def test_predictions_are_the_members_own(ensemble, x):
    probs = ensemble.predict_proba(x)
    assert probs.shape == (3, 50, 4)
    with torch.no_grad():
        for k, member in enumerate(ensemble):
            assert not member.training
            torch.testing.assert_close(probs[k], member(x).softmax(dim=1))


@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_the_batch_size_does_not_matter(ensemble, x, batch_size):
    torch.testing.assert_close(ensemble.predict_proba(x, batch_size=batch_size), ensemble.predict_proba(x))


def test_every_kind_of_input_gives_the_same(ensemble, x):
    expected = ensemble.predict_proba(x)
    labels = torch.zeros(50)
    for kind in (
        x.numpy(),
        x.double(),
        TensorDataset(x, labels),
        TensorDataset(x),
        DataLoader(TensorDataset(x, labels), 8),
    ):
        torch.testing.assert_close(ensemble.predict_proba(kind), expected)
    plain = DataLoader(x, batch_size=8)  # batches that are tensors, not tuples
    torch.testing.assert_close(ensemble.predict_proba(plain), expected)
    assert ensemble.predict_proba(x[:0]).shape == (3, 0, 4)
    with pytest.raises(TypeError, match=r"x must be a tensor, an array, .* DataLoader, got int"):
        ensemble.predict_proba(3)


def test_lists_frames_image_sets_and_pairs_are_inputs(ensemble, x, blobs):
    pandas = pytest.importorskip("pandas")
    expected = ensemble.predict_proba(x)
    labels = torch.zeros(50)
    for kind in (x.tolist(), pandas.DataFrame(x.numpy()), (x, labels), [x.tolist(), labels.tolist()], list(x)):
        torch.testing.assert_close(ensemble.predict_proba(kind), expected)
    two = x[:2].tolist()  # rows, not a pair
    torch.testing.assert_close(ensemble.predict_proba(two), expected[:, :2])
    pixels = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    flat = ge.Ensemble.from_members([nn.Sequential(nn.Flatten(), nn.Linear(4, 2))])
    images = ge.data.ImageSet(pixels, np.array([0, 1]), "tiny")
    torch.testing.assert_close(flat.uncertainty(images).total, flat.uncertainty(pixels).total)
    with pytest.raises(TypeError, match="x must hold numbers"):
        ensemble.predict_proba(pandas.DataFrame({"a": ["one", "two"]}))


def test_an_array_on_disk_is_read_batch_by_batch(ensemble, x, tmp_path):
    np.save(tmp_path / "x.npy", x.numpy())
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    torch.testing.assert_close(ensemble.predict_proba(array, batch_size=7), ensemble.predict_proba(x))


@pytest.mark.parametrize("kind", [lambda x: x, lambda x: x.numpy(), lambda x: DataLoader(x, batch_size=8)])
def test_an_input_that_is_not_finite_or_too_large_is_named(ensemble, x, kind):
    for value in (float("nan"), float("-inf")):
        bad = x.clone()
        bad[17, 1] = bad[30, 0] = value
        with pytest.raises(ValueError, match="x holds NaN or infinity, first in input 17;"):
            ensemble.uncertainty(kind(bad))
    bad = x.double()
    bad[18, 1] = -1e300
    with pytest.raises(ValueError, match=r"x .*range of float32, .* input 18, .*1e\+300; scale"):
        ensemble.predict_proba(kind(bad))
    scaled = ge.Ensemble(ensemble, normalize=(0.0, 1e300))
    assert scaled.predict_proba(kind(bad)).isfinite().all()
    double = ge.Ensemble([nn.Linear(3, 2, dtype=torch.float64)])
    assert double.predict_proba(kind(bad)).isfinite().all()


@pytest.mark.parametrize("last", [lambda z: z[:, :0], lambda z: z.flatten(), lambda z: z[None]])
def test_what_cannot_be_logits_has_no_uncertainty(x, last):
    class Last(nn.Linear):
        def forward(self, x):
            return last(super().forward(x))

    with pytest.raises(ValueError, match=r"members must return logits \(n, classes\)"):
        ge.Ensemble.from_members([Last(3, 4), Last(3, 4)]).uncertainty(x)


def test_a_member_that_ends_in_a_softmax_is_noticed(x):
    ensemble = ge.Ensemble.from_members([nn.Sequential(nn.Linear(3, 4), nn.Softmax(dim=1))])
    with pytest.warns(UserWarning, match="member returns probabilities .*leave out the softmax"):
        ensemble.predict_proba(x)


def test_inputs_are_held_against_those_of_training(quick, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 1, 4, 4)).astype(np.uint8)

    def make_model():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    y = np.arange(40) % 2
    trained = ge.fit(make_model, (pixels, y), size=2, method="deep", **quick)
    trained.save(tmp_path / "saved")
    for ensemble in (trained, trained[:1], ge.Ensemble.load(tmp_path / "saved", make_model)):
        expected = ensemble.predict_proba(pixels)
        assert torch.equal(ensemble.predict_proba(pixels.astype(np.int64)), expected)
        torch.testing.assert_close(ensemble.predict_proba(pixels / 255), expected)
        for wrong in (pixels.astype(np.float32), pixels.reshape(40, 16), pixels.astype(np.int64) + 1):
            for given in (wrong, torch.from_numpy(wrong), TensorDataset(torch.from_numpy(wrong))):
                with pytest.raises(ValueError, match=r"trained on uint8 of shape \(1, 4, 4\)"):
                    ensemble.uncertainty(given)
        with pytest.raises(ValueError, match=r"trained on uint8 of shape \(1, 4, 4\)"):
            ensemble.export_torch(tmp_path / "graph.pt2", pixels.astype(np.float32))
    trained.inputs = None
    assert trained.predict_proba(pixels.astype(np.float32)).shape == (2, 40, 2)


def test_the_scale_of_float_images_is_remembered(quick, tmp_path):
    x = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0))

    def make_model():
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    ge.fit(make_model, (x, torch.arange(40) % 2), size=1, method="deep", run_dir=tmp_path / "run", **quick)
    ensemble = ge.load_run(tmp_path / "run", make_model).ensemble
    assert ensemble.inputs.range == (x.min().item(), x.max().item())
    ensemble.predict_proba(5 * torch.randn(10, 1, 4, 4))  # out of distribution, which is no mistake
    with pytest.raises(ValueError, match=r"from \d.*: divide them by 255"):
        ensemble.predict_proba((255 * x).round())


def test_a_shuffling_loader_is_read_once_so_that_members_see_the_same_order(ensemble, x):
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))
    probs = ensemble.predict_proba(loader)
    expected = ensemble.predict_proba(x)
    order = [(expected[0] - row).abs().sum(dim=1).argmin().item() for row in probs[0]]
    assert sorted(order) == list(range(50))
    torch.testing.assert_close(probs, expected[:, order])


def test_normalisation_is_part_of_prediction(ensemble):
    images = torch.randint(0, 256, (20, 3), dtype=torch.uint8)
    normalised = ge.Ensemble.from_members(list(ensemble), normalize=(0.5, 0.25))
    expected = ensemble.predict_proba((images.float() / 255 - 0.5) / 0.25)
    torch.testing.assert_close(normalised.predict_proba(images), expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_normalisation_of_other_channels_is_refused(channels):
    """Grey images would become images of two channels, and the network might take them."""
    flat = ge.Ensemble.from_members([nn.Sequential(nn.Flatten(), nn.Linear(8, 2))], normalize=((0.5, 0.5), (1.0, 1.0)))
    with pytest.raises(ValueError, match=rf"normalize has 2 channels, .* \({channels}, 2, 2\) have {channels}"):
        flat.predict_proba(torch.zeros(4, channels, 2, 2))


class Sum(nn.Module):
    def forward(self, a, b):
        return a + b


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_entries_of_other_lengths_are_refused(count):
    a, b = torch.zeros(4, 2), torch.zeros(count, 2)
    for x in ({"a": a, "b": b}, (a, b), {"a": a, "b": torch.tensor(count)}):
        with pytest.raises(ValueError, match=r"entries of x must have a row for each input; got .*\(4, 2\), .*\("):
            ge.Ensemble.from_members([Sum()]).predict_proba(x)


def test_indexing(ensemble, x):
    assert len(ensemble) == 3
    assert isinstance(ensemble[1], nn.Module)
    assert ensemble[-1] is ensemble[2]
    part = ensemble[:2]
    assert isinstance(part, ge.Ensemble)
    torch.testing.assert_close(part.predict_proba(x), ensemble.predict_proba(x)[:2])
    with pytest.raises(IndexError):
        ensemble[3]
    with pytest.raises(ValueError, match="at least one member"):
        ensemble[3:]
    assert repr(ensemble) == "Ensemble(3 x Sequential on cpu)"


def test_uncertainty_splits_into_its_parts(ensemble, x):
    uncertainty = ensemble.uncertainty(x)
    probs = ensemble.predict_proba(x)
    assert torch.equal(uncertainty.epistemic, ge.metrics.mutual_information(probs))
    assert torch.equal(uncertainty.aleatoric, ge.metrics.expected_entropy(probs))
    torch.testing.assert_close(uncertainty.total, uncertainty.epistemic + uncertainty.aleatoric)


def test_gradients_of_the_caller_are_left_alone(ensemble, x):
    probs = ensemble.predict_proba(x.requires_grad_())
    assert not probs.requires_grad
    (probs * torch.ones(1, requires_grad=True)).sum().backward()  # a plain tensor: it may take part in gradients


def test_saved_and_loaded_predicts_bit_for_bit_the_same(ensemble, x, tmp_path):
    ensemble = ge.Ensemble(ensemble, normalize=((0.1, 0.2, 0.3), (1.0, 2.0, 3.0)))
    ensemble.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", network)
    assert loaded.normalize == ensemble.normalize
    assert torch.equal(loaded.predict_proba(x), ensemble.predict_proba(x))
    # Once loaded it needs the folder no more, and can be trained on.
    for file in (tmp_path / "saved").rglob("*.safetensors"):
        file.unlink()
    assert torch.equal(loaded.predict_proba(x), ensemble.predict_proba(x))
    loaded[0](x).sum().backward()
    torch.optim.SGD(loaded[0].parameters(), 0.1).step()
    assert not torch.equal(loaded.predict_proba(x)[0], ensemble.predict_proba(x)[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).relu())


def test_tied_parameters_stay_tied(x, tmp_path):
    tied = ge.Ensemble.from_members([Tied(), Tied()])
    tied.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", Tied)
    assert loaded[0].one.weight is loaded[0].two.weight
    assert torch.equal(loaded.predict_proba(x), tied.predict_proba(x))


def test_saving_never_overwrites(ensemble, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "notes.txt").write_text("mine")
    with pytest.raises(FolderError, match=r"saved .*not an empty folder.* Name another"):
        ensemble.save(tmp_path / "saved")
    assert [p.name for p in (tmp_path / "saved").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    ensemble.save(tmp_path / "empty")
    assert len(ge.Ensemble.load(tmp_path / "empty", network)) == 3


def test_saving_touches_nothing_but_its_folder(ensemble, tmp_path, monkeypatch):
    (tmp_path / "out.tmp").mkdir()
    (tmp_path / "out.tmp" / "thesis.tex").write_text("mine")
    ensemble.save(tmp_path / "new" / "out")
    ensemble.save(tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["new", "out", "out.tmp"]
    assert (tmp_path / "out.tmp" / "thesis.tex").read_text() == "mine"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    ensemble.save(".")
    assert len(ge.Ensemble.load(tmp_path / "here", network)) == 3


def test_a_save_that_fails_leaves_nothing(ensemble, tmp_path):
    """As on a full disk: files cannot become as large as the last of them is."""
    ensemble.save(tmp_path / "whole")
    sizes = [file.stat().st_size for file in (tmp_path / "whole").rglob("*.*") if file.is_file()]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes) - 1, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ensemble.save(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


def test_models_that_work_in_place_spoil_nothing(x):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            x -= 0.5
            return self.linear(x)

    member = InPlace()
    before = x.clone()
    probs = ge.Ensemble.from_members([member, member]).predict_proba(x)
    assert torch.equal(probs[0], probs[1])
    assert torch.equal(x, before)


def test_what_cannot_be_loaded_says_why(ensemble, tmp_path):
    ensemble.save(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"make_model .*: '0\.weight' .*\(7, 3\) in the model .*\(6, 3\) in the file"):
        ge.Ensemble.load(tmp_path / "saved", lambda: nn.Sequential(nn.Linear(3, 7)))
    with pytest.raises(FolderError, match="holds no saved ensemble"):
        ge.Ensemble.load(tmp_path, network)


def test_a_folder_of_a_later_format_is_refused(ensemble, tmp_path):
    ensemble.save(tmp_path / "saved")
    content = storage.read_json(tmp_path / "saved" / "ensemble.json")
    storage.write_json(tmp_path / "saved" / "ensemble.json", {**content, "format": 3})
    with pytest.raises(FolderError, match="has format 3; this version reads formats 1 to 2"):
        ge.Ensemble.load(tmp_path / "saved", network)


def test_a_model_in_double_precision_predicts_in_it(x):
    double = ge.Ensemble.from_members([network().double()])
    assert double.predict_proba(x).dtype == torch.float64
    np.testing.assert_allclose(double.predict_proba(x).sum(dim=2), 1)


def test_named_columns_have_to_be_those_of_training_in_that_order(tmp_path):
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(80, 2))
    y, frame = (x[:, 0] > 0).astype(int), pandas.DataFrame(x, columns=["age", "height"])
    options = {"size": 2, "recipe": ge.Recipe(epochs=2), "progress": False, "device": "cpu"}
    trained = ge.fit(lambda: nn.Linear(2, 2), (frame, y), **options)
    trained.save(tmp_path / "saved")
    expected, swapped = trained.predict_proba(x), frame[["height", "age"]]
    table = ge.data.TableSet(x[:, ::-1].copy(), y, "swapped", ("no", "yes"), columns=("height", "age"))
    for ensemble in (trained, trained[:1], ge.Ensemble.load(tmp_path / "saved", lambda: nn.Linear(2, 2))):
        for good in (frame, (frame, y), pandas.DataFrame(x), table.rows[:, ::-1].copy()):
            assert torch.equal(ensemble.predict_proba(good), expected[: len(ensemble)])
        for bad in (swapped, (swapped, y), table):
            with pytest.raises(ValueError, match=r"columns of x .* in another order; give \['age', 'height'\]"):
                ensemble.predict_proba(bad)
        with pytest.raises(ValueError, match="'age' is missing"):
            ensemble.predict_proba(frame.rename(columns={"age": "weight"}))
    with pytest.raises(ValueError, match="columns of validation"):
        ge.fit(lambda: nn.Linear(2, 2), (frame, y), **options, validation=(swapped, y))
    for sets in (((swapped, y), {"far": frame}), ((frame, y), {"far": swapped})):
        with pytest.raises(ValueError, match="in another order"):
            ge.compare({"mine": trained}, *sets)
    unnamed = ge.fit(lambda: nn.Linear(2, 2), (x, y), **options)
    assert torch.equal(unnamed.predict_proba(swapped), unnamed.predict_proba(swapped.to_numpy()))


def test_a_member_in_train_mode_is_told_of(ensemble):
    x = torch.randn(8, 3)
    ensemble[1].train()
    with pytest.warns(UserWarning, match="member 2 is in train mode"):
        ensemble.predict_proba(x)
