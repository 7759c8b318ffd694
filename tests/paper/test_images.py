import numpy as np
import pytest
import torch
from PIL import Image

from greedy_ensembles.data import ImageSet, make_noise
from greedy_ensembles.data.image_set import squeeze
from greedy_ensembles.method.weighting import FromData
from greedy_ensembles.paper.catalogue import STUDIES
from greedy_ensembles.paper.images import (
    UNLIKE,
    WEIGHTINGS,
    Sets,
    cut,
    missing,
    named_weighting,
    needs,
    split_of,
    stand_in,
)
from greedy_ensembles.paper.study import Case, Protocol

QUICK = Protocol(quick=True)


@pytest.fixture
def root(tmp_path, write_mnist):
    write_mnist(tmp_path / "data" / "mnist", "train", 60, 0)
    write_mnist(tmp_path / "data" / "mnist", "t10k", 30, 1)
    return tmp_path / "data"


def test_stand_ins_say_what_they_are(few_images, tmp_path):
    sets = Sets(QUICK, tmp_path)
    for images, count in ((sets.train("mnist"), 40), (sets.bench("cifar10").in_domain, 20)):
        assert len(images) == count
        assert "(stand-in)" in images.name
        assert "is not there" in images.note
    assert sets.train("cifar10").images.shape[1:] == (3, 32, 32)
    assert not np.array_equal(stand_in("mnist", "train", 20).images, stand_in("mnist", "test", 20).images)


def test_nothing_stands_in_outside_of_quick(tmp_path):
    with pytest.raises(FileNotFoundError, match="mnist"):
        Sets(Protocol(), tmp_path).train("mnist")


def test_real_files_are_taken_where_they_are_there(few_images, root):
    quick, whole = Sets(QUICK, root), Sets(Protocol(), root)
    assert quick.train("mnist").name == "mnist"
    assert "the first 40 images of 60" in quick.train("mnist").note
    assert len(whole.train("mnist")) == 60
    assert whole.train("mnist") is whole.train("mnist")  # read once


def test_ood_images_are_cut_to_the_first_and_it_is_noted(root):
    bench = Sets(Protocol(ood_images=7), root).bench("mnist")
    assert set(bench.ood) == {"bernoulli", "gaussian", "uniform"}
    assert bench.missing == ("dtd", "fashion_mnist", "omniglot")
    assert len(bench.in_domain) == 30  # in-domain images are never cut
    for name, images in bench.ood.items():
        kind = "gaussian_wide" if name == "gaussian" else name  # as the paper's benchmark draws it for MNIST
        assert images.name == name
        assert np.array_equal(images.images, make_noise(kind, 20, size=28, channels=1).images[:7])
        assert "the first 7 images of 25,000" in images.note
        assert ("of standard deviation 0.5 about 0.5" in images.note) == (name == "gaussian")


def test_gaussian_noise_of_svhn_is_wide_and_that_of_cifar_is_not(few_images, tmp_path):
    noise = {name: Sets(QUICK, tmp_path).bench(name).ood["gaussian"].images for name in ("svhn", "cifar10")}
    assert (noise["svhn"] == 0).mean() == pytest.approx(0.16, abs=0.02)
    assert (noise["cifar10"] == 0).mean() == pytest.approx(0.023, abs=0.005)


def test_mnist_in_three_equal_channels_has_a_p_star_for_each(few_images, root):
    sets = Sets(Protocol(three_channels=True, quick=True), root)
    for images in (sets.train("mnist"), sets.test("mnist")):
        assert images.images.shape[1:] == (3, 28, 28)
        assert (images.images == images.images[:, :1]).all()
    assert all(images.images.shape[1] == 3 for images in sets.bench("mnist").ood.values())
    samples = sets.weighting(Case("mnist", "PreResNet8", 2, 0.1)).sample(4, torch.Generator().manual_seed(0))
    assert (samples[:, 0] != samples[:, 1]).any()


def test_pictures_of_ood_sets_are_resized_whole_where_their_originals_are(root):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)
    (root / "dtd" / "images" / "banded").mkdir(parents=True)
    Image.fromarray(pixels).save(root / "dtd" / "images" / "banded" / "1.png")
    found = {how: Sets(Protocol(resize=how), root).bench("mnist").ood["dtd"].images for how in ("whole", "crop")}
    colour = ImageSet(squeeze(pixels, 28).transpose(2, 0, 1)[None], None, "x")
    assert np.array_equal(found["whole"], colour.with_channels(1).images)
    assert not np.array_equal(found["whole"], found["crop"])


