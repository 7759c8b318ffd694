import copy

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import greedy_ensembles as ge

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 2)).astype(np.float32), RNG.integers(0, 3, 60)
OOD = {"far": 9 * X[:40], "near": X[:30] + 1}


def ensemble(seed=0, members=2, width=2):
    torch.manual_seed(seed)
    return ge.Ensemble([nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3)) for _ in range(members)])


def norm(sets=OOD, x=X):
    sizes = {name: np.linalg.norm(part, axis=1) for name, part in sets.items()}
    return ge.benchmark.judge_scores("norm", np.linalg.norm(x, axis=1), sizes)


def figures(table, method, name, key):
    rows = [row for row in table.rows if (row["method"].value, row["set"].value) == (method, name)]
    (row,) = rows
    return row[key].value.mean


def test_ensembles_and_detectors_stand_in_one_table():
    deep, other = ensemble(0), ensemble(5)
    judged = ge.benchmark.judge_probabilities(
        "served", other.predict_proba(X), Y, {name: other.predict_proba(x) for name, x in OOD.items()}
    )
    table = ge.compare({"deep": deep, "served": judged, "norm": norm()}, (X, Y), OOD)
    expected = ge.benchmark.evaluate(deep, (X, Y), OOD)
    assert figures(table, "deep", "in-domain", "accuracy") == expected.in_domain.accuracy
    assert figures(table, "deep", "in-domain", "lowest_member") == min(expected.in_domain.member_accuracies)
    again = ge.benchmark.evaluate(other, (X, Y), OOD)
    for number, name in enumerate(OOD):
        assert figures(table, "deep", name, "auc") == expected.ood[number].auc
        # Mutual information never stands alone.
        assert (
            figures(table, "deep", name, "auc_predictive_entropy")
            == expected.ood[number].by_score["predictive_entropy"].auc
        )
        assert figures(table, "served", name, "auc") == pytest.approx(
            again.ood[number].by_score["predictive_entropy"].auc, abs=2e-3
        )
        assert figures(table, "served", name, "auc_mutual_information") == pytest.approx(
            again.ood[number].auc, abs=2e-3
        )
        assert figures(table, "norm", name, "auc") == norm().ood[number].auc
    frame = table.to_frame()
    assert (
        frame.loc[(frame.set == "far") & (frame.method == "norm"), ["accuracy", "nll", "auc_mutual_information"]]
        .isna()
        .all(axis=None)
    )
    assert dict(zip(frame.method, frame.score, strict=True))["norm"] == "norm"


def test_repetitions_become_means_with_standard_errors():
    three = [ensemble(seed) for seed in (0, 10, 20)]
    table = ge.compare({"deep": three, "norm": norm()}, (X, Y), OOD, score="energy")
    areas = [ge.benchmark.evaluate(each, (X, Y), OOD, score="energy").ood[0].auc for each in three]
    frame = table.to_frame().set_index(["set", "method"])
    assert frame.loc[("far", "deep"), "auc"] == pytest.approx(np.mean(areas))
    assert frame.loc[("far", "deep"), "auc_standard_error"] == pytest.approx(np.std(areas, ddof=1) / 3**0.5)
    assert frame.loc[("far", "deep"), "seeds"] == 3
    assert np.isnan(frame.loc[("far", "norm"), "auc_standard_error"])


def test_a_second_table_has_all_scores_of_a_method():
    table = ge.compare({"deep": ensemble(), "norm": norm()}, (X, Y), OOD, features="1", reference=(X, Y))
    found = table.scores("deep").to_frame()
    assert list(found.score[found.set == "far"]) == list(ge.benchmark.SCORES)
    by_energy = ge.compare({"deep": ensemble()}, (X, Y), OOD, score={"deep": "energy"})
    (energy,) = found.auc[(found.set == "near") & (found.score == "energy")]
    assert energy == figures(by_energy, "deep", "near", "auc")
    assert list(table.scores("norm").to_frame().score) == ["norm", "norm"]
    with pytest.raises(ValueError, match="did you mean 'deep'"):
        table.scores("deeep")


