import numpy as np
import pytest

from greedy_ensembles.metrics import balanced_threshold
from greedy_ensembles.report.detection import draw_gallery
from greedy_ensembles.report.figure import write_figure

SIZE, GAP = 4, 1


def numbered(count, channels):
    """Return images that are their index, in the first channel."""
    images = np.zeros((count, channels, SIZE, SIZE), dtype=np.uint8)
    images[:, 0] = np.arange(count)[:, None, None]
    return images


def tiles(axis):
    """Return the indices of the images shown, read back from the pixels."""
    (picture,) = axis.images
    pixels = np.asarray(picture.get_array())
    corners = pixels[:: SIZE + GAP, :: SIZE + GAP].reshape(-1, 3)
    return [int(corner[0]) for corner in corners if corner.tolist() != [255, 255, 255]]


@pytest.fixture
def scores():
    """Two methods, 60 in-domain and 100 OOD images, of which every group has some."""
    rng = np.random.default_rng(0)
    return {name: (rng.gamma(1, 1, 60), rng.gamma(1.5, 1, 100)) for name in ("deep", "greedy")}


def right(scores):
    return [outside >= balanced_threshold(inside, outside) for inside, outside in scores.values()]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_groups_are_shown_whole_and_counted(scores, channels):
    figure = draw_gallery(numbered(100, channels), scores, "svhn", examples=100)
    one, other = right(scores)
    expected = {
        "both right": one & other,
        "only deep right": one & ~other,
        "only greedy right": ~one & other,
        "neither right": ~one & ~other,
    }
    assert all(group.any() for group in expected.values())
    for axis, (name, group) in zip(figure.axes, expected.items(), strict=True):
        assert axis.get_title() == f"{name}: {group.sum()} images ({group.mean():.1%})"
        assert sorted(tiles(axis)) == np.flatnonzero(group).tolist()
    assert figure.get_suptitle() == "svhn"


def test_images_keep_their_colours_and_their_way_up(scores):
    images = np.random.default_rng(0).integers(0, 255, (100, 3, 5, 7), dtype=np.uint8)
    axis = draw_gallery(images, scores, "svhn", examples=1).axes[0]
    shown = np.asarray(axis.images[0].get_array())[:5, :7]
    assert any((shown == image.transpose(1, 2, 0)).all() for image in images)
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first row is on top


def test_grey_images_are_grey(scores):
    images = np.random.default_rng(0).integers(0, 255, (100, 1, 5, 7), dtype=np.uint8)
    shown = np.asarray(draw_gallery(images, scores, "svhn").axes[0].images[0].get_array())
    assert (shown == shown[..., :1]).all()


def test_examples_are_drawn_by_lot_from_the_seed(scores):
    images = numbered(100, 3)
    first, again, other = (
        [tiles(axis) for axis in draw_gallery(images, scores, "svhn", examples=5, seed=seed).axes] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    group = np.flatnonzero(right(scores)[0] & right(scores)[1])
    assert len(first[0]) == 5
    assert len(set(first[0])) == 5
    assert set(first[0]) <= set(group)
    assert sorted(first[0]) != sorted(group[:5])  # not those that come first in the file


def test_every_image_of_a_group_has_the_same_chance(scores):
    images, group = numbered(100, 3), np.flatnonzero(np.logical_and(*right(scores)))
    shown = [tiles(draw_gallery(images, scores, "svhn", examples=8, seed=seed).axes[0]) for seed in range(60)]
    counts = np.bincount(np.concatenate(shown), minlength=100)[group]
    expected = 60 * 8 / len(group)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < len(group) + 4 * np.sqrt(2 * len(group))  # four standard deviations


def test_an_empty_group_is_left_out():
    apart, mixed = (np.zeros(5), np.ones(3)), (np.zeros(5), np.array([1.0, 1.0, 0.0]))
    (axis,) = draw_gallery(numbered(3, 1), {"a": apart, "b": apart}, "svhn").axes
    assert axis.get_title() == "both right: 3 images (100.0%)"
    titles = [axis.get_title() for axis in draw_gallery(numbered(3, 1), {"a": apart, "b": mixed}, "svhn").axes]
    assert titles == ["both right: 2 images (66.7%)", "only a right: 1 images (33.3%)"]


def test_all_equal_scores_are_all_called_ood():
    equal = np.ones(5), np.ones(3)
    scores = {"a": equal, "b": equal}
    assert draw_gallery(numbered(3, 1), scores, "x").axes[0].get_title().startswith("both right: 3 images")


def test_it_is_written(tmp_path, scores):
    write_figure(draw_gallery(numbered(100, 3), scores, "svhn"), tmp_path / "gallery.png")
    assert (tmp_path / "gallery.png").read_bytes().startswith(b"\x89PNG")
