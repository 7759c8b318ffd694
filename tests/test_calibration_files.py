"""What a calibration is kept in: read as it was written, and refused where it never was."""

import math
import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from tests.test_flags import drawn_labels, linear_members
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.flags import Calibration, ImageForm, fingerprint, read_calibration


def test_a_calibration_stays_with_the_ensemble(tmp_path):
    ensemble = linear_members()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    ensemble.calibrate(x, drawn_labels(ensemble.predict_proba(x).mean(dim=0), generator), 0.2, score="total")
    ensemble.save(tmp_path / "saved")
    for again in (ge.Ensemble.load(tmp_path / "saved", lambda: nn.Linear(4, 3)), pickle.loads(pickle.dumps(ensemble))):
        assert again.calibration == ensemble.calibration
        assert torch.equal(again.flag(x), ensemble.flag(x))
        assert torch.equal(again.predict_set(x), ensemble.predict_set(x))
        assert torch.equal(again.predict_calibrated(x), ensemble.predict_calibrated(x))
    assert ensemble.flag(x).any()
    ensemble.export_torch(tmp_path / "graph.pt2", x)
    outputs = torch.export.load(tmp_path / "graph.pt2").module()(x)
    assert torch.equal(outputs["flag"], ensemble.flag(x))
    torch.testing.assert_close(outputs["probabilities"], ensemble.predict_calibrated(x), rtol=0, atol=1e-6)


def test_a_run_folder_keeps_it_until_there_are_more_members(blobs, quick, make_model, tmp_path):
    train = partial(ge.fit, make_model, blobs, method="deep", run_dir=tmp_path / "run", **quick)
    ensemble = train(size=2)
    assert ensemble.calibration is None
    found = ensemble.calibrate(blobs[0], blobs[1])
    weights = fingerprint([member["files"]["weights"] for member in ge.load_run(tmp_path / "run", make_model).members])
    found.write(tmp_path / "run", weights)
    assert ge.load_run(tmp_path / "run", make_model).ensemble.calibration == found
    assert train(size=2).calibration == found
    assert train(size=3).calibration is None


WRITTEN = """{
  "format": 1,
  "threshold": 0.25,
  "fpr": 0.05,
  "inputs": 45,
  "source": "mnist, held out",
  "weights": "a checksum",
  "form": {"shape": [1, 28, 28], "classes": ["0", "1"]},
  "sha256": "5c8129468154f1d42ea0f8fc95dcaee551f10dae2c30be4cc500952d1764077b"
}"""  # as version 0.1 did


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    (tmp_path / "calibration.json").write_text(WRITTEN)
    found = read_calibration(tmp_path, "a checksum")
    assert found == Calibration(0.25, 0.05, 45, source="mnist, held out", form=ImageForm((1, 28, 28), ("0", "1")))
    assert read_calibration(tmp_path, "another") is None
    (tmp_path / "copy").mkdir()
    assert read_calibration(tmp_path / "copy", "a checksum") is None
    more = replace(found, score="total", temperature=1.5, of_labels=(0.1,) * 45)
    more.write(tmp_path / "copy", "a checksum")
    assert read_calibration(tmp_path / "copy", "a checksum") == more


HUGE = {"form": {"shape": [3, 10**6, 10**6], "classes": None}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": "low"}, r"calibration\.json is damaged"),
        ({"form": None}, "damaged"),
        ({"form": {"shape": [1], "classes": None}}, "damaged"),
        ({"extra": 1}, "damaged"),
        (HUGE, r"calibration\.json is damaged.*ge\.limits\(side="),
        ({"form": {"shape": [3, math.inf, math.inf], "classes": None}}, "damaged"),
        ({"of_labels": [10**400]}, "damaged"),
        ({"format": 3}, "calibrate anew"),
        ({"score": "mi"}, "damaged"),
        ({"temperature": 0.0}, "damaged"),
        ({"of_labels": [0.5]}, "damaged"),
    ],
)
def test_files_that_were_never_written_here_are_refused(tmp_path, change, message):
    file = tmp_path / "calibration.json"
    file.write_text(WRITTEN)
    ge.storage.write_json(file, {**ge.storage.read_json(file), **change})
    with pytest.raises(ge.FolderError, match=message):
        read_calibration(tmp_path, "a checksum")


def test_an_empty_file_is_no_calibration(tmp_path):
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(ge.FolderError, match="damaged"):
        read_calibration(tmp_path, "a checksum")


def test_forms_that_no_picture_could_be_given_are_refused():
    cases = {(2, 8, 8): "channels", (3, 8, 4): "square", (3, 0, 0): "1 to", (1, 9999, 9999): "1 to"}
    for shape, message in cases.items():
        with pytest.raises(ValueError, match=message):
            ImageForm(shape)
    assert ImageForm.of_images(np.zeros((2, 3, 8, 4), np.uint8)) == ImageForm(None)
