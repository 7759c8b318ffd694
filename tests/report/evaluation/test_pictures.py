import dataclasses

import matplotlib.image
import numpy as np
import pytest

from greedy_ensembles.benchmark import Comparison
from greedy_ensembles.report.evaluation import pictures, write_pictures


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


def test_the_radar_has_areas_under_roc_curves_and_the_kind_of_each_set(comparison, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "draw_radar", lambda *given, **options: drawn.append(given))
    monkeypatch.setattr(pictures, "write_figure", lambda figure, path: None)
    methods = [
        dataclasses.replace(
            method,
            evaluations=tuple(
                dataclasses.replace(each, ood=(*each.ood, dataclasses.replace(each.ood[1], name="svhn", auc=0.3)))
                for each in method.evaluations
            ),
        )
        for method in comparison.methods
    ]
    write_pictures(dataclasses.replace(comparison, methods=tuple(methods)), tmp_path, {})
    ((areas, sets, *_),) = drawn
    assert {name: estimate.mean for name, estimate in areas["Deep Ensembles"].items()} == pytest.approx(
        {"uniform": 0.81, "fashion_mnist": 0.6, "svhn": 0.3}
    )
    assert [(each.name, each.synthetic, each.images) for each in sets] == [
        ("uniform", True, 25_000),
        ("fashion_mnist", False, 9_000),
        ("svhn", False, 9_000),
    ]


def test_scores_are_by_method_and_seed(comparison):
    scores = pictures._scores(comparison, 1)
    assert {name: (inside.shape, outside.shape) for name, (inside, outside) in scores.items()} == {
        "Deep Ensembles": ((2, 100), (2, 9)),
        "mine": ((1, 100), (1, 9)),
    }


def test_captions_say_the_score_the_networks_and_how_they_were_trained(comparison, tmp_path, monkeypatch):
    captions = {}
    monkeypatch.setattr(
        pictures, "write_figure", lambda figure, path: captions.update({path.stem: figure.get_supxlabel()})
    )
    three = dataclasses.replace(renamed(comparison, "a", "b", "c"), notes=comparison.notes)
    write_pictures(three, tmp_path, {"a": np.zeros((25, 1, 8, 8), np.uint8)})
    assert list(captions) == ["curves-a", "gallery-a", "curves-b", "curves-c", "radar"]
    for caption in captions.values():
        assert "Score: mutual information (nats)" in " ".join(caption.split())
        assert " ".join(caption.split()).endswith("PreResNet8, 5 members; trained on a part.")


@pytest.mark.parametrize("position", [0, 1])
def test_titles_carry_notes(comparison, tmp_path, monkeypatch, position):
    titles = []
    monkeypatch.setattr(pictures, "write_figure", lambda figure, path: titles.append(figure.get_suptitle()))
    write_pictures(comparison, tmp_path, {})
    assert ("[50 % of it & no more]" in titles[position].replace("\n", " ")) == (position == 1)
