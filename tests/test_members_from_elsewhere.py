"""Members that were not trained here: all that an ensemble can do, and further members trained against them."""

import copy

import pytest
import torch
from torch import nn

import greedy_ensembles as ge


def with_batchnorm():
    return nn.Sequential(nn.Linear(2, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 2))


class Reader(nn.Module):
    """A classifier of another kind, in double precision, with a buffer and parameters that do not learn."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.randn(2, dtype=torch.float64))
        self.layer = nn.Linear(2, 2, dtype=torch.float64).requires_grad_(False)

    def forward(self, x):
        return self.layer(x + self.shift)


@pytest.fixture
def members(blobs):
    x, y = blobs
    torch.manual_seed(3)
    trained = with_batchnorm()
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
    return [trained, Reader()]


def states(modules):
    return [{name: value.clone() for name, value in module.state_dict().items()} for module in modules]


def same(a, b):
    return all(x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x) for x, y in zip(a, b, strict=True))


def test_they_predict_and_say_how_sure_they_are(members, blobs):
    x, _ = blobs
    ensemble = ge.Ensemble.from_members(iter(members))
    assert ensemble[0] is members[0]  # not copied
    assert not any(member.training for member in members)
    with torch.no_grad():
        expected = torch.stack([members[0](x).softmax(1).double(), members[1](x.double()).softmax(1)])
    torch.testing.assert_close(ensemble.predict_proba(x), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ensemble.uncertainty(x).epistemic, ge.metrics.mutual_information(expected))


def test_members_of_several_kinds_are_saved_loaded_and_exported(members, blobs, tmp_path):
    x, _ = blobs
    ensemble = ge.Ensemble.from_members(members, normalize=(0.5, 2.0))
    ensemble.save(tmp_path / "saved")
    assert "1 x torch.nn.modules.container.Sequential, 1 x" in (tmp_path / "saved" / "README.md").read_text()
    kinds = iter([with_batchnorm, Reader])
    loaded = ge.Ensemble.load(tmp_path / "saved", lambda: next(kinds)())
    assert torch.equal(loaded.predict_proba(x), ensemble.predict_proba(x))
    ensemble.export_torch(tmp_path / "all.pt2", x)
    outputs = torch.export.load(tmp_path / "all.pt2").module()(x)
    torch.testing.assert_close(outputs["epistemic"], ensemble.uncertainty(x).epistemic)


def test_further_members_are_trained_against_them_and_leave_them_alone(members, blobs, make_model, quick):
    mine = ge.Ensemble.from_members(members)
    before = states(members)
    fit = {"size": 3, "strength": 30.0, **quick}
    three = ge.fit(make_model, blobs, earlier=mine, **fit)
    assert [three[0], three[1]] == members
    assert same(states(members), before)
    assert not any(member.training for member in members)
    assert all(p.grad is None for p in members[1].parameters())
    # The third member heard of them: with others in their place it comes out differently; with copies it does not.
    copies = ge.fit(make_model, blobs, earlier=ge.Ensemble.from_members(copy.deepcopy(members)), **fit)
    torch.manual_seed(9)
    others = ge.fit(make_model, blobs, earlier=ge.Ensemble.from_members([with_batchnorm(), Reader()]), **fit)
    assert same(states([three[2]]), states([copies[2]]))
    assert not same(states([three[2]]), states([others[2]]))


@pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")  # at a price, on the data
def test_the_further_member_differs_from_them_where_p_star_looks(members, blobs, make_model):
    x, _ = blobs
    recipe = ge.Recipe(epochs=40, batch_size=16)
    far = ge.weighting.Gaussian.from_data(x).sample(200, torch.Generator().manual_seed(5))
    mine = ge.Ensemble.from_members(members[:1])
    distances = []
    for strength in (0.0, 20.0):
        options = {"earlier": mine, "recipe": recipe, "progress": False, "device": "cpu", "validation": 0.0}
        probs = ge.fit(make_model, blobs, size=2, strength=strength, **options).predict_proba(far)
        distances.append((probs[0] - probs[1]).square().sum(dim=1).mean())
    assert distances[1] > distances[0] + 0.5


def test_a_run_folder_takes_them_in(members, blobs, make_model, quick, tmp_path):
    mine = ge.Ensemble.from_members(members)
    fit = {"size": 3, "strength": 1.0, "run_dir": tmp_path / "run", **quick}
    three = ge.fit(make_model, blobs, earlier=mine, **fit)
    kinds = iter([with_batchnorm, Reader, make_model])
    run = ge.load_run(tmp_path / "run", lambda: next(kinds)())
    assert [facts.get("origin") for facts in run.members] == ["earlier", "earlier", None]
    assert torch.equal(run.ensemble.predict_proba(blobs[0]), three.predict_proba(blobs[0]))
    again = ge.fit(make_model, blobs, earlier=mine, **fit)
    assert torch.equal(again.predict_proba(blobs[0]), three.predict_proba(blobs[0]))