def test_cutting_keeps_labels_with_their_images():
    images = stand_in("mnist", "test", 20)
    part = cut(images, 5)
    assert np.array_equal(part.labels, images.labels[:5])
    assert cut(images, 20) is images


def test_images_as_p_star_have_the_shape_of_the_data(few_images, tmp_path):
    weighting = Sets(QUICK, tmp_path).weighting(Case("mnist", "PreResNet8", 2, 1.0, "cifar10"))
    assert isinstance(weighting, FromData)
    assert tuple(weighting.x.shape) == (40, 1, 28, 28)
    assert Sets(QUICK, tmp_path).weighting(Case("mnist", "PreResNet8", 2)) is None


def test_needs_follow_from_the_case(root):
    study = STUDIES["weighting"]
    plain, exposed = Case("mnist", "PreResNet8", 5, 0.1), Case("mnist", "PreResNet8", 5, 0.1, "cifar10")
    assert needs(plain, study) == [("mnist", "train"), ("mnist", "test")]
    assert missing(plain, study, root) == []
    assert missing(exposed, study, root) == ["cifar10"]
    assert missing(plain, STUDIES["robustness"], root) == ["cifar10c"]


DATA = ImageSet(np.arange(2 * 28 * 28, dtype=np.uint8).reshape(2, 1, 28, 28), None, "data")


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_samples_have_the_shape_of_the_data(name):
    samples = named_weighting(name, DATA).sample(50, torch.Generator().manual_seed(0))
    assert samples.shape == (50, 1, 28, 28)
    inside = bool(((samples >= 0) & (samples <= 255)).all())
    assert inside == (name != "none")


def test_images_of_another_set_are_brought_to_the_shape_of_the_data(tmp_path, write_mnist):
    write_mnist(tmp_path / "mnist", "train", 10, 0)
    write_mnist(tmp_path / "mnist", "t10k", 5, 0)
    colour = DATA.with_channels(3).resized(32)
    for name, count in (("mnist", 10), ("mnist/test", 5)):
        x = named_weighting(name, colour, tmp_path).x
        assert tuple(x.shape) == (count, 3, 32, 32)


def test_a_name_that_is_none():
    with pytest.raises(ValueError, match="--weighting must be one of"):
        split_of("wrapped")


@pytest.fixture
def two_hundred_classes(tmp_path):
    """Tiny ImageNet of one image a class, whose grey level is its label."""
    labels = np.arange(200)
    images = np.broadcast_to(labels[:, None, None, None], (200, 3, 32, 32)).astype(np.uint8)
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "tiny_imagenet.npz", x=images, y=labels)
    return tmp_path


def test_p_star_of_classes_unlike_cifar10_has_no_frog_bird_dog_cat_deer_car_or_boat(two_hundred_classes):
    assert split_of(UNLIKE) == ("tiny_imagenet", "test")
    data = stand_in("cifar10", "train", 20)
    kept = set(np.unique(named_weighting(UNLIKE, data, two_hundred_classes).x).tolist())
    alike = {"bullfrog": 2, "king penguin": 21, "Chihuahua": 24, "tabby": 30, "gazelle": 52, "sports car": 153}
    alike |= {"school bus": 145, "lifeboat": 115, "moving van": 121}
    assert not kept & set(alike.values())
    assert {0, 10, 99, 188, 199} <= kept  # goldfish, centipede, drumstick, banana, acorn
    assert len(kept) == 200 - 40


def test_p_star_of_classes_unlike_cifar10_needs_their_labels(tmp_path):
    (tmp_path / "ood").mkdir()
    np.savez(tmp_path / "ood" / "tiny_imagenet.npz", x=np.zeros((3, 3, 32, 32), np.uint8))
    with pytest.raises(ValueError, match=r"needs the labels of Tiny ImageNet.*tiny_imagenet\.npz"):
        named_weighting(UNLIKE, stand_in("cifar10", "train", 20), tmp_path)
