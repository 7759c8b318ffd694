import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.terms import check_terms, drawn, prepared, probabilities, problems, squared

from greedy_ensembles.method import Repulsive


def median_heuristic(everyone):
    """The median over pairs, the lower one of two, by the logarithm of the number of members."""
    distances = sorted(squared(a, b) for a, b in combinations(everyone, 2))
    return distances[(len(distances) - 1) // 2] / math.log(len(everyone)) if distances else None


@given(problems, st.one_of(st.none(), st.floats(0.01, 10)))
def test_terms_and_gradients_are_those_of_the_definition(problem, bandwidth):
    """Neither others nor the bandwidth move."""
    strength, (bank, live) = problem[-2], drawn(problem)
    width = bandwidth or median_heuristic(torch.cat([bank, live]))

    def definition(own, earlier, later):
        others = torch.cat([earlier, later])
        kernels = [math.exp(-squared(own, other) / width) for other in others]
        total = 1.0 + sum(kernels)  # itself: exp(0)
        gradient = torch.zeros_like(own)
        for kernel, other in zip(kernels, others, strict=True):
            gradient += strength * kernel / total * (-2 / width / len(own)) * (own - other)
        return strength * math.log(total), gradient

    check_terms(prepared(Repulsive(bandwidth), strength), bank, live, definition, rel=1e-9)


@pytest.mark.parametrize("wrong", ["without itself", "gradients into others", "gradients into the bandwidth"])
def test_plausible_wrong_versions_differ(wrong):
    live = probabilities(torch.Generator().manual_seed(1), 3, 4, 2)
    leaf, other = live.clone().requires_grad_(), live.clone().requires_grad_()
    prepared(Repulsive(), 2.0).terms(leaf, live[:0]).sum().backward()
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
    terms = prepared(Repulsive(), 2.0).terms(live, live[:0].detach())
    terms.sum().backward()
    assert terms.tolist() == pytest.approx([2 * math.log(3)] * 3)
    assert torch.isfinite(live.grad).all()
