import re

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import greedy_ensembles as ge
from greedy_ensembles.benchmark import PRESETS, load_preset
from greedy_ensembles.benchmark.presets import kind_of, load_named
from greedy_ensembles.paper.published import table


@pytest.fixture
def photos(image_set):
    return image_set("cifar10", count=2).replace(images=np.zeros((2, 3, 8, 8), np.uint8))


def write_svhn(root, **counts):
    (root / "svhn").mkdir()
    for split, count in counts.items():
        content = {"X": np.zeros((32, 32, 3, count), np.uint8), "y": np.ones((count, 1), np.uint8)}
        savemat(root / "svhn" / f"{split}_32x32.mat", content)


@pytest.mark.parametrize(
    ("dataset", "file"),
    [("cifar10", "ood_c10"), ("cifar100", "ood_c100"), ("svhn", "ood_svhn"), ("mnist", "ood_mnist")],
)
def test_presets_are_the_sets_of_the_papers_tables(dataset, file):
    names = {row["ood"].replace("places", "places365") for row in table(file)}
    assert set(PRESETS[dataset]) == names
    assert len(PRESETS[dataset]) == len(names) == (6 if dataset == "mnist" else 10)
    assert all(name in ge.data.SETS for name in names)


def test_noise_is_synthetic():
    synthetic = {name for name in ge.data.SETS if kind_of(name) == "synthetic"}
    assert synthetic == {"uniform", "gaussian", "gaussian_wide", "bernoulli", "blobs"}
    assert kind_of("./uniform") == kind_of("omniglot") == "natural"


def test_what_is_not_there_is_named_and_the_rest_has_the_in_domain_shape(photos, tmp_path):
    write_svhn(tmp_path, test=4)
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "dtd.npz", x=np.zeros((3, 16, 16, 3), np.uint8))
    sets, missing = load_preset("cifar10", photos, tmp_path)
    assert list(sets) == ["bernoulli", "blobs", "gaussian", "uniform", "svhn", "dtd"]
    assert missing == ("cifar100", "lsun", "places365", "tiny_imagenet")
    assert {images.images.shape[1:] for images in sets.values()} == {(3, 8, 8)}
    assert "partial: 3 of 5,640" in sets["dtd"].note


def test_svhn_is_its_train_split_where_that_is_there_else_its_test_split_with_a_note(photos, tmp_path):
    write_svhn(tmp_path, train=5, test=4)
    images = load_named(["svhn"], photos, tmp_path)["svhn"]
    assert len(images) == 5
    assert "test split" not in images.note
    (tmp_path / "svhn" / "train_32x32.mat").unlink()
    images = load_named(["svhn"], photos, tmp_path)["svhn"]
    assert len(images) == 4
    assert re.search(r"test split, 4 images.* paper .*73,257 .*train split", images.note)


def test_sets_of_ones_own_keep_their_path_as_name(image_set, tmp_path):
    np.save(tmp_path / "svhn.npy", np.zeros((3, 8, 8), np.uint8))
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (6, 4)).save(tmp_path / "photos" / "a.png")
    paths = [str(tmp_path / "svhn.npy"), str(tmp_path / "photos")]
    sets = load_named(paths, image_set(), tmp_path)
    assert list(sets) == [images.name for images in sets.values()] == paths
    assert [images.images.shape for images in sets.values()] == [(3, 1, 4, 4), (1, 1, 4, 4)]


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (["uniform", "uniform"], ValueError, "uniform is asked for twice"),
        (["mnist"], ValueError, "mnist is the in-domain set"),
        (["unifrom"], ValueError, "did you mean 'uniform'"),
        (["svhn"], FileNotFoundError, "data download svhn"),  # missing is an error where it is asked for by name
        (["cifar10c"], ValueError, r"cifar10c has no test split, but brightness, .*ge\.data\.load\('cifar10c'"),
        (["/no/such/folder"], ValueError, "an OOD set that is not a path"),
    ],
)
def test_bad_names(image_set, tmp_path, names, error, message):
    with pytest.raises(error, match=message):
        load_named(names, image_set("mnist"), tmp_path)
