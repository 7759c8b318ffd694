import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.benchmark.evaluation import Estimate
from greedy_ensembles.paper.gather import gather
from greedy_ensembles.paper.reading import compared, read
from greedy_ensembles.paper.studies import STUDIES
from greedy_ensembles.paper.study import Case, Protocol, Section, Target

DEEP = {"uniform": 0.5, "gaussian": 0.7, "dtd": 0.8, "mine": 0.9}
GREEDY = {"uniform": 0.9, "gaussian": 0.704, "dtd": 0.6, "mine": 0.95}


@pytest.fixture
def read_study(shelf_with):
    def sentences(study, deep=DEEP, greedy=GREEDY, accuracies=(0.9, 0.91), spread=0.0, but=()):
        def figures(job):
            areas, accuracy = (deep, accuracies[0]) if job.case.strength is None else (greedy, accuracies[1])
            moved = {name: area + spread * (1 if job.seed else -1) for name, area in areas.items()}
            return {"areas": moved, "accuracy": accuracy}

        (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol(), but, figures))
        return read(gathered)

    return sentences


def test_sets_are_counted_as_ahead_level_and_behind(read_study, tiny):
    sentence = read_study(tiny)[0]
    assert "AUC on 4 sets: ahead on 2 (uniform, mine), level on 1 (gaussian), behind on 1 (dtd)" in sentence
    assert "mean of 2 synthetic +0.202; mean of 2 natural -0.075; mean of 4 sets +0.064" in sentence
    assert "Accuracy +1.00 points" in sentence


def test_differences_within_the_standard_errors_are_none(read_study, tiny):
    sentence = read_study(tiny, spread=0.06)[0]  # a standard error of .06 for each
    assert "ahead on 1 (uniform), level on 2 (gaussian, mine), behind on 1 (dtd)" in sentence


@given(*[st.floats(0, 1)] * 2, *[st.floats(0, 0.2)] * 2)
def test_whoever_is_ahead_the_other_is_behind(one, other, error, other_error):
    a, b = Estimate(one, error, 3), Estimate(other, other_error, 3)
    assert compared(a, b) == -compared(b, a)
    assert compared(a, a) == 0
    if compared(a, b) == 1:
        assert one - other > max(error + other_error, 0.005)


def test_a_single_seed_is_said_to_be_one(read_study, tiny):
    sentences = read_study(dataclasses.replace(tiny, seeds=1))
    assert "single seed" in sentences[-1]


def test_without_deep_ensembles_nothing_is_compared(read_study, tiny):
    assert "nothing to compare with" in read_study(tiny, but=[0, 2])[0]


def test_the_distance_from_the_paper_is_measured(read_study):
    study = dataclasses.replace(STUDIES["mnist"], sections=STUDIES["mnist"].sections[1:2], seeds=2)
    areas = {"uniform": 0.9, "omniglot": 0.97, "mine": 0.1}
    sentences = read_study(study, deep=areas, greedy=areas)
    (sentence,) = [one for one in sentences if one.startswith("greedy, lambda_M = 0.1 beside the paper")]
    assert "1 of 2 AUC within 0.02" in sentence
    assert "the farthest is uniform (ours 0.900, the paper's 1.00)" in sentence


@pytest.mark.parametrize(
    ("target", "word"),
    [
        (Target("auc", ("uniform", "mine"), least=0.9), "reached"),
        (Target("auc", ("uniform", "dtd"), least=0.9), "MISSED"),
        (Target("auc", ("elsewhere",), least=0.9), "not known to be reached"),
        (Target("auc", ("uniform", "elsewhere"), least=0.9), "not known to be reached"),
        (Target("auc", ("dtd", "elsewhere"), least=0.9), "MISSED"),
        (Target("auc", gain=0.06), "reached"),
        (Target("auc", gain=0.07), "MISSED"),
        (Target("accuracy", least=0.91), "reached"),
        (Target("accuracy", least=0.92), "MISSED"),
        (Target("accuracy", gain=-0.002), "reached"),
    ],
)
def test_targets_are_reached_or_missed(read_study, tiny, target, word):
    section = dataclasses.replace(tiny.sections[0], targets=(target,))
    sentence = read_study(dataclasses.replace(tiny, sections=(section,)))[-1]
    assert sentence.startswith(f"Target {word}")


def test_a_mean_without_sets_that_some_have_reaches_no_target_of_all_sets(read_study, tiny):
    targets = Target("auc", gain=0.0), Target("auc", gain=0.9), Target("auc", ("uniform",), least=0.9)
    section = dataclasses.replace(tiny.sections[0], targets=targets)
    few = {name: area for name, area in GREEDY.items() if name != "dtd"}
    over, under, single = read_study(dataclasses.replace(tiny, sections=(section,)), greedy=few)[-3:]
    assert over.startswith("Target not known to be reached by greedy")
    assert over.endswith("found mean of 3 of 4 sets +0.1513, no dtd.")
    assert under.startswith("Target not known to be reached by greedy")
    assert single.startswith("Target reached by greedy")


def test_an_accuracy_is_asked_of_deep_ensembles_too(read_study, tiny):
    section = dataclasses.replace(tiny.sections[0], targets=(Target("accuracy", least=0.905),))
    first, second = read_study(dataclasses.replace(tiny, sections=(section,)))[-2:]
    assert first.startswith("Target MISSED by Deep Ensembles")
    assert second.startswith("Target reached by greedy")


def test_the_curve_is_told_with_the_choice_that_the_paper_would_make(shelf_with, tiny):
    deep = Case("mnist", "PreResNet8", 2)
    cases = (deep, *(dataclasses.replace(deep, strength=strength) for strength in (1.0, 3.0, 7.0)))
    study = dataclasses.replace(tiny, sections=(Section("curve", cases, curve=True),))
    accuracies = {None: 0.9, 1.0: 0.9, 3.0: 0.8995, 7.0: 0.8}
    figures = lambda job: {"accuracy": accuracies[job.case.strength] + 0.001 * bool(job.seed)}  # noqa: E731
    (gathered,) = gather(study, Protocol(), shelf_with(study, Protocol(), (), figures))
    sentences = " ".join(read(gathered))
    assert "falls (-10.00 points)" in sentences
    assert "Chosen: lambda_M = 3" in sentences


def test_what_diverged_is_told_first(shelf_with, tiny):
    message = "training left the range of numbers. Try a smaller lr"
    figures = lambda job: {"message": message} if job.case.strength else {}  # noqa: E731
    (gathered,) = gather(tiny, Protocol(), shelf_with(tiny, Protocol(), (), figures))
    assert read(gathered)[0] == "greedy, lambda_M = 1, seed 0, diverged: training left the range of numbers."
