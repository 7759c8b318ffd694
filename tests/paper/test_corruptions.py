"""Corruptions that a library makes where CIFAR-10-C is missing: a stand-in for it, and itself where it is installed."""

import sys
import types

import numpy as np
import pytest

from greedy_ensembles.data import SETS
from greedy_ensembles.paper import images as module
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.images import GENERATED, Sets, generated, library_version, missing, stand_in
from greedy_ensembles.paper.study import Case, Protocol


@pytest.fixture
def library(monkeypatch):
    """A library whose corruptions are noise of its severity's strength, from numpy's global generator."""

    def corrupt(image, severity, corruption_name, **seed):
        assert image.shape == (32, 32, 3)
        assert bool(seed) == (corruption_name in ("glass_blur", "impulse_noise"))
        noise = np.random.randint(0, 10 * severity, image.shape)  # noqa: NPY002
        return np.clip(image.astype(float) + noise, 0, 255)

    made = types.ModuleType("imagecorruptions")
    made.corrupt = corrupt
    monkeypatch.setattr(module, "library_version", lambda: "1.2.3")
    monkeypatch.setitem(sys.modules, "imagecorruptions", made)


CLEAN = stand_in("cifar10", "test", 4)


def test_every_kind_at_every_severity_once(library, tmp_path, monkeypatch):
    np.random.seed(7)  # noqa: NPY002
    expected = np.random.random(), np.random.random()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    assert np.random.random() == expected[0]  # noqa: NPY002
    found = dict(generated(CLEAN, tmp_path))
    assert np.random.random() == expected[1]  # noqa: NPY002 -- left as it was
    assert len(found) == 19 * 5
    assert list(found) == [f"imagecorruptions {kind}/{n}" for kind in SETS["cifar10c"].counts for n in range(1, 6)]
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)  # so none can be made again
    again = dict(generated(CLEAN, tmp_path))
    for name, images in found.items():
        severity = int(name[-1])
        change = images.images.astype(int) - CLEAN.images
        assert change.min() >= 0
        assert 10 * severity - 10 <= change.max() < 10 * severity  # those of this severity, images as they lay
        assert np.array_equal(images.labels, CLEAN.labels)
        assert "not CIFAR-10-C" in images.note
        assert np.array_equal(images.images, again[name].images)


def test_the_same_bytes_every_time(library, tmp_path):
    files = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        next(generated(CLEAN, folder))
        files.append((folder / GENERATED / "brightness.npy").read_bytes())
        assert (folder / GENERATED / "made-by.txt").read_text().startswith("imagecorruptions-imaug 1.2.3, numpy ")
    assert files[0] == files[1]


def test_what_breaks_off_leaves_nothing(library, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        next(generated(CLEAN, tmp_path))
    assert not list((tmp_path / GENERATED).iterdir())


def test_studies_take_them_where_the_set_is_missing(library, tmp_path, monkeypatch):
    sets = Sets(Protocol(), tmp_path)
    monkeypatch.setattr(sets, "test", lambda _: CLEAN)
    name, images = next(sets.corruptions())
    assert name == "imagecorruptions brightness/1"
    assert len(images) == 4
    case = Case("cifar10", "VGG16BN", 11)
    assert missing(case, STUDIES["robustness"], tmp_path) == ["cifar10"]
    monkeypatch.setattr(module, "library_version", lambda: None)
    assert missing(case, STUDIES["robustness"], tmp_path) == ["cifar10", "cifar10c"]


def test_without_the_library_there_is_none(monkeypatch):
    monkeypatch.setattr(module, "_PACKAGE", "no-such-package")
    assert library_version() is None


@pytest.mark.skipif(library_version() is None, reason="an extra is not installed: greedy-ensembles[corruptions]")
@pytest.mark.filterwarnings("ignore")  # of the library and what it brings
def test_the_library_itself(tmp_path):
    found, again = (dict(generated(stand_in("cifar10", "test", 2), tmp_path / part)) for part in "ab")
    assert len(found) == 19 * 5
    for name, images in found.items():
        assert images.images.shape == (2, 3, 32, 32)
        assert images.images.dtype == np.uint8
        assert np.array_equal(images.images, again[name].images), name
    mild, severe = (found[f"imagecorruptions gaussian_noise/{severity}"].images for severity in (1, 5))
    clean = stand_in("cifar10", "test", 2).images.astype(int)
    assert np.abs(mild - clean).mean() < np.abs(severe - clean).mean()
