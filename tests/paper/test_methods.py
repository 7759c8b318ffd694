"""The study of all methods in a tiny form: digits, two members, few epochs."""

import dataclasses
import json
import shutil
import warnings
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.benchmark import judge_scores
from greedy_ensembles.method import METHODS, SCHEDULES, as_coupling
from greedy_ensembles.paper import method_runs, methods
from greedy_ensembles.paper.study import only
from greedy_ensembles.runs.notes import WeakMemberWarning
from greedy_ensembles.storage import FolderError

TINY = dataclasses.replace(
    method_runs.SETTINGS[0],
    size=2,
    seeds=1,
    recipe=ge.Recipe(epochs=2, batch_size=128),
    make_model=lambda: nn.Sequential(OrderedDict(relu=ge.models.MLP(64, (64,), 64), last=nn.Linear(64, 5))),
    own={
        "dropout": method_runs.Own("a layer of its own", make_model=method_runs.network),
        "snapshot": method_runs.Own("too few epochs", {"epochs": 1}),
    },
)

#: Two methods, an epoch, and no detectors.
TWO = dataclasses.replace(TINY, recipe=ge.Recipe(epochs=1, batch_size=128), detectors=None, own={})


def run(out, *settings, part="1/1", progress=False):
    method_runs.work(out, only(method_runs.jobs(settings), part), progress)
    methods.write(out, settings)


