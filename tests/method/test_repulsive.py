import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.test_greedy import probabilities

from greedy_ensembles.method import Repulsive


def repulsive(strength, bandwidth=None):
    method = Repulsive(bandwidth)
    method.strength = strength
    return method


def apart(one, other):
    """The mean over samples of the squared distance."""
    total = sum((a - b) ** 2 for a, b in zip(one.flatten().tolist(), other.flatten().tolist(), strict=True))
    return total / len(one)


def median_heuristic(everyone):
    """The median over pairs, the lower one of two, by the logarithm of the number of members."""
    distances = sorted(apart(a, b) for a, b in combinations(everyone, 2))
    return distances[(len(distances) - 1) // 2] / math.log(len(everyone))


def by_loops(own, others, strength, bandwidth):
    """Return the term, and its gradient at one's own outputs where neither others nor the bandwidth move."""
    kernels = [math.exp(-apart(own, other) / bandwidth) for other in others]
    total = 1.0 + sum(kernels)  # itself: exp(0)
    gradient = torch.zeros_like(own)
    for kernel, other in zip(kernels, others, strict=True):
        gradient += strength * kernel / total * (-2 / bandwidth / len(own)) * (own - other)
    return strength * math.log(total), gradient


problems = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 5),  # n
    st.integers(2, 4),  # classes
    st.integers(0, 3),  # finished members
    st.integers(1, 4),  # members that train
    st.floats(0, 50),  # strength
    st.one_of(st.none(), st.floats(0.01, 10)),  # bandwidth
)


@given(problems)
def test_terms_and_gradients_agree_with_loops(problem):
    seed, n, classes, finished, training, strength, bandwidth = problem
    generator = torch.Generator().manual_seed(seed)
    bank, live = probabilities(generator, finished, n, classes), probabilities(generator, training, n, classes)
    leaf = live.clone().requires_grad_()
    terms = repulsive(strength, bandwidth).terms(leaf, bank)
    terms.sum().backward()
    everyone = torch.cat([bank, live])
    if len(everyone) == 1:
        assert terms.item() == 0
        assert leaf.grad.eq(0).all()
        return
    for i, term in enumerate(terms.tolist()):
        others = torch.cat([bank, live[:i], live[i + 1 :]])
        value, gradient = by_loops(live[i], others, strength, bandwidth or median_heuristic(everyone))
        assert term == pytest.approx(value, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(leaf.grad[i], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("wrong", ["without itself", "gradients into others", "gradients into the bandwidth"])
def test_plausible_wrong_versions_differ(wrong):
    live = probabilities(torch.Generator().manual_seed(1), 3, 4, 2)
    leaf, other = live.clone().requires_grad_(), live.clone().requires_grad_()
    repulsive(2.0).terms(leaf, live[:0]).sum().backward()
    squares = (other[:, None] - (other if wrong == "gradients into others" else other.detach())).square()
    distances = squares.sum(dim=3).mean(dim=2)
    pairs = distances[tuple(torch.triu_indices(3, 3, 1))]
    bandwidth = (pairs if wrong == "gradients into the bandwidth" else pairs.detach()).median() / math.log(3)
    kernels = torch.exp(-distances / bandwidth)
    if wrong == "without itself":
        kernels = kernels - torch.eye(3)
    (2.0 * kernels.sum(dim=1).log()).sum().backward()
    assert not torch.allclose(leaf.grad, other.grad, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_members_that_are_all_alike_have_finite_terms_and_gradients(dtype):
    live = torch.full((3, 4, 2), 0.5, dtype=dtype, requires_grad=True)
    terms = repulsive(2.0).terms(live, live[:0].detach())
    terms.sum().backward()
    assert terms.tolist() == pytest.approx([2 * math.log(3)] * 3)
    assert torch.isfinite(live.grad).all()
