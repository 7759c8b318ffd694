import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison, Estimate, Evaluation, InDomain, Method, OutOfDistribution
from greedy_ensembles.paper.radar import draw_areas, draw_radar
from greedy_ensembles.report.figure import write_figure


def ood(name, images, kind):
    return OutOfDistribution(name, kind, images, "", 0.5, 0.5, 0.5, np.zeros(0))


SETS = [
    ood("svhn", 26_032, "natural"),
    ood("uniform", 25_000, "synthetic"),
    ood("lsun", 10_000, "natural"),
    ood("blobs", 25_000, "synthetic"),
]
ORDER = ["uniform", "blobs", "svhn", "lsun"]  # synthetic ones first, as given otherwise
MEANS = {"uniform": 0.99, "blobs": 0.9, "svhn": 0.8, "lsun": 0.7}


def areas(seeds=5, **changes):
    error = 0.02 if seeds > 1 else None
    return {name: Estimate(mean, error, seeds) for name, mean in (MEANS | changes).items()}


def radar(methods):
    figure = draw_radar(methods, SETS, "CIFAR-10")
    return figure, figure.axes[0]


def line(axis, label):
    return next(each for each in axis.lines if each.get_label() == label)


def labels(axis):
    return [text.get_text() for text in axis.texts]


def test_a_closed_polygon_with_synthetic_sets_first():
    _, axis = radar({"greedy": areas()})
    angles, radii = line(axis, "greedy").get_data()
    assert angles.tolist() == pytest.approx([0, np.pi / 2, np.pi, 3 * np.pi / 2, 2 * np.pi])
    assert radii.tolist() == [MEANS[name] for name in [*ORDER, ORDER[0]]]
    assert labels(axis) == ["uniform\n(25,000)", "blobs\n(25,000)", "svhn\n(26,032)", "lsun\n(10,000)"]


def test_the_shade_is_behind_synthetic_sets_alone():
    figure, axis = radar({"greedy": areas()})
    assert [bar.get_x() + bar.get_width() / 2 for bar in axis.patches] == pytest.approx([0, np.pi / 2])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["greedy", "synthetic sets", "natural sets"]


def test_bands_are_one_standard_error_and_stay_inside():
    _, axis = radar({"greedy": areas()})
    band = axis.collections[0].get_paths()[0].vertices
    assert {0.88, 0.92, 0.78, 0.82} <= set(band[:, 1].round(12))
    assert band[:, 1].max() == 1  # 0.99 + 0.02 would be outside


def test_one_seed_has_no_band():
    _, axis = radar({"greedy": areas(seeds=1)})
    assert not axis.collections


@pytest.mark.parametrize(
    ("least", "centre"),
    [
        (0.7, 0.5),
        (0.53, 0.5),
        (0.51, 0.4),  # for its band, of 0.02
        (0.43, 0.4),
        (0.09, 0.0),
    ],
)
def test_the_centre(least, centre):
    _, axis = radar({"greedy": areas(lsun=least)})
    assert axis.get_ylim() == (centre, 1)
    circles = [each for each in axis.lines if len(each.get_xdata()) > 100]
    assert len(circles) == (centre < 0.5)


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("name", ["method", "greedy, lambda_M = 0.1, p* = uniform, batch"])
def test_texts_do_not_meet(count, name, tmp_path):
    sets = [ood(f"a set with a rather long name {i}", 1000, "synthetic" if i < 4 else "natural") for i in range(count)]
    methods = {f"{name} {k}": {each.name: Estimate(0.6 + 0.09 * k, 0.01, 3) for each in sets} for k in range(4)}
    figure = draw_radar(methods, sets, "CIFAR-10: AUC by mutual information")
    write_figure(figure, tmp_path / "radar.png")
    assert (tmp_path / "radar.png").read_bytes().startswith(b"\x89PNG")
    figure.canvas.draw()
    texts = [*figure.axes[0].texts, figure.legends[0], figure._suptitle]
    boxes = [text.get_window_extent() for text in texts]
    assert not any(one.overlaps(other) for k, one in enumerate(boxes) for other in boxes[:k])
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)
    assert all(box.y0 >= 0 and box.y1 <= figure.bbox.y1 for box in boxes)


def test_the_radar_of_a_comparison_has_its_areas():
    inside = InDomain("mnist", 100, "", 0.9, 0.3, 0.2, 0.01, 0.02, np.zeros(100))
    deep = Method("Deep Ensembles", (Evaluation("mutual_information", 5, inside, tuple(SETS)),))
    (polygon,) = draw_areas(Comparison((deep,))).axes[0].lines
    assert polygon.get_label() == "Deep Ensembles"
    assert polygon.get_ydata() == pytest.approx([0.5] * 5)
