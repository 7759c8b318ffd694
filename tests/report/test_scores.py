import numpy as np
import pytest

from greedy_ensembles.report.scores import average_scores, describe_score, mean_over_seeds


def test_the_mean_is_over_seeds_and_not_over_images():
    scores = np.array([[0.0, 1.0, 2.0], [1.0, 3.0, 6.0]])
    assert mean_over_seeds(scores).tolist() == [0.5, 2, 4]


def test_the_mean_of_single_precision_is_taken_in_double():
    scores = np.array([[1.0], [2**-25]], dtype=np.float32)
    assert float(mean_over_seeds(scores)[0]) == (1 + 2**-25) / 2


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 3, 4)), np.ones((0, 3)), np.ones((3, 0)), [[1.0, 2.0]]])
def test_other_shapes_are_refused(bad):
    with pytest.raises(ValueError, match=r"must be an array \(seeds, images\)"):
        mean_over_seeds(bad)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_message_says_whose_scores_are_bad(bad):
    good, poor = np.ones((2, 3)), np.array([[0.0, bad, 1.0]])
    with pytest.raises(ValueError, match="ood_scores of greedy must be finite, got 1"):
        average_scores({"deep": (good, good), "greedy": (good, poor)})
    with pytest.raises(ValueError, match="id_scores of deep must be floating-point, got int64"):
        average_scores({"deep": (np.ones((1, 3), dtype=np.int64), good)})


def test_methods_must_have_scored_the_same_images():
    one, two = np.ones((1, 3)), np.ones((1, 4))
    with pytest.raises(ValueError, match=r"same images for every method.*'b': \(3, 4\)"):
        average_scores({"a": (one, one), "b": (one, two)})
    with pytest.raises(ValueError, match="at least one method"):
        average_scores({})


@pytest.mark.parametrize("bad", [np.ones((2, 3)), (np.ones((1, 3)),), None])
def test_what_is_no_pair_is_refused(bad):
    with pytest.raises(TypeError, match=r"scores of greedy must be a pair \(id_scores, ood_scores\), got"):
        average_scores({"greedy": bad})


def test_captions_say_what_was_averaged():
    one, five = np.ones((1, 3)), np.ones((5, 3))
    assert describe_score({"a": (one, one)}, "MI (nats)") == "MI (nats) of 1 seed"
    assert describe_score({"a": (five, five)}, "MI") == "MI of 5 seeds, averaged over seeds for each image"
    assert describe_score({"a": (five, five), "b": (one, one)}, "MI").startswith("MI of 1 to 5 seeds, averaged")
