import dataclasses
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison, Method
from greedy_ensembles.metrics import auroc, average_precision, balanced_threshold, roc_curve
from greedy_ensembles.report.detection import average_scores, draw_curves, draw_gallery, draw_pictures, write_pictures


def drawn(shape, n=300, m=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(0.5, 0.25, n), rng.gamma(shape, 0.25, m)


@pytest.fixture
def scores():
    return {"Deep Ensembles": drawn(1.0), "greedy": drawn(1.6, seed=1)}


def panels(figure):
    """Return ROC, PR and the histograms."""
    by_label = {axis.get_xlabel(): axis for axis in figure.axes}
    histograms = [axis for axis in figure.axes if axis.get_title(loc="right")]
    return by_label["false-positive rate"], by_label["recall (true-positive rate)"], histograms


def texts(figure):
    legends = [axis.get_legend() for axis in figure.axes]
    return [text.get_text() for legend in legends if legend for text in legend.get_texts()]


def lines_of(axis, scores):
    """Return the lines of methods, which come after that of chance."""
    assert len(axis.lines) == 1 + len(scores)
    return [np.array(line.get_data()) for line in axis.lines[1:]]


def test_the_lines_are_those_of_the_scores(scores):
    roc, pr, _ = panels(draw_curves(scores, "CIFAR-100", "SVHN"))
    for (inside, outside), line in zip(scores.values(), lines_of(roc, scores), strict=True):
        false, true, _ = roc_curve(inside, outside)
        assert line.tolist() == [false.tolist(), true.tolist()]
    for (inside, outside), (x, y) in zip(scores.values(), lines_of(pr, scores), strict=True):
        assert (x[0], x[-1]) == (0, 1)
        assert set(np.flatnonzero(np.diff(x))).isdisjoint(np.flatnonzero(np.diff(y)))  # steps
        area = (np.diff(x) * y[1:]).sum()
        assert area == pytest.approx(average_precision(inside, outside), abs=1e-12)


def test_legends_have_areas_and_counts(scores):
    figure = draw_curves(scores, "CIFAR-100", "SVHN")
    labels = texts(figure)
    for method, (inside, outside) in scores.items():
        assert f"AUC {auroc(inside, outside):.3f}  {method}" in labels
        assert f"AP {average_precision(inside, outside):.3f}  {method}" in labels
    assert {"in-domain (300 images)", "OOD (200 images)"} <= set(labels)
    assert figure.get_suptitle() == "CIFAR-100 (in-domain) against SVHN (OOD)"


def test_chance_is_the_diagonal_and_the_share_of_ood(scores):
    roc, pr, _ = panels(draw_curves(scores, "a", "b"))
    assert roc.lines[0].get_xy1() == (0, 0)
    assert roc.lines[0].get_slope() == 1
    assert set(pr.lines[0].get_ydata()) == {200 / 500}


def test_histograms_are_shares_in_common_bins(scores):
    _, _, histograms = panels(draw_curves(scores, "a", "b"))
    assert [axis.get_title(loc="right") for axis in histograms] == list(scores)
    edges = histograms[0].patches[0].get_data().edges
    for axis, (inside, outside) in zip(histograms, scores.values(), strict=True):
        inner, inner_outline, outer, _ = (patch.get_data() for patch in axis.patches)
        for drawn_part, part in ((inner, inside), (inner_outline, inside), (outer, outside)):
            assert drawn_part.edges.tolist() == edges.tolist()
            counts = np.histogram(part, edges)[0]
            assert drawn_part.values == pytest.approx(100 * counts / len(part))
            assert drawn_part.values.sum() == pytest.approx(100)  # none of so few is left out
    assert histograms[-1].get_xlabel() == "mutual information (nats)"


def test_a_far_image_does_not_squeeze_the_others():
    inside, outside = drawn(1.0, n=5000, m=5000)
    inside[0] = 1e6
    _, _, (histogram,) = panels(draw_curves({"one": (inside, outside)}, "a", "b"))
    shown = histogram.patches[0].get_data()
    assert shown.edges[-1] < 10
    left = (inside > shown.edges[-1]).mean()
    assert 0 < left <= 0.001
    assert shown.values.sum() == pytest.approx(100 * (1 - left), abs=1e-9)  # of all images, not of those shown


def test_all_equal_is_chance():
    equal = np.full(30, 0.5), np.full(50, 0.5)
    figure = draw_curves({"equal": equal}, "a", "b")
    roc, pr, _ = panels(figure)
    assert lines_of(roc, [0])[0].tolist() == [[0, 1], [0, 1]]
    assert lines_of(pr, [0])[0].tolist() == [[0, 1], [50 / 80, 50 / 80]]
    assert {"AUC 0.500  equal", "AP 0.625  equal"} <= set(texts(figure))


@pytest.mark.parametrize("name", ["m", "a name of a method that is far too long for any legend " * 2])
@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_nothing_overlaps(count, name):
    figure = draw_curves({f"{name}{i}": drawn(1 + i) for i in range(count)}, "a", "b")
    figure.canvas.draw()
    roc, _, histograms = panels(figure)
    legends = [axis.get_legend().get_window_extent() for axis in figure.axes if axis.get_legend()]
    assert all(legend.y0 >= 0 and legend.x1 <= figure.bbox.x1 for legend in legends)
    assert not any(legend.overlaps(roc.get_tightbbox()) for legend in legends)
    boxes = [axis.get_tightbbox() for axis in histograms]
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))


