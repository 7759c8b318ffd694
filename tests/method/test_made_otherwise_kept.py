"""Members that are made otherwise, in folders: saved, resumed, extended, and what they refuse."""

import itertools
import shutil

import numpy as np
import pytest
import torch
from tests.method.test_made_otherwise import data, fit, mlp, plain_mlp, resumed
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.method import Snapshot


@pytest.mark.parametrize("method", ["snapshot", "hyper", "batch", "dropout"])
def test_they_are_saved_loaded_and_resumed(method, tmp_path):
    recipe = {"epochs": 6}
    whole = fit(method=method, recipe=recipe)
    x = data()[0]
    expected = whole.predict_proba(x)
    went_on = resumed(tmp_path / "run", method, recipe)
    assert torch.equal(went_on.predict_proba(x), expected)
    assert torch.equal(ge.load_run(tmp_path / "run", mlp).ensemble.predict_proba(x), expected)
    whole.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", mlp)
    assert torch.equal(loaded.predict_proba(x), expected)
    loaded.save(tmp_path / "again")
    files = [tmp_path / name / "members/02/weights.safetensors" for name in ("saved", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()  # what is shared is so in memory, too
    assert len(whole) == 3
    assert all(isinstance(member, nn.Module) for member in whole)
    assert not torch.allclose(expected[0], expected[1])


@pytest.mark.parametrize("method", ["snapshot", "batch", "dropout"])
def test_a_kill_between_two_members_of_one_network_loses_none(method, tmp_path):
    """The checkpoint of the network outlives the first members that are written."""
    run = tmp_path / "run"

    def copy_last(event):
        if event.epoch == event.epochs:
            shutil.copytree(run, tmp_path / "killed")

    expected = fit(method=method, run_dir=run, callbacks=[copy_last]).predict_proba(data()[0])
    for number in (1, 2):
        shutil.copytree(run / f"members/0{number}", tmp_path / f"killed/members/0{number}")
    went_on = fit(method=method, run_dir=tmp_path / "killed")
    assert len(went_on) == 3
    assert torch.equal(went_on.predict_proba(data()[0]), expected)


@pytest.mark.parametrize("method", ["batch", "dropout"])
def test_what_members_share_is_stored_once(method, tmp_path):
    ensemble = fit(method=method)
    ensemble.save(tmp_path / "saved")
    fit(method=method, run_dir=tmp_path / "run")
    for folder in (tmp_path / "saved", tmp_path / "run"):
        first, second = ((folder / f"members/0{k}/weights.safetensors").read_bytes() for k in (1, 2))
        shared = ensemble[0].state_dict()["0.weight" if method == "dropout" else "0.layer.weight"]
        content = shared.numpy().tobytes()
        assert content in first
        assert content not in second
    swapped = tmp_path / "saved/members/01/weights.safetensors"
    swapped.write_bytes((tmp_path / "saved/members/02/weights.safetensors").read_bytes())
    with pytest.raises(ValueError, match="members/01"):
        ge.Ensemble.load(tmp_path / "saved", mlp)


@pytest.mark.parametrize("method", ["snapshot", "batch", "dropout"])
def test_one_network_has_no_others_to_train_with_or_after(method, tmp_path):
    with pytest.raises(ValueError, match="schedule='concurrent'"):
        fit(method=method, schedule="concurrent")
    with pytest.raises(ValueError, match="earlier"):
        fit(method=method, earlier=ge.Ensemble.from_members([mlp()]))
    fit(method=method, run_dir=tmp_path)
    with pytest.raises(ge.FolderError, match=r"3 members .*one training; none .*size=4"):
        fit(method=method, size=4, run_dir=tmp_path)


def test_hyper_members_train_one_after_another_and_can_be_added(tmp_path):
    with pytest.raises(ValueError, match="schedule='concurrent'"):
        fit(method="hyper", schedule="concurrent")
    fit(method="hyper", size=2, run_dir=tmp_path)
    grown, whole = fit(method="hyper", size=3, run_dir=tmp_path), fit(method="hyper", size=3)
    assert torch.equal(grown.predict_proba(data()[0]), whole.predict_proba(data()[0]))


@pytest.mark.parametrize(
    ("method", "make_model", "recipe", "named"),
    [
        ("batch", lambda: nn.Sequential(nn.Bilinear(1, 1, 2)), {}, "nn.Linear or nn.Conv2d"),
        ("batch", lambda: nn.Sequential(plain_mlp(), nn.Softmax(dim=1)), {}, "softmax"),
        ("dropout", plain_mlp, {}, "nn.Dropout"),
        ("dropout", lambda: mlp(0.0), {}, "nn.Dropout"),
        ("snapshot", mlp, {"epochs": 2}, "epochs"),
        ("snapshot", mlp, {"patience": 2}, "patience"),
        ("snapshot", mlp, {"schedule": "constant"}, "schedule"),
        ("hyper", mlp, {"optimizer": torch.optim.SGD}, "optimizer"),
        ("hyper", mlp, {"loss": cross_entropy}, "label_smoothing"),
    ],
)
def test_what_they_cannot_train_is_refused(method, make_model, recipe, named):
    with pytest.raises(ValueError, match=named):
        fit(make_model, method=method, recipe=recipe)


def test_cycles_cover_all_epochs():
    for epochs, size in itertools.product(range(1, 12), range(1, 6)):
        method = Snapshot()
        method.size = size
        if epochs >= size:
            lengths = np.diff([0, *method.kept_epochs(epochs)])
            assert lengths.sum() == epochs
            assert lengths.max() - lengths.min() <= 1
