import dataclasses

import matplotlib.image
import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison
from greedy_ensembles.report.comparison_pictures import draw_pictures, write_pictures


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


def test_a_radar_from_three_sets_on_and_names_that_are_paths(comparison, tmp_path):
    three = renamed(comparison, "./a/x.npy", "a-x.npy", "~/ü b")
    names = [path.name for path in write_pictures(three, tmp_path, {})]
    assert names == ["curves-a-x-npy.png", "curves-a-x-npy-2.png", "curves-ü-b.png", "radar.png"]


def test_the_radar_has_areas_under_roc_curves(comparison):
    three = renamed(comparison, "a", "b", "c")
    figure = dict(draw_pictures(three, {}))["radar"]
    (polygon,) = (line for line in figure.axes[0].lines if line.get_label() == "Deep Ensembles")
    assert polygon.get_ydata() == pytest.approx([0.81] * 4)
    assert [text.get_text() for text in figure.axes[0].texts] == ["a\n(25,000)", "b\n(25,000)", "c\n(25,000)"]
    assert "synthetic sets" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_titles_carry_notes(comparison):
    plain, noted = (figure.get_suptitle().replace("\n", " ") for _, figure in draw_pictures(comparison, {}))
    assert "[50 % of it & no more]" not in plain
    assert "[50 % of it & no more]" in noted


def test_dollars_in_a_name_are_no_mathematics(comparison, tmp_path):
    odd = renamed(comparison, r"a$\frac$.npy", "b", "c")
    images = {r"a$\frac$.npy": np.zeros((25, 1, 8, 8), np.uint8)}
    assert len(write_pictures(odd, tmp_path, images)) == 5
