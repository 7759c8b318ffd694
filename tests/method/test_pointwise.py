import math

import pytest
import torch
from hypothesis import given
from tests.method.terms import check_terms, drawn, prepared, problems, squared

from greedy_ensembles.method import Greedy, Pointwise


@given(problems)
def test_terms_and_gradients_are_those_of_the_definition(problem):
    """The mean over samples of the log of the sum of kernels."""
    *_, strength, size = problem

    def definition(own, earlier, later):
        value, gradient = 0.0, torch.zeros_like(own)
        for i in range(len(own) if len(earlier) else 0):
            kernels = [math.exp(-strength / size * squared(own[[i]], other[[i]])) for other in earlier]
            value += math.log(sum(kernels)) / len(own)
            for kernel, other in zip(kernels, earlier, strict=True):
                gradient[i] -= kernel / sum(kernels) * strength / size * 2 * (own[i] - other[i]) / len(own)
        return value, gradient

    check_terms(prepared(Pointwise(), strength, size), *drawn(problem), definition)


@given(problems)
def test_it_is_at_least_the_greedy_term_and_equal_for_one_sample(problem):
    (bank, live), methods = drawn(problem), [prepared(kind(), *problem[-2:]) for kind in (Pointwise, Greedy)]
    ours, greedy = (method.terms(live, bank) for method in methods)
    assert bool((ours >= greedy - 1e-12).all())
    single = [method.terms(live[:, :1], bank[:, :1]) for method in methods]
    torch.testing.assert_close(*single, rtol=1e-9, atol=1e-12)


def test_no_sample_hides_behind_another():
    """Members that agree on one of two samples: moving on, where they differ already, helps the paper's term alone."""
    bank = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
    live = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)  # repeats one on each sample
    ours, greedy = (prepared(kind(), 60.0, 3).terms(live, bank).item() for kind in (Pointwise, Greedy))
    assert ours == pytest.approx(math.log(1 + math.exp(-40)))  # each sample is as close as can be to one of them
    assert greedy == pytest.approx(math.log(2) - 20)  # and the member far from both, on average
