import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import greedy_ensembles as ge
from greedy_ensembles.method import Greedy


def probabilities(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64).softmax(dim=-1)


def of(kind, strength, size):
    """Return a method, as ge.fit prepares it."""
    method = kind()
    method.strength, method.size = strength, size
    return method


def by_loops(outputs, earlier, strength, size):
    """The definition, spelled out number by number."""
    total = 0.0
    for member in earlier.tolist():
        distance = 0.0
        for mine, theirs in zip(outputs.tolist(), member, strict=True):
            distance += sum((a - b) ** 2 for a, b in zip(mine, theirs, strict=True))
        total += math.exp(-(strength / size) * distance / len(outputs))
    return math.log(total)


def gradient_by_loops(outputs, earlier, strength, size):
    """d/d outputs[i, c] of the term: the softmax-weighted mean of -(strength / size) * 2 (outputs - earlier_j) / n."""
    n, classes = outputs.shape
    distances = [sum(((outputs[i] - e[i]) ** 2).sum().item() for i in range(n)) / n for e in earlier]
    weights = [math.exp(-(strength / size) * d) for d in distances]
    gradient = torch.zeros_like(outputs)
    for i in range(n):
        for c in range(classes):
            for weight, member in zip(weights, earlier, strict=True):
                slope = -(strength / size) * 2 * (outputs[i, c] - member[i, c]) / n
                gradient[i, c] += weight / sum(weights) * slope
    return gradient


problems = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 5),  # n
    st.integers(2, 4),  # classes
    st.integers(1, 4),  # earlier members
    st.floats(0, 50),  # strength
    st.integers(1, 12),  # size
)


@given(problems)
def test_term_and_gradient_agree_with_loops(problem):
    seed, n, classes, count, strength, size = problem
    generator = torch.Generator().manual_seed(seed)
    outputs = probabilities(generator, n, classes).requires_grad_()
    earlier = probabilities(generator, count, n, classes)
    term = ge.diversity_term(outputs, earlier, strength, size)
    term.backward()
    assert term.item() == pytest.approx(by_loops(outputs.detach(), earlier, strength, size), rel=1e-12, abs=1e-12)
    expected = gradient_by_loops(outputs.detach(), earlier, strength, size)
    torch.testing.assert_close(outputs.grad, expected, rtol=1e-10, atol=1e-12)


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


@given(problems, st.integers(1, 5), st.booleans())
def test_terms_of_members_that_train_together_are_those_of_one_after_another(problem, together, repeated):
    seed, n, classes, count, strength, size = problem
    generator = torch.Generator().manual_seed(seed)
    others = probabilities(generator, count - 1, n, classes)  # none at all among them
    outputs = probabilities(generator, together, n, classes)
    if repeated:
        outputs = outputs[:1].expand(together, n, classes).clone()  # distances of exactly 0 have gradients, too
    weights = torch.randn(together, generator=generator, dtype=torch.float64)
    leaf = outputs.clone().requires_grad_()
    values = of(Greedy, strength, size).terms(leaf, others)
    (values * weights).sum().backward()
    for k, value in enumerate(values.tolist()):
        met = torch.cat([others, outputs[:k]])
        expected = by_loops(outputs[k], met, strength, size) if len(met) else 0.0
        gradient = weights[k] * gradient_by_loops(outputs[k], met, strength, size) if len(met) else outputs[k] * 0
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
        torch.testing.assert_close(leaf.grad[k], gradient, rtol=1e-9, atol=1e-12)


def test_terms_have_finite_gradients_where_the_first_member_is_alone():
    outputs = probabilities(torch.Generator().manual_seed(0), 3, 4, 2).requires_grad_()
    of(Greedy, 1.0, 3).terms(outputs, torch.empty(0, 4, 2, dtype=torch.float64)).sum().backward()
    assert outputs.grad[0].eq(0).all()
    assert torch.isfinite(outputs.grad).all()
    assert outputs.grad[1:].abs().sum(dim=(1, 2)).gt(0).all()
