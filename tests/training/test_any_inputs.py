"""Dict and tuple inputs, and models that return an object with logits: through training, prediction and files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.training.members import all_same
from torch import nn
from torch.utils.data import DataLoader, Dataset

import greedy_ensembles as ge

GENERATOR = torch.Generator().manual_seed(3)
Y = torch.arange(40) % 2
TABLE = torch.randn(40, 3, generator=GENERATOR) + Y[:, None]
TOKENS = torch.randint(5, (40, 4), generator=GENERATOR)
DICT = {"table": TABLE, "tokens": TOKENS}


class Plain(nn.Module):
    """A table and tokens in one tensor, as models of one tensor have to take them."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(5, 2), nn.BatchNorm1d(11), nn.Linear(11, 2)

    def forward(self, x):
        return self.both(x[:, :3], x[:, 3:].long())

    def both(self, table, tokens):
        return self.head(self.norm(torch.cat([table, self.embed(tokens).flatten(1)], dim=1)))


class ByName(Plain):
    def forward(self, *, tokens, table):
        return SimpleNamespace(logits=self.both(table, tokens), loss=None)


class ByPlace(Plain):
    def forward(self, table, tokens):
        return self.both(table, tokens)


class Items(Dataset):
    """Items of a data set as users have them: of a dict with labels in it, as Hugging Face does, or of pairs."""

    def __init__(self, x, labelled):
        self.x, self.labelled = x, labelled

    def __len__(self):
        return 40

    def __getitem__(self, i):
        if isinstance(self.x, dict):
            item = {name: value[i] for name, value in self.x.items()}
            return {**item, "labels": int(Y[i])} if self.labelled else item
        item = tuple(value[i] for value in self.x)
        return (item, int(Y[i])) if self.labelled else item


def fit(make_model, data, weighting, **changes):
    recipe = ge.Recipe(epochs=2, batch_size=16)
    options = {"size": 2, "strength": 2.0, "recipe": recipe, "progress": False, "device": "cpu"}
    return ge.fit(make_model, data, weighting=weighting, **options | changes)


@pytest.fixture(scope="module")
def reference():
    x = torch.cat([TABLE, TOKENS], dim=1)
    return fit(Plain, (x, Y), ge.weighting.FromData(x))


@pytest.fixture(scope="module")
def by_name():
    return fit(ByName, (DICT, Y), ge.weighting.FromData(DICT))


KINDS = {
    "dict": (ByName, DICT),
    "tuple": (ByPlace, (TABLE, TOKENS)),
    "arrays": (ByPlace, (TABLE.numpy(), TOKENS.numpy())),
}


@pytest.mark.parametrize("kind", KINDS)
def test_entries_train_and_predict_as_one_tensor_of_all_of_them_does(reference, kind):
    model, x = KINDS[kind]
    ensemble = fit(model, (x, Y), ge.weighting.FromData(x))
    assert all_same(ensemble, reference)
    expected = reference.predict_proba(torch.cat([TABLE, TOKENS], dim=1))
    for given in (x, (x, Y), Items(x, labelled=False), DataLoader(Items(x, labelled=True), batch_size=7)):
        torch.testing.assert_close(ensemble.predict_proba(given), expected)
    assert torch.equal(ensemble.uncertainty(x).epistemic, ge.metrics.mutual_information(ensemble.predict_proba(x)))


@pytest.mark.parametrize("x", [DICT, (TABLE, TOKENS)], ids=["dict", "tuple"])
def test_a_dataset_of_entries_trains_like_the_arrays_in_it(reference, x):
    model = ByName if isinstance(x, dict) else ByPlace
    assert all_same(fit(model, Items(x, labelled=True), ge.weighting.FromData(x)), reference)


def test_members_that_train_together_meet_on_entries_too():
    x = torch.cat([TABLE, TOKENS], dim=1)
    options = {"schedule": "concurrent", "validation": (DICT, Y)}
    together = fit(ByName, (DICT, Y), ge.weighting.FromData(DICT), **options)
    plain = fit(Plain, (x, Y), ge.weighting.FromData(x), **options | {"validation": (x, Y)})
    assert all_same(together, plain)


def test_a_saved_ensemble_and_a_run_know_their_entries(by_name, tmp_path):
    by_name.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", ByName)
    run = fit(ByName, (DICT, Y), ge.weighting.FromData(DICT), run_dir=tmp_path / "run", size=1)
    run = fit(ByName, (DICT, Y), ge.weighting.FromData(DICT), run_dir=tmp_path / "run")  # extended
    again = ge.load_run(tmp_path / "run", ByName).ensemble
    for one in (loaded, again):
        assert one.inputs == by_name.inputs
        assert set(one.inputs) == {"table", "tokens"}
    assert torch.equal(loaded.predict_proba(DICT), by_name.predict_proba(DICT))
    assert torch.equal(again.predict_proba(DICT), run.predict_proba(DICT))
    swapped = {"table": TABLE, "tokens": TOKENS.flip(0)}
    with pytest.raises(ge.FolderError, match="data"):
        fit(ByName, (swapped, Y), ge.weighting.FromData(DICT), run_dir=tmp_path / "run")


