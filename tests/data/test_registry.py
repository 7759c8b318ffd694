import gzip
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

import greedy_ensembles as ge


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("GREEDY_ENSEMBLES_DATA", str(tmp_path))
    return tmp_path


def test_where_data_lives(tmp_path, monkeypatch):
    monkeypatch.setenv("GREEDY_ENSEMBLES_DATA", "/somewhere")
    assert ge.data.data_root() == Path("/somewhere")
    assert ge.data.data_root(tmp_path) == tmp_path
    monkeypatch.delenv("GREEDY_ENSEMBLES_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    assert ge.data.data_root() == tmp_path / "greedy-ensembles" / "data"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ge.data.data_root().parts[-4:] == ("Library", "Caches", "greedy-ensembles", "data")


def test_names_and_splits_are_checked(root):
    with pytest.raises(ValueError, match="did you mean 'mnist'"):
        ge.data.load("mnits")
    with pytest.raises(ValueError, match="split of mnist must be one of 'train', 'test'"):
        ge.data.load("mnist", "val")
    with pytest.raises(ValueError, match="severity"):
        ge.data.load("cifar10c", "fog/6")


def test_a_set_that_is_not_there_says_how_to_get_it(root):
    with pytest.raises(FileNotFoundError, match=r"mnist \(train\) is not in .*data download mnist"):
        ge.data.load("mnist", "train")


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
def test_mnist(root, random_bytes, write_idx, end, split, prefix):
    pixels, targets = random_bytes(12, 28, 28), np.arange(12, dtype=np.uint8) % 10
    for kind, array in (("images-idx3", pixels), ("labels-idx1", targets)):
        path = write_idx(root / "mnist" / f"{prefix}-{kind}-ubyte", array)
        if end:
            path.with_name(path.name + end).write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    found = ge.data.load("mnist", split)
    assert (found.images[:, 0] == pixels).all()
    assert (found.labels == targets).all()
    assert found.name == "mnist"
    assert found.classes == tuple("0123456789")
    assert found.source.endswith(f"{prefix}-images-idx3-ubyte{end}")
    assert ("partial: 12 of " in found.note, "not the published bytes" in found.note) == (True, end == ".gz")
    assert ge.data.load("mnist", split, size=32, channels=3).images.shape == (12, 3, 32, 32)


def test_the_whole_number_of_images_needs_no_note(root, write_idx):
    write_idx(root / "fashion_mnist" / "t10k-images-idx3-ubyte", np.zeros((10_000, 2, 2), np.uint8))
    write_idx(root / "fashion_mnist" / "t10k-labels-idx1-ubyte", np.zeros(10_000, np.uint8))
    assert ge.data.load("fashion_mnist").note == ""


def test_both_versions_of_cifar10_are_the_same(root, random_bytes):
    rows, labels = random_bytes(5, 4, 3072), np.array([1, 9, 0, 3], np.uint8)
    for version in ("bin", "py"):
        folder = root / f"cifar-10-batches-{version}"
        folder.mkdir()
        for i, part in enumerate(rows, 1):
            binary = np.concatenate([labels[:, None], part], 1).tobytes()
            batch = pickle.dumps({b"data": part, b"labels": labels.tolist()}, 2)
            name, content = (f"data_batch_{i}.bin", binary) if version == "bin" else (f"data_batch_{i}", batch)
            (folder / name).write_bytes(content)
    binary = ge.data.load("cifar10", "train")
    assert binary.source.endswith("-bin")
    assert re.search(r"not the published .*cifar-10-batches-bin/data_batch_1\.bin", binary.note)
    (root / "cifar-10-batches-bin" / "data_batch_5.bin").unlink()  # a set with a part missing is not there
    python = ge.data.load("cifar10", "train")
    assert python.source.endswith("-py")
    assert (binary.images == python.images).all()
    assert (binary.labels == python.labels).all()
    assert python.classes[9] == "truck"


def test_both_versions_of_cifar100_are_the_same(root, random_bytes):
    rows, names = random_bytes(3, 3072), [f"class{i}" for i in range(100)]
    fine, coarse = np.array([99, 0, 5], np.uint8), np.array([1, 2, 3], np.uint8)
    (root / "cifar-100-binary").mkdir()
    (root / "cifar-100-binary" / "test.bin").write_bytes(np.concatenate([coarse[:, None], fine[:, None], rows], 1))
    (root / "cifar-100-binary" / "fine_label_names.txt").write_text("\n".join(names))
    (root / "cifar-100-python").mkdir()
    batch = {b"data": rows, b"fine_labels": fine.tolist(), b"coarse_labels": coarse.tolist()}
    (root / "cifar-100-python" / "test").write_bytes(pickle.dumps(batch, 2))
    meta = {b"fine_label_names": [name.encode() for name in names]}
    (root / "cifar-100-python" / "meta").write_bytes(pickle.dumps(meta, 2))
    for _ in range(2):
        found = ge.data.load("cifar100")
        assert (found.images.reshape(3, -1) == rows).all()
        assert found.labels.tolist() == [99, 0, 5]
        assert found.classes == tuple(names)
        (root / "cifar-100-binary" / "test.bin").unlink(missing_ok=True)  # then the other version is read


def test_svhn_says_when_its_bytes_are_others(root, random_bytes):
    (root / "svhn").mkdir()
    savemat(root / "svhn" / "test_32x32.mat", {"X": random_bytes(32, 32, 3, 2), "y": np.array([[10], [3]])})
    found = ge.data.load("svhn")
    assert found.labels.tolist() == [0, 3]
    assert "not the published bytes" in found.note
    assert "partial: 2 of 26,032" in found.note


def test_corruptions_are_splits(root):
    (root / "CIFAR-10-C").mkdir()
    np.save(root / "CIFAR-10-C" / "fog.npy", np.zeros((10, 32, 32, 3), np.uint8))
    np.save(root / "CIFAR-10-C" / "labels.npy", np.arange(10, dtype=np.uint8))
    assert ge.data.load("cifar10c", "fog/5").labels.tolist() == [8, 9]
    assert ge.data.load("cifar10c", "fog/5").note == "partial: 2 of 10,000 images, in 2 classes"
    with pytest.raises(FileNotFoundError):
        ge.data.load("cifar10c", "snow")


def test_published_pictures_come_before_small_copies(root, random_bytes, encoded):
    (root / "ood").mkdir()
    np.savez(root / "ood" / "places.npz", x=random_bytes(3, 32, 32, 3), y=np.arange(3, dtype=np.int16))
    found = ge.data.load("places365")
    assert found.note.startswith("stand-in: MIT Mini-Places")
    assert found.labels.dtype == np.int64
    assert "resized from 32, not from the original" in ge.data.load("places365", size=28).note
    (root / "places365" / "test_256").mkdir(parents=True)
    (root / "places365" / "test_256" / "Places365_test_00000001.jpg").write_bytes(encoded(random_bytes(64, 64, 3)))
    found = ge.data.load("places365", size=16)
    assert found.images.shape == (1, 3, 16, 16)
    choice, count = found.note.split("; ")
    assert "not the recorded" in choice
    assert count == "partial: 1 of 10,000 images"


def test_noise_by_name(root):
    found = ge.data.load("blobs", size=8, channels=1)
    assert found.images.shape == (25_000, 1, 8, 8)
    assert (found.note, found.labels) == ("", None)


def test_anything_else_by_its_path(tmp_path, random_bytes, encoded):
    for name in ("cats/1.png", "dogs/2.png"):
        (tmp_path / "pets" / name).parent.mkdir(parents=True)
        (tmp_path / "pets" / name).write_bytes(encoded(random_bytes(9, 12, 3)))
    found = ge.data.read(tmp_path / "pets", size=8)
    assert found.images.shape == (2, 3, 8, 8)
    assert (found.name, found.classes, found.labels.tolist()) == ("pets", ("cats", "dogs"), [0, 1])
    assert ge.data.read(tmp_path / "pets", channels=1).images.shape == (2, 1, 9, 12)
    np.save(tmp_path / "mine.npy", random_bytes(4, 10, 10))
    assert ge.data.read(tmp_path / "mine.npy", size=5, channels=3).images.shape == (4, 3, 5, 5)
    with pytest.raises(FileNotFoundError, match="none does not exist"):
        ge.data.read(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no pictures"):
        ge.data.read(tmp_path / "empty")