@pytest.fixture
def two_methods(monkeypatch):
    for place in (methods, method_runs):
        monkeypatch.setattr(place, "METHODS", {name: METHODS[name] for name in ("deep", "hyper")})


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("methods")
    (out / "records").mkdir()
    (out / "records" / "reading.md").write_text("The answer.\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakMemberWarning)  # two epochs may leave some
        run(out, TINY, dataclasses.replace(TINY, name="none", title="No data", read=lambda: None))
    return out


def shown(out):
    """Return the rows of the page, by method."""
    return {row["method"]: row for row in json.loads((out / "records" / "methods.json").read_text())["digits"]}


@pytest.fixture(scope="module")
def rows(out):
    return shown(out)


def test_every_registered_method_and_the_detectors_are_in_the_table(out, rows):
    alone = "one network", "one network, features"
    assert list(rows) == [*METHODS, *alone, "random forest", "isolation forest", "5 neighbours"]
    page = (out / "methods.md").read_text()
    assert page.index("The answer.") < page.index("| method |")
    assert "No data" in page
    made = json.loads((out / "records" / "methods.json").read_text())["made"]["digits"]
    assert made.keys() == {"sets", "examples", "seeds", "machine", "started", "commit", "versions"}
    assert all(f"- {name}: {value}" in page for name, value in made.items())
    assert "test 451, uniform 400" in made["examples"]
    assert (out / "methods.png").stat().st_size > 10_000


@pytest.mark.usefixtures("two_methods")
def test_progress_names_the_run(tmp_path, capsys):
    run(tmp_path, TWO, progress=True)
    assert "digits-deep-seed0: member 2/2" in capsys.readouterr().err


@pytest.mark.usefixtures("two_methods")
def test_a_study_goes_on_from_its_records_alone(tmp_path):
    """As after a kill on a machine that is gone: no run folder is left, and not all runs can be done on the next."""
    run(tmp_path, TWO, part="1/2")
    assert shown(tmp_path).keys() == {"deep", "one network", "one network, features"}
    assert "hyper ensemble (seed 0)" in (tmp_path / "methods.md").read_text()
    first = (tmp_path / "records" / "digits-deep-seed0.json").read_bytes()
    shutil.rmtree(tmp_path / "runs")

    run(tmp_path, dataclasses.replace(TWO, read=lambda: None))
    assert "deep" in shown(tmp_path)
    run(tmp_path, TWO)
    assert shown(tmp_path).keys() == {"deep", "hyper", "one network", "one network, features"}
    assert "seed 0" not in (tmp_path / "methods.md").read_text()
    assert (tmp_path / "records" / "digits-deep-seed0.json").read_bytes() == first
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["digits-hyper-seed0"]


@pytest.mark.usefixtures("two_methods")
def test_more_seeds_are_added_to_those_that_are_there(tmp_path):
    run(tmp_path, TWO)
    run(tmp_path, dataclasses.replace(TWO, seeds=2), part="4/4")
    assert {name: row["seeds"] for name, row in shown(tmp_path).items() if name in METHODS} == {"deep": 1, "hyper": 2}
    assert [job.name for job in method_runs.jobs([dataclasses.replace(TWO, seeds=2)])] == [
        f"digits-{method}-seed{seed}" for seed in (0, 100) for method in ("deep", "hyper")
    ]


@pytest.mark.usefixtures("two_methods")
def test_records_that_were_made_otherwise_are_refused(tmp_path):
    run(tmp_path, TWO)
    longer = dataclasses.replace(TWO, recipe=dataclasses.replace(TWO.recipe, epochs=3))
    with pytest.raises(FolderError, match=r"digits-deep-seed0.json .* recipe.epochs 1, not 3"):
        run(tmp_path, longer)
    fewer = dataclasses.replace(TWO, seeds=2, read=lambda: reduced(method_runs.digits()))
    with pytest.raises(ValueError, match="digit 9"):
        run(tmp_path, fewer)


def reduced(data):
    return data._replace(ood={name: x for name, x in data.ood.items() if name != "digit 9"})


@pytest.mark.usefixtures("two_methods")
def test_training_that_leaves_the_numbers_does_not_end_the_study(tmp_path):
    own = {"deep": method_runs.Own("a large step", {"lr": 1e30, "loss": lambda z, y: (z**4).sum()})}
    run(tmp_path, dataclasses.replace(TWO, own=own))
    assert "accuracy" in shown(tmp_path)["hyper"]
    reason = shown(tmp_path)["deep"]["refused"]
    assert f"Deep Ensembles, seed 0: {reason}" in (tmp_path / "methods.md").read_text()


def test_there_is_no_page_of_nothing(tmp_path):
    with pytest.raises(ValueError, match="No data"):
        run(tmp_path, dataclasses.replace(TWO, title="No data", read=lambda: None))


def test_a_method_that_refuses_a_setting_has_a_row_and_its_reason(out, rows):
    reason = rows["snapshot"].pop("refused")
    assert rows["snapshot"] == {"method": "snapshot"}
    page = (out / "methods.md").read_text()
    assert f"Snapshot Ensembles, seed 0: {reason}" in page
    assert "MC dropout: a layer of its own" in page


def test_the_committed_page_is_made_of_its_records(tmp_path, monkeypatch):
    committed = Path(__file__).parents[2] / "results" / "methods"
    rows = shown(committed)
    for place in (methods, method_runs):  # a method that is added later is not on it
        monkeypatch.setattr(place, "METHODS", {name: method for name, method in METHODS.items() if name in rows})
    shutil.copytree(committed / "records", tmp_path / "records")
    methods.write(tmp_path, method_runs.SETTINGS)
    for name in ("methods.md", "records/methods.json"):
        assert (tmp_path / name).read_text() == (committed / name).read_text()


def test_the_picture_has_auc_against_cost_with_batches_of_p_star():
    costs = {"deep": 100, "greedy": 100, "repulsive": 100, "batch": 100, "random forest": None}
    rows = [
        {"method": name, "steps": steps, "other_score_auc": {"mean": k / 10, "standard_error": 0.1, "seeds": 3}}
        for k, (name, steps) in enumerate(costs.items(), start=1)
    ]
    setting = method_runs.SETTINGS[0]
    assert [methods.batches(setting, own) for own in rows] == [100, pytest.approx(180), 200, 100, 0]  # M = 5
    figure = methods.draw({setting: [*rows, {"method": "snapshot", "refused": "no"}]})
    (axis,), (legend,) = figure.axes, figure.legends
    names = ["Deep Ensembles", "greedy", "repulsive", "BatchEnsemble", "random forest"]
    assert [text.get_text() for text in legend.get_texts()] == names
    places = [float(bars[0].get_xdata()[0]) for bars in axis.containers]
    assert places == pytest.approx([100 / 1.08**0.5, 180, 200, 100 * 1.08**0.5, 100 / 3])
    assert [float(bars[0].get_ydata()[0]) for bars in axis.containers] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert axis.get_ylabel() == "AUC, unseen digits 7 to 9"


def test_a_method_looks_the_same_in_every_panel_where_some_are_missing():
    rows = [
        {"method": name, "steps": 52_800, "other_score_auc": {"mean": 0.5, "standard_error": None, "seeds": 1}}
        for name in ("greedy", "deep", "random forest")
    ]
    figure = methods.draw(
        {method_runs.SETTINGS[0]: rows, method_runs.SETTINGS[1]: [rows[1], rows[0] | {"method": "hyper"}]}
    )
    first, second = ([bars[0].get_color() for bars in axis.containers] for axis in figure.axes)
    assert len(set(first)) == 3
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    assert not boxes[0].overlaps(boxes[1])
    assert [axis.get_xticklabels()[0].get_text() for axis in figure.axes] == ["52,800", "52,800"]
    assert second[0] == first[1]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["greedy", "Deep Ensembles", "random forest", "hyper ensemble"]


@pytest.mark.parametrize("setting", method_runs.SETTINGS, ids=lambda setting: setting.name)
def test_no_method_refuses_a_setting_of_the_study(setting):
    for method in METHODS:
        coupling, model = as_coupling(method, setting.size, 1.0), setting.model_of(method)()
        assert setting.features in dict(model.named_modules())
        coupling.check(setting.recipe_of(method), SCHEDULES[method_runs.schedule_of(method)])
        coupling.build(model, 1, 0)


def test_a_setting_of_images_is_trained_and_judged(tmp_path, monkeypatch):
    """The part of MNIST on a few images of noise, by the three methods that train otherwise than the others."""
    for place in (methods, method_runs):
        monkeypatch.setattr(place, "METHODS", {name: METHODS[name] for name in ("repulsive", "batch", "dropout")})

    def noise(kind, count=20):
        return ge.data.make_noise(kind, count, size=28, channels=1)

    groups = {"noise": ("uniform",), "choosing": ("gaussian",), "other": ("bernoulli",)}
    train = noise("blobs", 110).replace(labels=np.arange(110) % 10)
    ood = {name: noise(name) for (name,) in groups.values()}
    data = method_runs.Data(train, train.take(np.arange(20)), ood, groups, train)
    setting = method_runs.SETTINGS[1]
    short = dataclasses.replace(setting.recipe, epochs=1, batch_size=60)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeakMemberWarning)
        run(tmp_path, dataclasses.replace(setting, read=lambda: data, recipe=short, size=2, seeds=1))
    rows = json.loads((tmp_path / "records" / "methods.json").read_text())["mnist"]
    assert {row["method"]: row["steps"] for row in rows} == {"repulsive": 4, "batch": 4, "dropout": 2}
    assert all("other_score_auc" in row for row in rows)