def test_graphs_take_entries_by_their_names(by_name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    expected = by_name.predict_proba(DICT).mean(dim=0)
    by_name.export_torch(tmp_path / "e.pt2")
    found = torch.export.load(tmp_path / "e.pt2").module()(DICT)["probabilities"]
    torch.testing.assert_close(found, expected)
    by_name.export_onnx(tmp_path / "e.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "e.onnx")
    found = session.run(["probabilities"], {name: value.numpy() for name, value in DICT.items()})[0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"table": TABLE}, "same entries"),
        ({**DICT, "more": TABLE}, "same entries"),
        ((TABLE, TOKENS), "same entries"),
        (TABLE, "same entries"),
        ({**DICT, "tokens": TOKENS.float()}, r"x\['tokens'\] holds float32"),
        ({**DICT, "tokens": TOKENS[:, :2]}, r"x\['tokens'\] holds int64 of shape \(2,\)"),
        ({**DICT, "table": TABLE / 0}, r"x\['table'\] holds NaN"),
    ],
)
def test_other_entries_than_those_trained_on_are_refused(by_name, x, message):
    with pytest.raises(ValueError, match=message):
        by_name.predict_proba(x)


TWO = {name: ge.weighting.FromData(value) for name, value in DICT.items()}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": None}, r"weighting\.Shuffled"),
        ({"weighting": ge.weighting.FromData(TABLE)}, "samples of weighting"),
        ({"weighting": {"table": TWO["table"]}}, "samples of weighting"),
        ({"weighting": {**TWO, "tokens": ge.weighting.Tokens(5, 3)}}, r"for x\['tokens'\] should have shape \(2, 4\)"),
        ({"data": ({**DICT, "tokens": TOKENS[:9]}, Y)}, r"x\['tokens'\] has 9 examples"),
        ({"data": ({**DICT, "table": TABLE / 0}, Y)}, "NaN"),
        ({"data": ({}, Y)}, "at least one entry"),
        ({"validation": ({"table": TABLE}, Y)}, "validation holds"),
        ({"recipe": ge.Recipe(normalize=(0.0, 1.0))}, "normalize is for inputs of one tensor"),
        ({"recipe": ge.Recipe(augment="flip_crop")}, "augment must return what the model takes, .* a dict"),
    ],
)
def test_entries_that_will_not_do_are_refused_before_training(changes, message):
    def never(event):
        raise AssertionError("it trained")

    arguments = {"data": (DICT, Y), "weighting": TWO, "callbacks": [never]} | changes
    with pytest.raises(ValueError, match=message):
        fit(ByName, **arguments)


def test_every_entry_may_have_a_weighting_of_its_own():
    assert len(fit(ByName, (DICT, Y), {**TWO, "tokens": ge.weighting.Tokens(5, 4)})) == 2
    assert len(fit(ByPlace, ((TABLE, TOKENS), Y), (TWO["table"], TWO["tokens"]))) == 2


def test_flags_and_evaluations_take_entries(by_name):
    found = by_name.calibrate(DICT, fpr=0.1)
    scores = ge.metrics.mutual_information(by_name.predict_proba(DICT).double())
    assert torch.equal(by_name.flag(DICT), scores >= found.threshold)
    shuffled = ge.weighting.Shuffled(DICT).sample(30, torch.Generator().manual_seed(0))
    evaluated = ge.benchmark.evaluate(by_name, (DICT, Y), {"shuffled": shuffled})
    assert (evaluated.in_domain.images, evaluated.ood[0].images) == (40, 30)
    right = by_name.predict_proba(DICT).mean(dim=0).argmax(dim=1) == Y
    assert evaluated.in_domain.accuracy == pytest.approx(right.double().mean().item())


class OfAge(nn.Module):
    """A table, and a number an input, which it can do without."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, table, age=None):
        age = torch.zeros(len(table)) if age is None else age
        return self.head(torch.cat([table, age[:, None]], dim=1))


@pytest.mark.parametrize("named", [False, True], ids=["tuple", "dict"])
def test_an_entry_of_one_number_an_input_stays(named, tmp_path):
    age = torch.randn(40, generator=torch.Generator().manual_seed(0))
    x = {"table": TABLE, "age": age} if named else (TABLE, age)
    p_star = (ge.weighting.Gaussian.from_data(TABLE), ge.weighting.Gaussian(0.0, 1.0))
    p_star = dict(zip(x, p_star, strict=True)) if named else p_star
    options = {"weighting": p_star, "recipe": ge.Recipe(epochs=2), "progress": False, "device": "cpu"}
    ensemble = ge.fit(OfAge, (x, (age > 0).long()), size=2, **options)
    by_hand = torch.stack([member(TABLE, age).softmax(dim=1) for member in ensemble])
    ensemble.save(tmp_path / "saved")
    loaded = ge.Ensemble.load(tmp_path / "saved", OfAge)
    assert loaded.inputs == ensemble.inputs
    for one in (ensemble, loaded):
        torch.testing.assert_close(one.predict_proba(x), by_hand)
    elsewhere = ge.Ensemble.from_members(list(ensemble))  # which knows no inputs
    torch.testing.assert_close(elsewhere.predict_proba({"table": TABLE, "age": age}), by_hand)
    with pytest.raises(ValueError, match="a dict of them by the names"):
        elsewhere.predict_proba((TABLE, age))
    plain = ge.Ensemble.from_members([nn.Linear(3, 2)])
    words = ["a", "b"] * 20  # labels of any kind are left out
    assert torch.equal(plain.predict_proba((TABLE, words)), plain.predict_proba(TABLE))