def test_nothing_given_is_changed(scores):
    before = {method: (inside.copy(), outside.copy()) for method, (inside, outside) in scores.items()}
    draw_curves(scores, "a", "b")
    for method, pair in scores.items():
        for now, then in zip(pair, before[method], strict=True):
            assert np.array_equal(now, then)


@pytest.fixture
def of_seeds(comparison):
    """The scores of one method over two seeds, averaged."""

    def make(inside, outside):
        first = comparison.first
        seeds = tuple(
            dataclasses.replace(
                first,
                in_domain=dataclasses.replace(first.in_domain, scores=one),
                ood=(dataclasses.replace(first.ood[0], scores=other),),
            )
            for one, other in zip(inside, outside, strict=True)
        )
        return average_scores(Comparison((Method("one", seeds),)), 0)

    return make


def test_averaging_scores_is_not_averaging_areas(of_seeds):
    # Each seed ranks one of two pairs wrong; their average ranks all right.
    inside, outside = np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([[1.9, 1.5], [1.9, 1.5]])
    assert auroc(inside[0], outside[0]) == 0.5
    assert "AUC 1.000  one" in texts(draw_curves(of_seeds(inside, outside), "a", "b"))


def test_the_mean_is_over_seeds_and_not_over_images(of_seeds):
    scores = np.array([[0.0, 1.0, 2.0], [1.0, 3.0, 6.0]])
    assert of_seeds(scores, scores)["one"][0].tolist() == [0.5, 2, 4]


def test_the_mean_of_single_precision_is_taken_in_double(of_seeds):
    scores = np.array([[1.0], [2**-25]], dtype=np.float32)
    assert float(of_seeds(scores, scores)["one"][0][0]) == (1 + 2**-25) / 2


def renamed(comparison, *names):
    """The comparison with OOD sets of other names, as many as there are names."""

    def change(evaluation):
        first = evaluation.ood[0]
        return dataclasses.replace(evaluation, ood=tuple(dataclasses.replace(first, name=name) for name in names))

    methods = [
        dataclasses.replace(method, evaluations=tuple(map(change, method.evaluations))) for method in comparison.methods
    ]
    return Comparison(tuple(methods))