def test_images_tables_and_tokens():
    pixels = RNG.integers(0, 256, (20, 1, 2, 2), np.uint8)
    images = ge.data.ImageSet(pixels, np.arange(20) % 3, "small")
    model = ge.Ensemble([nn.Sequential(nn.Flatten(), nn.Linear(4, 3)) for _ in range(2)])
    table = ge.compare({"deep": model}, images, {"inverted": ge.data.ImageSet(255 - pixels, None, "inverted")})
    assert [row["set"].value for row in table.rows[:2]] == ["small", "inverted"]
    tokens = RNG.integers(0, 9, (20, 4))
    text = ge.Ensemble([nn.Sequential(nn.EmbeddingBag(9, 3)) for _ in range(2)])
    assert (
        figures(
            ge.compare({"deep": text}, (tokens, np.arange(20) % 3), {"ones": np.ones((5, 4), int)}),
            "deep",
            "ones",
            "auc",
        )
        >= 0
    )
    frame = pd.DataFrame(X, columns=["a", "b"])
    found = ge.compare({"deep": ensemble()}, (frame, Y), {"far": 9 * frame})
    assert figures(found, "deep", "far", "auc") == figures(
        ge.compare({"deep": ensemble()}, (X, Y), {"far": 9 * X}), "deep", "far", "auc"
    )


