import math
import pickle

import numpy as np
import pytest
import torch

import greedy_ensembles as ge
from greedy_ensembles.method import METHODS
from greedy_ensembles.runs.notes import (
    exploded_members,
    guessing,
    idle_members,
    non_finite,
    training_notes,
    weak_members,
)

HOW = ("greedy, lambda_M = 3", "concurrent", 7, 0.1)


def test_data_method_and_accuracy():
    data = {"name": "mnist", "images": 60_000, "note": "half of it"}
    members = [{"validation_accuracy": 0.99}, {"validation_accuracy": 0.985}]
    assert training_notes(*HOW, data, members) == {
        "Data": "mnist, 60,000 images (half of it)",
        "Training": "greedy, lambda_M = 3; concurrent schedule, seed 7",
        "Validation accuracy": "98.50% to 99.00% a member, on 10% of the examples, held out",
    }


@pytest.mark.parametrize(("at_once", "groups"), [(2, " in groups of 2"), (3, ""), (None, "")])
def test_groups_are_told(at_once, groups):
    members = [{"number": 1, "origin": "earlier"}, *({"number": number} for number in (2, 3, 4))]
    notes = training_notes(*HOW, None, members, at_once)
    assert f"; concurrent schedule{groups}, seed 7" in notes["Training"]


def test_what_is_not_known_is_not_said():
    notes = training_notes("Deep Ensembles", *HOW[1:], None, [{"number": 1}])
    assert notes == {"Data": "arrays, which have no name", "Training": "Deep Ensembles; concurrent schedule, seed 7"}


def test_the_card_of_a_trained_ensemble_has_them_from_memory_and_from_a_folder(blobs, make_model, quick, tmp_path):
    def lines(ensemble, name):
        ensemble.save(tmp_path / name, notes={"Test accuracy": 0.5})
        return (tmp_path / name / "README.md").read_text()

    options = {**quick, "validation": 0.25}
    in_memory = lines(ge.fit(make_model, blobs, size=2, strength=1.0, **options), "memory")
    ge.fit(make_model, blobs, size=2, strength=1.0, run_dir=tmp_path / "run", **options)
    from_folder = lines(ge.load_run(tmp_path / "run", make_model).ensemble, "folder")
    for text in (in_memory, from_folder):
        assert "| Training | greedy, lambda_M = 1; sequential schedule, seed 0 |" in text
        assert "held out |" in text
        assert "| Test accuracy | 0.5 |" in text
    assert from_folder == in_memory
    assert lines(ge.load_run(tmp_path / "folder", make_model).ensemble, "again") == from_folder


def test_notes_stay_with_an_ensemble_wherever_it_goes(blobs, make_model, quick, tmp_path):
    ensemble = ge.fit(make_model, blobs, size=3, strength=1.0, **quick)
    assert set(ensemble.notes) == {"Data", "Training", "Validation accuracy"}
    ensemble.save(tmp_path / "saved", notes={"Test accuracy": 0.5})
    loaded = ge.Ensemble.load(tmp_path / "saved", make_model)
    assert loaded.notes == {**ensemble.notes, "Test accuracy": "0.5"}
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == (tmp_path / "saved" / "README.md").read_text()
    assert ensemble[1:].notes == {**ensemble.notes, "Part": "2 of the members of which this is said"}
    assert ensemble[:].notes == ensemble.notes


def test_members_that_were_there_before_are_told_apart(blobs, make_model, quick):
    first = ge.fit(make_model, blobs, size=2, strength=1.0, **quick)
    more = ge.fit(make_model, blobs, size=3, strength=1.0, earlier=first, **{**quick, "validation": 0.25})
    assert more.notes["Training"].endswith("; 2 of the members were there before, from elsewhere")
    assert "% a member that was trained here, on 25% of the examples" in more.notes["Validation accuracy"]


def test_the_card_of_an_estimator():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).numpy()
    fitted = ge.GreedyEnsembleClassifier(size=2, hidden=(4,), recipe=ge.Recipe(epochs=1), device="cpu")
    notes = pickle.loads(pickle.dumps(fitted.fit(x, x[:, 0] > 0))).ensemble_.notes
    assert notes["Data"] == "a table of 40 rows and 3 columns"
    assert notes["Training"].startswith("greedy, lambda_M = 1")


def of(*accuracies):
    return [{"number": number, "validation_accuracy": share} for number, share in enumerate(accuracies, start=1)]


@pytest.mark.parametrize("held_out", [100, 1000])
def test_members_clearly_below_the_best_are_named(held_out):
    told = weak_members(of(0.98, 0.67, 0.98, 0.84, 0.97), held_out)
    assert told == (
        f"members 2, 4 are right on 67.00%, 84.00% of the {held_out:,} held-out examples, and the best member on 98.00%"
    )


def test_one_good_member_among_weak_ones_is_the_measure():
    assert weak_members(of(0.95, 0.6, 0.6, 0.6), 200).startswith("members 2, 3, 4 are right on")


def test_a_member_at_chance_is_told_of_few_examples():
    assert weak_members(of(0.9, 0.1, 0.9), 30).startswith("member 2 is right on 10.00%")


@pytest.mark.parametrize(
    ("accuracies", "held_out"),
    [((0.95, 0.94), 1_000_000), ((0.98, 0.93), 100), ((), 1000), ((0.9,), 1000), ((None, None), 1000)],
)
def test_others_are_not(accuracies, held_out):
    assert weak_members(of(*accuracies), held_out) == ""


