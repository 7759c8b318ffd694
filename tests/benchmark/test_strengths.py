"""`ge.select`, from training to the choice."""

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import greedy_ensembles as ge
from greedy_ensembles.training.validate import split

# Three epochs leave some members behind, which is no matter here.
pytestmark = pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")


@pytest.fixture
def easy():
    x = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def fast(quick):
    recipe = ge.Recipe(epochs=3, batch_size=8)
    return {**quick, "recipe": recipe, "size": 2, "strengths": [3, 1.0], "seeds": 2, "validation": 0.2}


def test_figures_are_those_of_the_held_out_examples(easy, make_model, fast):
    found = ge.select(make_model, easy, **fast)
    assert [trial.strength for trial in found.trials] == [1.0, 3.0]
    assert set(found.ensembles) == {None, 1.0, 3.0}
    x, y = easy
    for strength, trial in ((None, found.deep), (3.0, found.trials[1])):
        accuracies = []
        for seed, ensemble in zip((0, 2), found.ensembles[strength], strict=True):
            held = split(y, 0.2, seed)[1]
            probs = ensemble.predict_proba(x[held])
            accuracies.append(float((probs.mean(0).argmax(1) == y[held]).double().mean()))
            assert trial.members[seed // 2] == pytest.approx((probs.argmax(2) == y[held]).double().mean(1).tolist())
        assert trial.accuracy.mean == pytest.approx(sum(accuracies) / 2)
        assert trial.examples == 60
    plain = ge.fit(make_model, easy, size=2, strength=3.0, seed=2, validation=0.2, recipe=fast["recipe"],
                   progress=False, device="cpu")  # fmt: skip
    assert torch.equal(plain.predict_proba(x), found.ensembles[3.0][1].predict_proba(x))
    assert str(found).splitlines()[-1] == found.verdict


def test_what_is_in_the_folder_is_not_trained_again(easy, make_model, fast, tmp_path):
    epochs = []
    first = ge.select(make_model, easy, **fast, run_dir=tmp_path / "runs", callbacks=[epochs.append])
    assert len(epochs) == 3 * 2 * 2 * 3
    assert len(list((tmp_path / "runs").glob("*/run.json"))) == 6
    again = ge.select(make_model, easy, **fast, run_dir=tmp_path / "runs", callbacks=[epochs.append])
    assert len(epochs) == 36
    assert again == first
    more = ge.select(make_model, easy, **{**fast, "seeds": [0, 2, 6]}, run_dir=tmp_path / "runs",
                     callbacks=[epochs.append])  # fmt: skip
    assert len(epochs) == 36 + 18
    assert more.deep.accuracy.seeds == 3


def test_validation_may_be_data_of_its_own(easy, make_model, fast):
    x, y = easy
    found = ge.select(make_model, (x[:200], y[:200]), **{**fast, "validation": (x[200:], y[200:])})
    assert found.deep.examples == 100


def test_loaders_are_data_and_held_out_data(easy, make_model, fast):
    pairs = TensorDataset(*easy)
    learnt, apart = Subset(pairs, range(200)), Subset(pairs, range(200, 300))
    found, expected = (
        ge.select(make_model, DataLoader(learnt, batch_size=8, shuffle=True), **{**fast, "validation": held_out})
        for held_out in (DataLoader(apart, batch_size=8, shuffle=True), apart)
    )
    for own, other in zip(found.trials, expected.trials, strict=True):
        assert (own.strength, own.examples, own.members) == (other.strength, 100, other.members)
        assert own.nll.mean == pytest.approx(other.nll.mean)  # of the same examples, in another order
    with pytest.raises(ValueError, match="a DataLoader cannot be split; give validation"):
        ge.select(make_model, DataLoader(learnt, batch_size=8), **fast)


def test_a_strength_that_diverges_does_harm(easy, make_model, fast):
    found = ge.select(make_model, easy, **{**fast, "strengths": [1.0, 1e30]}, distance="logits")
    assert "range of numbers" in found.harms[1e30]
    assert found.harmless in [(), (1.0,)]


class Alone(ge.Coupling):
    label = "alone"
    sees = "none"

    def terms(self, live, bank):
        raise AssertionError("members do not meet")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seeds": [0, 1]}, ValueError, "seeds must be at least 2 apart"),
        ({"seeds": 1}, ValueError, "seeds must be two or more"),
        ({"validation": 0}, ValueError, "holds out nothing"),
        ({"recipe": 3}, TypeError, "recipe must be a ge.Recipe"),
        ({"on": "processes"}, ValueError, "on='processes' needs run_dir"),
        ({"size": 1}, ValueError, "size must be at least 2, got 1.* lambda_M"),
        ({"method": "deep"}, ValueError, "method='deep' has no lambda_M"),
        ({"method": "snapshot"}, ValueError, "method='snapshot' has no lambda_M"),
        ({"method": Alone()}, ValueError, "method=.*Alone.* has no lambda_M"),
        ({"method": "gredy"}, ValueError, "did you mean 'greedy'"),
        ({"strength": 1.0}, TypeError, "select has no argument strength"),
    ],
)
def test_bad_arguments(easy, make_model, fast, changes, error, message):
    epochs = []
    with pytest.raises(error, match=message):
        ge.select(make_model, easy, **{**fast, "callbacks": [epochs.append], **changes})
    assert not epochs