def test_which_pictures_there_are(comparison, tmp_path):
    images = {"fashion_mnist": np.zeros((9, 1, 8, 8), np.uint8)}
    names = [path.name for path in write_pictures(comparison, tmp_path, images)]
    assert names == ["curves-uniform.png", "curves-fashion_mnist.png", "gallery-fashion_mnist.png"]
    for name in names:
        assert matplotlib.image.imread(tmp_path / name).std() > 0.01
    alone = Comparison(comparison.methods[:1])  # a gallery is of two methods
    assert [path.name for path in write_pictures(alone, tmp_path / "one", images)] == names[:2]


def test_names_that_are_paths(comparison, tmp_path):
    three = renamed(comparison, "./a/x.npy", "a-x.npy", "~/ü b")
    names = [path.name for path in write_pictures(three, tmp_path, {})]
    assert names == ["curves-a-x-npy.png", "curves-a-x-npy-2.png", "curves-ü-b.png"]


def test_titles_are_the_names_of_the_sets(comparison):
    titles = [figure.get_suptitle() for _, figure in draw_pictures(comparison, {})]
    assert titles == [f"mnist (in-domain) against {name} (OOD)" for name in ("uniform", "fashion_mnist")]


@pytest.mark.parametrize("name", [r"a$\frac$.npy", r"$\frac$", r"one$ \$\frac{", r"\$", "lambda_M$"])
def test_dollars_in_a_name_are_no_mathematics(comparison, tmp_path, name):
    odd = renamed(comparison, name, "b")
    images = {name: np.zeros((25, 1, 8, 8), np.uint8)}
    assert len(write_pictures(odd, tmp_path, images)) == 3


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
def two():
    """Two methods, 60 in-domain and 100 OOD images, of which every group has some."""
    rng = np.random.default_rng(0)
    return {name: (rng.gamma(1, 1, 60), rng.gamma(1.5, 1, 100)) for name in ("deep", "greedy")}


def right(two):
    return [outside >= balanced_threshold(inside, outside) for inside, outside in two.values()]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_groups_are_shown_whole_and_counted(two, channels):
    figure = draw_gallery(numbered(100, channels), two, "svhn", examples=100)
    one, other = right(two)
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


def test_images_keep_their_colours_and_their_way_up(two):
    images = np.random.default_rng(0).integers(0, 255, (100, 3, 5, 7), dtype=np.uint8)
    axis = draw_gallery(images, two, "svhn", examples=1).axes[0]
    shown = np.asarray(axis.images[0].get_array())[:5, :7]
    assert any((shown == image.transpose(1, 2, 0)).all() for image in images)
    assert axis.get_ylim()[0] > axis.get_ylim()[1]  # the first row is on top


def test_grey_images_are_grey(two):
    images = np.random.default_rng(0).integers(0, 255, (100, 1, 5, 7), dtype=np.uint8)
    shown = np.asarray(draw_gallery(images, two, "svhn").axes[0].images[0].get_array())
    assert (shown == shown[..., :1]).all()


def test_examples_are_drawn_by_lot_from_the_seed(two):
    images = numbered(100, 3)
    first, again, other = (
        [tiles(axis) for axis in draw_gallery(images, two, "svhn", examples=5, seed=seed).axes] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    group = np.flatnonzero(right(two)[0] & right(two)[1])
    assert len(first[0]) == 5
    assert len(set(first[0])) == 5
    assert set(first[0]) <= set(group)
    assert sorted(first[0]) != sorted(group[:5])  # not those that come first in the file


def test_every_image_of_a_group_has_the_same_chance(two):
    images, group = numbered(100, 3), np.flatnonzero(np.logical_and(*right(two)))
    shown = [tiles(draw_gallery(images, two, "svhn", examples=8, seed=seed).axes[0]) for seed in range(60)]
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
    two = {"a": equal, "b": equal}
    assert draw_gallery(numbered(3, 1), two, "x").axes[0].get_title().startswith("both right: 3 images")
