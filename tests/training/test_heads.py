"""Heads on a shared backbone against the same members with a frozen backbone each, and how often it runs."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.storage import FolderError


class Backbone(nn.Module):
    """BatchNorm and dropout, which must stay in eval mode; it counts the rows that it sees."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5))
        nn.init.normal_(self.layers[1].running_mean)
        self.rows = 0

    def forward(self, x):
        self.rows += len(x)
        return self.layers(x)


class Frozen(nn.Module):
    """The usual way: every member has the backbone, whose parameters do not learn."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.head = copy.deepcopy(backbone).requires_grad_(False), make_head()

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        return self.head(self.backbone(x))


def make_head():
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def shifted(x):
    return x + 0.5


@pytest.fixture
def backbone():
    torch.manual_seed(3)
    return Backbone()


@pytest.mark.parametrize("schedule", ["sequential", "concurrent"])
@pytest.mark.parametrize("augment", [None, shifted])
@pytest.mark.parametrize("kind", ["arrays", "loader"])
def test_heads_are_what_members_with_a_frozen_backbone_each_become(blobs, backbone, schedule, augment, kind):
    x, y = blobs[0].double(), blobs[1]
    data, validation = (x, y), 0.2
    if kind == "loader":
        validation = (x[::3], y[::3])
        data = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
    recipe = ge.Recipe(epochs=3, batch_size=16, augment=augment, normalize=(0.5, 2.0))
    options = {"size": 3, "strength": 10.0, "recipe": recipe, "validation": validation, "schedule": schedule}
    options |= {"weighting": ge.weighting.Gaussian.from_data(x), "progress": False, "device": "cpu"}
    theirs = ge.fit(lambda: Frozen(backbone).double(), data, **options)
    make_model = ge.models.heads(backbone.double(), lambda: make_head().double())
    ours = ge.fit(make_model, data, **options)
    for one, other in zip(ours, theirs, strict=True):
        assert list(one.state_dict()) == list(other.state_dict())
        for name, value in other.state_dict().items():
            torch.testing.assert_close(one.state_dict()[name], value, rtol=1e-7, atol=1e-9, msg=name)
    torch.testing.assert_close(ours.predict_proba(x), theirs.predict_proba(x), rtol=1e-7, atol=1e-9)
    assert ours.inputs == theirs.inputs
    assert ours.normalize == theirs.normalize


def rows_of(make_model, data, **options):
    before = make_model.backbone.rows
    ensemble = ge.fit(make_model, data, progress=False, device="cpu", **options)
    return ensemble, make_model.backbone.rows - before


def test_examples_and_samples_pass_the_backbone_once_for_all_members(blobs, backbone):
    make_model = ge.models.heads(backbone, make_head)
    recipe = ge.Recipe(epochs=4, batch_size=16)
    _, alone = rows_of(make_model, blobs, size=1, recipe=recipe)
    five, together = rows_of(make_model, blobs, size=5, recipe=recipe)
    examples, samples = 60, 54  # as many samples as there are to learn from
    assert examples + samples <= alone <= together <= examples + samples + 20  # a few try the model
    assert backbone.rows == 0  # a copy was taken
    before = make_model.backbone.rows
    five.predict_proba(blobs[0], batch_size=20)
    assert make_model.backbone.rows - before == 60


def test_with_augmentation_it_runs_once_a_member_batch(blobs, backbone):
    make_model = ge.models.heads(backbone, make_head)
    _, rows = rows_of(make_model, blobs, size=3, recipe=ge.Recipe(epochs=4, batch_size=16, augment=shifted))
    passes = 3 * 4 * 54 + 6 + 54  # examples of every member and epoch, held-out ones and samples of p* once
    assert passes <= rows <= passes + 20


def test_it_is_stored_once_and_shared_when_loaded(blobs, backbone, tmp_path):
    make_model = ge.models.heads(backbone, make_head)
    options = {"size": 3, "recipe": ge.Recipe(epochs=2), "progress": False, "device": "cpu"}
    ensemble = ge.fit(make_model, blobs, run_dir=tmp_path / "run", **options)
    ge.fit(make_model, blobs, run_dir=tmp_path / "run", **{**options, "size": 4})  # a folder that is opened again
    ensemble.save(tmp_path / "saved")
    for folder, count in (("run", 4), ("saved", 3)):
        sizes = [file.stat().st_size for file in sorted((tmp_path / folder).glob("members/*/weights.safetensors"))]
        assert len(sizes) == count
        whole = sum(value.nbytes for value in make_model.backbone.state_dict().values())
        assert all(size < sizes[0] - whole / 2 for size in sizes[1:])
    own = copy.deepcopy(make_model.backbone.state_dict())
    for loaded in (
        ge.Ensemble.load(tmp_path / "saved", make_model),
        ge.load_run(tmp_path / "run", make_model).ensemble[:3],
    ):
        assert all(member.backbone is loaded[0].backbone is not make_model.backbone for member in loaded)
        assert torch.equal(loaded.predict_proba(blobs[0]), ensemble.predict_proba(blobs[0]))
    other = ge.models.heads(Backbone(), make_head)
    before = copy.deepcopy(other.backbone.state_dict())
    said = ge.Ensemble.load(tmp_path / "saved", other).predict_proba(blobs[0])
    assert torch.equal(said, ensemble.predict_proba(blobs[0]))  # the folder's backbone, not the factory's
    assert all(torch.equal(before[name], value) for name, value in other.backbone.state_dict().items())
    assert all(torch.equal(own[name], value) for name, value in make_model.backbone.state_dict().items())
    with pytest.raises(FolderError, match="backbone"):
        ge.fit(other, blobs, run_dir=tmp_path / "run", **{**options, "size": 5})


def test_an_interrupted_run_goes_on_as_if_it_had_not_been(blobs, backbone, tmp_path):
    make_model = ge.models.heads(backbone, make_head)
    options = {"size": 2, "recipe": ge.Recipe(epochs=3), "progress": False, "device": "cpu"}
    whole = ge.fit(make_model, blobs, **options)
    seen = []

    def stop(epoch):
        seen.append(epoch.model(blobs[0]).shape)  # callbacks are given whole members
        if (epoch.member, epoch.epoch) == (2, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ge.fit(make_model, blobs, run_dir=tmp_path, callbacks=[stop], **options)
    assert set(seen) == {(60, 2)}
    resumed = ge.fit(make_model, blobs, run_dir=tmp_path, **options)
    assert torch.equal(resumed.predict_proba(blobs[0]), whole.predict_proba(blobs[0]))


def test_earlier_heads_count_as_members(blobs, backbone):
    make_model = ge.models.heads(backbone, make_head)
    options = {"recipe": ge.Recipe(epochs=2), "progress": False, "device": "cpu", "strength": 10.0}
    two = ge.fit(make_model, blobs, size=2, **options)
    three = ge.fit(make_model, blobs, size=3, earlier=two, **options)
    assert torch.equal(three.predict_proba(blobs[0])[:2], two.predict_proba(blobs[0]))
    assert three[2].backbone is two[0].backbone
    with pytest.raises(ValueError, match="earlier"):
        ge.fit(make_model, blobs, size=3, earlier=ge.Ensemble.from_members([Frozen(backbone)]), **options)


@pytest.mark.parametrize("method", ["snapshot", "batch", "dropout"])
def test_methods_that_change_networks_are_refused(blobs, backbone, method):
    with pytest.raises(ValueError, match="heads"):
        ge.fit(ge.models.heads(backbone, make_head), blobs, size=2, method=method, progress=False)


def test_bad_arguments_are_named(blobs, backbone):
    with pytest.raises(TypeError, match="backbone"):
        ge.models.heads(3, make_head)
    for wrong in (3, make_head()):
        with pytest.raises(TypeError, match="make_head"):
            ge.models.heads(backbone, wrong)
    with pytest.raises(TypeError, match="make_head"):
        ge.models.heads(backbone, lambda: 3)()
    head = make_head()
    with pytest.raises(ValueError, match="new model at every call"):
        ge.fit(ge.models.heads(backbone, lambda: head), blobs, size=2, progress=False)
    with pytest.raises(ValueError, match="backbone must return a tensor"):
        ge.fit(ge.models.heads(nn.LSTM(2, 6), make_head), blobs, size=2, progress=False)