def test_costs_are_those_of_the_definitions(rows):
    # 450 examples, a tenth held out: 4 batches an epoch, 2 epochs.
    one = 4 * 2
    twice = dict.fromkeys(("greedy", "deep", "pairwise", "repulsive", "pointwise", "hyper", "batch"), 2 * one)
    expected = {**twice, "dropout": one}
    assert {name: rows[name]["steps"] for name in expected} == expected
    assert rows["dropout"]["parameters"] == rows["deep"]["parameters"] / 2
    assert rows["5 neighbours"]["steps"] is None
    for name in ("one network", "one network, features"):
        assert rows[name]["steps"] == rows["deep"]["steps"] / 2  # its first member
        assert "other_MI_auc" not in rows[name]


def test_one_network_may_choose_among_the_scores_that_ensembles_may(rows):
    """A score of features is not the ensemble's merit: one network has them, too."""
    by_outputs = ("predictive_entropy", "max_probability", "energy", "expected_entropy")
    assert rows["one network"]["score"] in by_outputs
    assert rows["one network, features"]["score"] not in by_outputs
    assert rows["one network, features"]["noise_score_auc"]["mean"] > rows["one network"]["noise_score_auc"]["mean"]


def test_neighbours_by_scikit_learn(rows):
    data = method_runs.digits()
    known = NearestNeighbors(n_neighbors=5).fit(data.train[0])
    inside, *others = (
        known.kneighbors(x)[0][:, -1] for x in (data.test[0], *(data.ood[n] for n in data.groups["other"]))
    )
    areas = [roc_auc_score(np.repeat([0, 1], [len(inside), len(x)]), np.concatenate([inside, x])) for x in others]
    assert rows["5 neighbours"]["other_score_auc"]["mean"] == pytest.approx(np.mean(areas))
    assert "other_MI_auc" not in rows["random forest"]  # one model has no mutual information


def test_train_and_test_and_choosing_and_other_sets_are_disjoint():
    data = method_runs.digits()
    seen = {row.tobytes() for row in data.train[0]}
    assert not any(row.tobytes() in seen for row in data.test[0])
    groups = [set(names) for names in data.groups.values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == len(data.ood)
    assert set(data.train[1]) == set(data.test[1]) == set(range(5))


def test_the_score_is_chosen_on_the_sets_that_may_choose():
    data = method_runs.digits()._replace(groups={"noise": ("a",), "choosing": ("b",), "other": ("c",)})
    low, high = np.zeros(9), np.ones(9)

    def judged(**areas):
        return judge_scores("s", low, {name: high if good else -high for name, good in areas.items()}).ood

    first, second = judged(a=True, b=True, c=False), judged(a=True, b=False, c=True)
    merged = [
        dataclasses.replace(one, by_score={"first": one.by_score["s"], "second": other.by_score["s"]})
        for one, other in zip(first, second, strict=True)
    ]
    evaluation = dataclasses.replace(judge_scores("s", low, {}), ood=tuple(merged))
    assert methods.chosen(data.groups, [evaluation]) == "first"  # though the second is better on the other sets
    assert methods.figure(data.groups["other"], [evaluation], "first", "auc").mean == 0
    assert methods.figure(data.groups["other"], [evaluation], "unknown", "auc") is None
