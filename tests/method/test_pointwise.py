import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.test_greedy import of, probabilities

from greedy_ensembles.method import Greedy, Pointwise


def by_loops(own, met, strength, size):
    """Return the mean over samples of the log of the sum of kernels, number by number."""
    total = 0.0
    for i in range(len(own)):
        kernels = 0.0
        for other in met:
            squared = sum((own[i, c] - other[i, c]).item() ** 2 for c in range(own.shape[1]))
            kernels += math.exp(-strength / size * squared)
        total += math.log(kernels)
    return total / len(own)


problems = st.tuples(
    st.integers(0, 10_000), st.integers(1, 5), st.integers(2, 4), st.integers(0, 3), st.integers(1, 4), st.floats(0, 50)
)


@given(problems)
def test_terms_and_gradients_agree_with_loops(problem):
    """Gradients by differences; those that a member meets do not move."""
    seed, n, classes, finished, training, strength = problem
    generator = torch.Generator().manual_seed(seed)
    bank, live = probabilities(generator, finished, n, classes), probabilities(generator, training, n, classes)
    leaf = live.clone().requires_grad_()
    terms = of(Pointwise, strength, 5).terms(leaf, bank)
    terms.sum().backward()
    for i, term in enumerate(terms.tolist()):
        met = torch.cat([bank, live[:i]])
        if len(met) == 0:
            assert term == 0
            assert not leaf.grad[i].any()
            continue
        assert term == pytest.approx(by_loops(live[i], met, strength, 5), rel=1e-10, abs=1e-12)
        moved = live[i].clone()
        moved[0, 0] += 1e-6
        slope = (by_loops(moved, met, strength, 5) - by_loops(live[i], met, strength, 5)) / 1e-6
        assert leaf.grad[i][0, 0].item() == pytest.approx(slope, rel=1e-3, abs=1e-4)


@given(problems)
def test_it_is_at_least_the_greedy_term_and_equal_for_one_sample(problem):
    seed, n, classes, finished, training, strength = problem
    generator = torch.Generator().manual_seed(seed)
    bank, live = probabilities(generator, finished + 1, n, classes), probabilities(generator, training, n, classes)
    ours, greedy = (of(kind, strength, 5).terms(live, bank) for kind in (Pointwise, Greedy))
    assert bool((ours >= greedy - 1e-12).all())
    single = [of(kind, strength, 5).terms(live[:, :1], bank[:, :1]) for kind in (Pointwise, Greedy)]
    torch.testing.assert_close(*single, rtol=1e-9, atol=1e-12)


def test_no_sample_hides_behind_another():
    """Members that agree on one of two samples: moving on, where they differ already, helps the paper's term alone."""
    bank = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
    live = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)  # repeats one on each sample
    ours, greedy = (of(kind, 60.0, 3).terms(live, bank).item() for kind in (Pointwise, Greedy))
    assert ours == pytest.approx(math.log(1 + math.exp(-40)))  # each sample is as close as can be to one of them
    assert greedy == pytest.approx(math.log(2) - 20)  # and the member far from both, on average
