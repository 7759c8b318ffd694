import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy

from greedy_ensembles.metrics import expected_entropy, mutual_information, predictive_entropy


def drawn(seed, members, n, classes, temperature=1.0):
    logits = torch.randn(members, n, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (logits * temperature).softmax(dim=-1)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5), st.integers(2, 5), st.floats(0.1, 300))
def test_against_scipy_example_by_example(seed, members, n, classes, temperature):
    probs = drawn(seed, members, n, classes, temperature)
    for i in range(n):
        total = entropy(probs[:, i].mean(dim=0).numpy())
        aleatoric = np.mean([entropy(p) for p in probs[:, i].numpy()])
        assert predictive_entropy(probs)[i].item() == pytest.approx(total, abs=1e-12)
        assert expected_entropy(probs)[i].item() == pytest.approx(aleatoric, abs=1e-12)
        assert mutual_information(probs)[i].item() == pytest.approx(total - aleatoric, abs=1e-12)


@given(st.integers(0, 1000), st.integers(1, 6), st.floats(0.1, 300))
def test_mutual_information_is_never_negative_and_bounded(seed, members, temperature):
    information = mutual_information(drawn(seed, members, 20, 4, temperature).float())
    assert (information >= 0).all()
    assert (information <= math.log(min(members, 4)) + 1e-6).all()


def test_members_that_agree_carry_none():
    probs = drawn(0, 1, 1000, 10).float().expand(7, 1000, 10)
    assert mutual_information(probs).max() < 1e-12  # in single precision inside, this is about 1e-7


def test_zero_probabilities_are_fine():
    probs = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.5, 0.5]]])
    assert predictive_entropy(probs).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(4))
    assert expected_entropy(probs).item() == pytest.approx(0.5 * math.log(2))


@pytest.mark.parametrize("function", [mutual_information, expected_entropy, predictive_entropy])
def test_the_kind_of_the_input_comes_back(function):
    probs = drawn(0, 3, 5, 4)
    assert function(probs.float()).dtype == torch.float32
    assert function(probs.half()).dtype == torch.float32
    assert function(probs).dtype == torch.float64
    as_array = function(probs.numpy())
    assert isinstance(as_array, np.ndarray)
    np.testing.assert_array_equal(as_array, function(probs).numpy())
    assert function(probs[:, :0]).shape == (0,)


@pytest.mark.parametrize("bad", [-0.5, 1.5, float("nan"), float("inf")])
def test_what_is_no_probability_is_refused(bad):
    probs = torch.full((2, 3, 2), 0.5)
    probs[1, 2, 0] = bad
    with pytest.raises(ValueError, match="probs must be probabilities, at least 0 and adding up to 1"):
        mutual_information(probs)


@pytest.mark.parametrize("probs", [torch.ones(3, 4), torch.ones(0, 4, 2), torch.ones(2, 4, 2, dtype=torch.long)])
def test_other_shapes_and_types_are_refused(probs):
    with pytest.raises(ValueError, match="members, n, classes"):
        mutual_information(probs)
