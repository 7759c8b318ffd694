import pytest

from greedy_ensembles.checks import check_choice, check_count, check_limit, limits


def test_a_near_miss_gets_a_suggestion_and_a_far_one_the_list():
    with pytest.raises(ValueError, match=r"method .*'deep', 'greedy'; got 'gredy'.* mean 'greedy'"):
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


def test_limits_hold_within_their_block_and_name_what_they_do_not_know(monkeypatch):
    check_limit("pixels", 100, "a picture")
    with limits(pixels=10):
        with limits(entries=1), pytest.raises(ValueError, match=r"a picture: 11 .*limit of 10.*pixels=11"):
            check_limit("pixels", 11, "a picture")
        check_limit("pixels", 11, "a picture", own=11)
    check_limit("pixels", 11, "a picture")
    with pytest.raises(ValueError, match="did you mean 'pixels'"), limits(pixel=3):
        pass
    with pytest.raises(TypeError, match="pixels"), limits(pixels="many"):
        pass
    for text in ("pixels", "pixels=many", "pixel=3", "pixels=-1", "pixels=nan"):
        monkeypatch.setenv("GREEDY_ENSEMBLES_LIMITS", text)
        with pytest.raises(ValueError, match=f"GREEDY_ENSEMBLES_LIMITS.*{text}"):
            check_limit("pixels", 1, "a picture")