@pytest.mark.parametrize("size", [2, 3, 5, 15])
@pytest.mark.parametrize("accuracy", [0.5, 0.8, 0.95, 0.99])
@pytest.mark.parametrize("held_out", [30, 100, 1000, 10_000])
def test_members_that_differ_by_chance_are_told_in_less_than_one_of_a_hundred_ensembles(size, accuracy, held_out):
    counts = np.random.default_rng([size, int(100 * accuracy), held_out]).binomial(held_out, accuracy, (2000, size))
    told = sum(bool(weak_members(of(*shares), held_out)) for shares in (counts / held_out).tolist())
    assert told < 20


class Deaf(torch.nn.Linear):
    def forward(self, x):
        return 0 * super().forward(x)


def test_training_tells_of_them(quick):
    x = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0))
    data, made = (x, (x[:, 0] > 0).long()), []

    def make_model():
        made.append(Deaf if len(made) == 2 else torch.nn.Linear)
        return made[-1](2, 2)

    with pytest.warns(UserWarning, match=r"member \d .*% of the 200 .*help: a smaller strength"):
        ge.fit(make_model, data, size=3, strength=1.0, **{**quick, "validation": 0.2})
    made.clear()
    with pytest.warns(UserWarning, match=r"member 2 learnt .*member 2 is right .*help: another lr.*more epochs"):
        ge.fit(make_model, data, size=3, method="deep", **{**quick, "validation": 0.2})


@pytest.mark.parametrize(
    ("method", "number", "coupled"),
    [("greedy", 1, False), ("greedy", 2, True), ("repulsive", 1, True), ("repulsive", 2, True), ("deep", 2, False)],
)
def test_a_smaller_strength_is_advised_where_a_member_meets_others(method, number, coupled):
    told = non_finite(number, 3, 1, math.nan, METHODS[method](), "logits", "")
    assert ("a smaller strength" in told) == ("distance='probabilities'" in told) == coupled
    assert ("lambda_M = 1" in told) == (method != "deep")


def ended_with(*losses, accuracy=None):
    return [{"number": k, "last_loss": loss, "validation_accuracy": accuracy} for k, loss in enumerate(losses, 1)]


def test_losses_that_exploded_are_told_of():
    told = exploded_members(ended_with(0.3, 13797.0, 2.2, accuracy=0.9), [40, 40, 20], 100)
    assert told.startswith("the loss of member 2 exploded: at the end its mean is 13797,")
    assert "members 1, 2" in exploded_members(ended_with(5.0, 6.0, 3.4), [50, 50])
    assert exploded_members(ended_with(3.4, 0.0, accuracy=0.9), [50, 50]) == ""
    assert "member 1" in exploded_members(ended_with(0.5, 0.3), [50, 50], weights=[5.0, 5.0])  # an example weighs .1
    # A short training: its last epoch may hold its first steps, so it must be wrong as well.
    assert exploded_members(ended_with(4.0, accuracy=0.9), [50, 50], 100, long=False) == ""
    assert "member 1" in exploded_members(ended_with(4.0, accuracy=0.55), [50, 50], 100, long=False)
    assert exploded_members(ended_with(4.0), [50, 50], 0, long=False) == ""  # nobody knows


@pytest.mark.parametrize("accuracy", [None, 0.52])
def test_losses_of_guessing_are_told_of_once_there_was_time_to_learn(accuracy):
    at_chance = ended_with(0.6931, 0.2, 0.69, accuracy=accuracy)
    told = idle_members(at_chance, [50, 50], 100)
    assert told.startswith("members 1, 3 learnt next to nothing")
    assert idle_members(at_chance, [50, 50], 100, long=False) == ""


def test_a_guess_that_weights_make_nearly_right_is_no_sign_of_idleness():
    for weights, share in (([50.0, 50.0], 0.5), ([5.0, 5.0], 0.5), ([97.0, 3.0], 0.97), ([9.99, 0.01], 0.999)):
        entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
        told = idle_members(ended_with(sum(weights) / 100 * entropy), [50, 50], 100, weights=weights)
        assert told.startswith("member 1 learnt next to nothing") == (share < 0.98)


def test_a_guess_that_looks_at_no_input_is_the_share_of_each_class():
    """The least mean of w_i times the cross-entropy, over all guesses on a fine grid."""
    counts, weights = [30, 50, 20], [60.0, 10.0, 20.0]
    grid = torch.linspace(0.01, 0.98, 98)
    guesses = torch.cartesian_prod(grid, grid)
    guesses = torch.cat([guesses, 1 - guesses.sum(dim=1, keepdim=True)], dim=1)
    logs = guesses[guesses[:, 2] > 0.005].log()
    for masses, found in ((counts, guessing(counts)), (weights, guessing(counts, weights))):
        least = -(logs * torch.tensor(masses)).sum(dim=1).max() / sum(counts)
        assert found == pytest.approx(float(least), rel=1e-3)


def test_a_member_that_is_right_or_has_no_loss_to_judge_by_has_not_failed():
    assert idle_members(ended_with(0.8, accuracy=0.9), [50, 50], 100) == ""  # as with much dropout
    assert idle_members(ended_with(0.5, accuracy=0.8), [80, 20], 100) != ""  # the share of a class
    assert idle_members(ended_with(0.45, accuracy=0.8), [80, 20], 100) == ""
    for accuracy, idle in ((0.59, True), (0.61, False)):  # two standard errors of a half are .1
        assert bool(idle_members(ended_with(0.7, accuracy=accuracy), [50, 50], 100)) == idle
    for accuracy, idle in ((0.87, True), (0.89, False)):  # and of .8 they are .08
        assert bool(idle_members(ended_with(0.5, accuracy=accuracy), [80, 20], 100)) == idle
    earlier = [{"number": 1, "origin": "earlier"}]  # so are folders of version 0.1
    assert idle_members(earlier, [50, 50], 100) == exploded_members(earlier, [50, 50]) == ""
    assert idle_members(ended_with(0.0), [50, 0], 0) == ""
