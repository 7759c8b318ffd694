import pytest

from greedy_ensembles.checks import check_choice, check_count


def test_a_near_miss_gets_a_suggestion_and_a_far_one_the_list():
    with pytest.raises(
        ValueError, match=r"method must be one of 'deep', 'greedy'; got 'gredy'; did you mean 'greedy'\?"
    ):
        check_choice("method", "gredy", ["deep", "greedy"])
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        check_choice("method", "xyz", ["deep", "greedy"])
    check_choice("method", "deep", ["deep", "greedy"])


def test_counts_are_whole_numbers():
    check_count("size", 1, least=1)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        check_count("size", 0, least=1)
    for wrong in (1.0, "3", True, None):
        with pytest.raises(TypeError, match="size must be a whole number"):
            check_count("size", wrong, least=1)
