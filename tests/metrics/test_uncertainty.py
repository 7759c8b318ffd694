import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import entropy

from greedy_ensembles.metrics import (
    energy,
    expected_entropy,
    max_probability,
    mean_pairwise_kl,
    mutual_information,
    predictive_entropy,
)


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


@pytest.mark.parametrize(
    "function",
    [mutual_information, expected_entropy, predictive_entropy, mean_pairwise_kl, max_probability, energy],
)
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
    with pytest.raises(ValueError, match=rf"probs must be probabilities.* row 5 .* {bad:g} "):
        mutual_information(probs)


@pytest.mark.parametrize("probs", [torch.ones(3, 4), torch.ones(0, 4, 2), torch.ones(2, 4, 2, dtype=torch.long)])
def test_other_shapes_and_types_are_refused(probs):
    with pytest.raises(ValueError, match="members, n, classes"):
        mutual_information(probs)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(2, 5), st.floats(0.1, 30))
def test_pairwise_divergence_is_the_mean_over_ordered_pairs(seed, members, classes, temperature):
    probs = drawn(seed, members, 3, classes, temperature)
    for i in range(3):
        rows = probs[:, i].numpy()
        pairs = [entropy(p, q) for a, p in enumerate(rows) for b, q in enumerate(rows) if a != b]
        assert mean_pairwise_kl(probs)[i].item() == pytest.approx(np.mean(pairs), rel=1e-9, abs=1e-12)


def test_pairwise_divergence_counts_no_member_with_itself():
    """A mean over all M^2 pairs would be half of it for two members, and one direction alone another number."""
    probs = torch.tensor([[[0.5, 0.5]], [[0.1, 0.9]]], dtype=torch.float64)
    there, back = entropy([0.5, 0.5], [0.1, 0.9]), entropy([0.1, 0.9], [0.5, 0.5])
    assert mean_pairwise_kl(probs).item() == pytest.approx((there + back) / 2)
    assert abs(there - back) > 0.1
    assert mean_pairwise_kl(probs[:1]).item() == 0


def test_pairwise_divergence_stays_finite_where_a_member_is_certain():
    probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]], dtype=torch.float64)
    # Of six ordered pairs, four are of opposite members, at -log(1e-300) each.
    assert mean_pairwise_kl(probs).item() == pytest.approx(4 / 6 * 300 * math.log(10))


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5), st.floats(0.1, 300))
def test_energy_is_the_mean_over_members_of_minus_logsumexp(seed, members, classes, scale):
    logits = scale * np.random.default_rng(seed).normal(size=(members, 3, classes))
    expected = [-np.mean([logsumexp(row) for row in logits[:, i]]) for i in range(3)]
    np.testing.assert_allclose(energy(logits), expected, rtol=1e-12)


def test_energy_sees_what_probabilities_do_not():
    """Softmax forgets a constant; and the logarithm of summed exponentials over members would be another number."""
    logits = torch.tensor([[[1.0, 2.0]], [[-3.0, -2.0]]], dtype=torch.float64)
    each = [math.log(math.exp(1) + math.exp(2)), math.log(math.exp(-3) + math.exp(-2))]
    assert energy(logits).item() == pytest.approx(-sum(each) / 2)
    assert energy(logits + 7).item() == pytest.approx(energy(logits).item() - 7)
    with pytest.raises(ValueError, match="logits must be finite"):
        energy(logits / 0)


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(2, 5))
def test_confidence_is_that_of_the_mean_and_not_the_mean_confidence(seed, members, classes):
    probs = drawn(seed, members, 4, classes, 5.0)
    expected = [max(sum(column) / members for column in zip(*probs[:, i].tolist(), strict=True)) for i in range(4)]
    assert max_probability(probs).tolist() == pytest.approx(expected)
    torn = torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]])
    assert max_probability(torn).item() == pytest.approx(0.5)