def test_notes_on_sets_stand_below_the_tables_whichever_method_is_first():
    pixels = RNG.integers(0, 256, (20, 1, 2, 2), np.uint8)
    inside = ge.data.ImageSet(pixels, np.arange(20) % 3, "small", note="a part of it")
    sets = {
        "resized": ge.data.ImageSet(255 - pixels, None, "x", note="resized from 32"),
        "plain": ge.data.ImageSet(pixels // 2, None, "y"),
    }
    flat = {name: given.images.reshape(20, -1) for name, given in sets.items()}
    member = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    for methods in ({"n": norm(flat, pixels.reshape(20, -1))}, {}):
        methods["deep"] = ge.Ensemble([member, member])
        table = ge.compare(methods, inside, sets)
        assert list(table.notes) == ["(a) a part of it", "(b) resized from 32"]
        assert [row["set"].text for row in table.rows[:: len(methods)]][:3] == ["small (a)", "resized (b)", "plain"]
        assert table.to_frame().set[0] == "small"
        assert "<li>(b) resized from 32</li>" in table._repr_html_()
        scores = table.scores("deep")
        assert list(scores.notes) == list(table.notes)
        assert scores.rows[0]["set"].text == "resized (b)"


def test_a_note_says_that_one_member_has_no_mutual_information():
    with pytest.warns(UserWarning, match="one member"):
        table = ge.compare({"one": ensemble(members=1), "norm": norm()}, (X, Y), OOD)
    (note,) = table.notes
    assert note.startswith("one: mutual information of one member")


def test_printed_it_is_readable():
    table = ge.compare({"deep": [ensemble(0), ensemble(5)], "norm": norm()}, (X, Y), OOD)
    for shown in (table, table.scores("deep")):
        text = str(shown)
        assert text == repr(shown)
        assert shown.title in text.splitlines()[0]
        assert "standard error" in text.splitlines()[-1]
        assert len(text) < 5000
        assert "Entry(" not in text


class Silent(nn.Module):
    def forward(self, x):
        raise AssertionError("nothing is to be predicted")


SILENT = ge.Ensemble([nn.Sequential(Silent())])


@pytest.mark.parametrize(
    ("methods", "changes", "error", "named"),
    [
        ({}, {}, TypeError, "methods"),
        ({"a": nn.Linear(2, 2)}, {}, TypeError, r"methods\['a'\] must be an Ensemble"),
        ({"a": ge.GreedyEnsembleClassifier()}, {}, TypeError, r"methods\['a'\] .*ensemble_.* got GreedyEnsembleClas"),
        ({"a": []}, {}, ValueError, r"methods\['a'\] is an empty list"),
        (
            {"a": SILENT, "b": norm({"far": OOD["far"]})},
            {},
            ValueError,
            r"methods\['b'\] has scores of far, and ood has far, near",
        ),
        (
            {"a": SILENT, "b": norm({**OOD, "far": X[:3]})},
            {},
            ValueError,
            r"methods\['b'\] has 3 scores of far, which has 40",
        ),
        ({"a": SILENT, "b": norm(x=X[:7])}, {}, ValueError, r"methods\['b'\] has 7 scores of in-domain, which has 60"),
        ({"a": SILENT}, {"score": "enregy"}, ValueError, "did you mean 'energy'"),
        ({"a": SILENT}, {"score": {"a": "enregy"}}, ValueError, r"score\['a'\] .* did you mean 'energy'"),
        ({"alpha": SILENT}, {"score": {"alhpa": "energy"}}, ValueError, "did you mean 'alpha'"),
        ({"a": SILENT, "b": norm()}, {"score": {"b": "energy"}}, ValueError, r"score\['b'\] must be one of 'norm'"),
        ({"a": SILENT}, {"score": "knn"}, ValueError, "needs features"),
        ({"a": SILENT}, {"features": "layer", "reference": (X, Y)}, ValueError, "features must name a layer"),
        ({"a": SILENT}, {"features": "0"}, ValueError, "go together"),
        ({"a": SILENT}, {"reference": (X, Y)}, ValueError, "go together"),
    ],
)
def test_bad_input_is_refused_before_anything_is_predicted(methods, changes, error, named):
    with pytest.raises(error, match=named):
        ge.compare(methods, (X, Y), OOD, **changes)


def test_sets_that_will_not_do_are_named_before_anything_is_predicted():
    bad = X.copy()
    bad[25] = np.inf
    models = {"a": SILENT, "b": SILENT}
    with pytest.raises(ValueError, match=r"ood\['bad'\]: x holds NaN or infinity, first in input 25"):
        ge.compare(models, (X, Y), {"good": X, "bad": bad})
    with pytest.raises(ValueError, match=r"ood\['in-domain'\] has the name"):
        ge.compare(models, (X, Y), {"in-domain": 9 * X})


def test_repetitions_have_one_score():
    one = ge.benchmark.judge_probabilities(
        "p", np.full((60, 3), 1 / 3), Y, {name: np.full((len(x), 3), 1 / 3) for name, x in OOD.items()}
    )
    with pytest.raises(ValueError, match="name one in score"):
        ge.compare({"a": [one, one.by("max_probability")]}, (X, Y), OOD)


def test_repetitions_share_no_member():
    whole = ensemble(0, members=3)
    copies = ge.Ensemble(copy.deepcopy(list(whole)[1:]))
    for repetitions in ([whole, whole], [whole, whole[:1]], [ensemble(5), whole, copies], [norm(), norm()]):
        with pytest.raises(ValueError, match=r"methods\['a'\] has repetitions that share members"):
            ge.compare({"a": repetitions}, (X, Y), OOD)


def test_all_scores_of_repetitions_are_those_that_all_have():
    probs = {name: ensemble(5).predict_proba(x) for name, x in OOD.items()}
    judged = ge.benchmark.judge_probabilities("p", ensemble(5).predict_proba(X), Y, probs)
    table = ge.compare({"a": [ensemble(0), judged, ensemble(9)[:1]]}, (X, Y), OOD, score={"a": "predictive_entropy"})
    known = {row["score"].value for row in table.scores("a").rows}
    assert "max_probability" in known
    assert known.isdisjoint({"energy", "energy_of_mean"})


def test_a_frame_has_all_figures_each_beside_its_error():
    table = ge.compare({"a": [ensemble(0), ensemble(5)], "norm": norm()}, (X, Y), OOD)
    columns = list(table.to_frame().columns)
    for key in (
        "accuracy",
        "nll",
        "brier",
        "ace",
        "ece",
        "auc",
        "fpr95",
        "auc_energy",
        "auc_energy_of_mean",
        "auc_norm",
    ):
        assert key in columns
        if key != "auc_norm":  # of one repetition
            assert columns[columns.index(key) + 1] == f"{key}_standard_error"


def test_a_stream_is_refused_as_an_ood_set():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(X)

    for stream in (Stream(), DataLoader(Stream(), batch_size=9)):
        with pytest.raises(TypeError, match=r"ood\['far'\]: a stream has no length"):
            ge.compare({"a": SILENT}, (X, Y), {"far": stream})
