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
