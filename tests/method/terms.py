"""What the terms of every method are held against: a definition of its own, number by number."""

import pytest
import torch
from hypothesis import strategies as st

#: Of the members of an ensemble on a few samples of p*, with lambda_M and M.
problems = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 5),  # n
    st.integers(2, 4),  # classes
    st.integers(0, 3),  # finished members
    st.integers(1, 5),  # members that train
    st.floats(0, 50),  # strength
    st.integers(1, 12),  # size
)


def probabilities(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64).softmax(dim=-1)


def drawn(problem):
    """Return what members say, (finished, n, classes) and (training, n, classes)."""
    seed, n, classes, finished, training, *_ = problem
    generator = torch.Generator().manual_seed(seed)
    return probabilities(generator, finished, n, classes), probabilities(generator, training, n, classes)


def prepared(method, strength, size=5):
    """Return a method, as ge.fit prepares it."""
    method.strength, method.size = strength, size
    return method


def squared(own, other):
    """The mean over samples of the squared distance."""
    return sum((a - b) ** 2 for a, b in zip(own.flatten().tolist(), other.flatten().tolist(), strict=True)) / len(own)


def check_terms(method, bank, live, definition, rel=1e-10):
    """Hold values and gradients against a definition of them by own outputs, those of earlier and of later members.

    A member's gradient is of its own term alone: those that it meets do not move.
    """
    leaf, weights = live.clone().requires_grad_(), torch.linspace(-1.5, 2.0, len(live), dtype=torch.float64)
    terms = method.terms(leaf, bank)
    (terms * weights).sum().backward()
    for i, term in enumerate(terms.tolist()):
        value, gradient = definition(live[i], torch.cat([bank, live[:i]]), live[i + 1 :])
        assert term == pytest.approx(value, rel=rel, abs=1e-12)
        torch.testing.assert_close(leaf.grad[i], weights[i] * gradient, rtol=rel, atol=1e-12)
