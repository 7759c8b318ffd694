"""What a page shows of a section."""

import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison, Estimate, Evaluation, InDomain, Method, OutOfDistribution
from greedy_ensembles.paper.sections import (
    corruption_table,
    draw_areas,
    draw_radar,
    draw_severities,
    mean_areas,
    overhead_table,
)
from greedy_ensembles.report.figure import write_figure


def test_overhead_is_told_beside_the_papers(gathered, cells, part):
    def times(job):
        if job.case.strength is None:
            return {"epoch_seconds": 2.0}
        return {"epoch_seconds": 3.5, "prediction": {"images": 200, "seconds": 1.01}}

    rows = cells(overhead_table(gathered(part("overhead", 0, seeds=1), figures=times)))
    assert rows[1] == ["PreResNet164, M = 11", "greedy, lambda_M = 3", "1", "3.500", "+75.0 %", "+74.39 %", "5.050"]
    alone = gathered(part("overhead", 1, seeds=1), but=[0], figures=times)
    assert cells(overhead_table(alone))[0][4] == ""  # nothing to compare with


def corrupted(name="fog", other="snow"):
    def figures(job):
        level = 0.1 if job.case.strength is None else 0.2
        return {
            "corruptions": {
                f"{kind}/{severity}": {
                    "accuracy": base + level / severity + 0.1 * bool(job.seed),
                    "nll": 0.5,
                    "ace": 0.02,
                    "mi": 0.25,
                }
                for kind, base in ((name, 0.3), (other, 0.5))
                for severity in range(1, 6)
            }
        }

    return figures


def test_corruptions_are_averaged_for_each_severity(gathered, cells, part):
    (section,) = gathered(part("robustness", 0), figures=corrupted())
    text = corruption_table(section)
    assert ["1", "Deep Ensembles", "2", "55.00±5.00", "50.00±0.00", "2.00±0.00", "0.250±0.000"] in cells(text)
    assert ["2", "greedy, lambda_M = 3", "2", "55.00±5.00", "50.00±0.00", "2.00±0.00", "0.250±0.000"] in cells(text)
    assert "2 corruptions (fog, snow)" in text
    assert "CIFAR-10-C" not in text  # nothing to say of the published set


def test_generated_corruptions_are_not_passed_for_the_published_ones(gathered, part):
    made = corrupted("imagecorruptions fog", "imagecorruptions snow")
    (section,) = gathered(part("robustness", 0), figures=made)
    assert "not CIFAR-10-C" in corruption_table(section)


def test_runs_on_other_corruptions_are_not_averaged(gathered, part):
    mixed = lambda job: corrupted("fog" if job.case.strength is None else "imagecorruptions fog")(job)  # noqa: E731
    (section,) = gathered(part("robustness", 0), figures=mixed)
    with pytest.raises(ValueError, match="was judged on other corruptions than"):
        corruption_table(section)


def test_the_curve_has_auc_of_both_kinds(gathered, part):
    figures = lambda job: {"areas": {"uniform": 1 / (1 + (job.case.strength or 0)), "dtd": 0.6, "omniglot": 0.7}}  # noqa: E731
    (curve,) = gathered(part("mnist", 6), figures=figures)
    found = mean_areas(curve.comparison, {curve.section.label(case): case.strength for case in curve.section.cases})
    assert list(found) == ["mean AUC, 1 synthetic sets", "mean AUC, 2 natural sets"]
    for strength, estimate in found["mean AUC, 1 synthetic sets"].items():
        assert estimate.mean == 1 / (1 + (strength or 0))
    assert [estimate.mean for estimate in found["mean AUC, 2 natural sets"].values()] == pytest.approx([0.65] * 7)


def at_severities(start, error=0.01, seeds=3):
    return {
        name: [Estimate(start - 0.1 * severity, error, seeds) for severity in range(5)]
        for name in ("accuracy", "nll", "ace", "mi")
    }


def test_every_method_is_a_line_over_severities_with_its_bars():
    figure = draw_severities({"Deep Ensembles": at_severities(0.9), "greedy": at_severities(0.8)})
    for axis, factor in zip(figure.axes, (100, 1, 100, 1), strict=True):  # accuracy, NLL, ACE, MI
        for container, start in zip(axis.containers, (0.9, 0.8), strict=True):
            line, _, (bars,) = container
            assert line.get_xdata().tolist() == [1, 2, 3, 4, 5]
            assert line.get_ydata() == pytest.approx([factor * (start - 0.1 * severity) for severity in range(5)])
            low, high = bars.get_segments()[0][:, 1]
            assert high - low == pytest.approx(2 * factor * 0.01)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Deep Ensembles", "greedy"]


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
