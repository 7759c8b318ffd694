import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.terms import check_terms, drawn, prepared, probabilities, problems, squared

import greedy_ensembles as ge
from greedy_ensembles.method import Greedy


def by_loops(own, earlier, strength, size):
    """The definition, 0 without earlier members, and d/d own: the softmax-weighted mean of the slopes of distances."""
    kernels = [math.exp(-(strength / size) * squared(own, other)) for other in earlier]
    gradient = torch.zeros_like(own)
    for kernel, other in zip(kernels, earlier, strict=True):
        gradient -= kernel / sum(kernels) * strength / size * 2 * (own - other) / len(own)
    return math.log(sum(kernels)) if kernels else 0.0, gradient


@given(problems, st.booleans())
def test_terms_and_gradients_are_those_of_the_definition(problem, repeated):
    """In any place among members that train together; and for a loop of one's own."""
    (*_, strength, size), (bank, live) = problem, drawn(problem)
    if repeated:
        live = live[:1].expand(live.shape).clone()  # distances of exactly 0 have gradients, too
    method = prepared(Greedy(), strength, size)
    check_terms(method, bank, live, lambda own, earlier, later: by_loops(own, earlier, strength, size), rel=1e-9)
    outputs = live[0].clone().requires_grad_()
    term = ge.diversity_term(outputs, bank, strength, size)
    term.backward()
    value, gradient = by_loops(live[0], bank, strength, size)
    assert term.item() == pytest.approx(value, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(outputs.grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wrong", ["mean over classes", "sum over samples", "no division by M", "mean of kernels"])
def test_plausible_wrong_versions_differ(wrong):
    generator = torch.Generator().manual_seed(1)
    outputs, earlier = probabilities(generator, 4, 3), probabilities(generator, 2, 4, 3)
    squares = (outputs - earlier) ** 2
    exponents = {
        "mean over classes": -(3 / 5) * squares.mean(dim=(1, 2)),
        "sum over samples": -(3 / 5) * squares.sum(dim=(1, 2)),
        "no division by M": -3 * squares.sum(dim=2).mean(dim=1),
        "mean of kernels": -(3 / 5) * squares.sum(dim=2).mean(dim=1) - math.log(2),
    }
    assert ge.diversity_term(outputs, earlier, 3.0, 5).item() != pytest.approx(exponents[wrong].logsumexp(0).item())


@pytest.mark.parametrize("strength", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_identical_members_give_log_of_their_number(strength, count):
    outputs = probabilities(torch.Generator().manual_seed(0), 5, 3)
    term = ge.diversity_term(outputs, outputs.expand(count, 5, 3), strength, count + 1)
    assert term.item() == pytest.approx(math.log(count))


def test_strength_zero_ignores_where_members_are():
    generator = torch.Generator().manual_seed(0)
    outputs, earlier = probabilities(generator, 5, 3).requires_grad_(), probabilities(generator, 4, 5, 3)
    term = ge.diversity_term(outputs, earlier, 0.0, 5)
    term.backward()
    assert term.item() == pytest.approx(math.log(4))
    assert outputs.grad.eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_overflow_at_any_strength(dtype):
    outputs = torch.tensor([[1.0, 0.0]] * 3, dtype=dtype, requires_grad=True)
    earlier = torch.tensor([[[0.0, 1.0]] * 3, [[0.5, 0.5]] * 3], dtype=dtype)
    term = ge.diversity_term(outputs, earlier, 1e6, 2)
    term.backward()
    assert term.item() == pytest.approx(-1e6 / 2 * 0.5)  # the nearer one decides
    assert torch.isfinite(outputs.grad).all()


def test_half_precision_is_computed_in_single():
    generator = torch.Generator().manual_seed(0)
    outputs, earlier = probabilities(generator, 64, 10).half(), probabilities(generator, 3, 64, 10).half()
    term = ge.diversity_term(outputs, earlier, 5.0, 4)
    assert term.dtype == torch.float32
    torch.testing.assert_close(term, ge.diversity_term(outputs.double(), earlier.double(), 5.0, 4).float())


def test_without_earlier_members_it_is_zero():
    outputs = torch.ones(3, 2, requires_grad=True)
    term = ge.diversity_term(outputs, torch.empty(0, 3, 2), 1.0, 5)
    term.backward()  # a loop of one's own need not treat the first member apart
    assert term.item() == 0
    assert outputs.grad.eq(0).all()


def test_moving_away_lowers_the_term():
    earlier = torch.tensor([[[0.9, 0.1]]], dtype=torch.float64)
    terms = [
        ge.diversity_term(torch.tensor([[p, 1 - p]]).double(), earlier, 3.0, 3).item() for p in (0.9, 0.6, 0.3, 0.0)
    ]
    assert terms == sorted(terms, reverse=True)
    assert terms[0] > terms[-1]
