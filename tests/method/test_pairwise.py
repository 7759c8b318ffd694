import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.test_greedy import of, probabilities

from greedy_ensembles.method import Pairwise


def by_loops(own, met, strength, size):
    """Return minus the scaled mean squared distance, and its gradient at one's own outputs, number by number."""
    value, gradient = 0.0, torch.zeros_like(own)
    for other in met:
        for i in range(own.shape[0]):
            for c in range(own.shape[1]):
                difference = (own[i, c] - other[i, c]).item()
                value -= strength / size * difference**2 / len(own) / len(met)
                gradient[i, c] -= strength / size * 2 * difference / len(own) / len(met)
    return value, gradient


problems = st.tuples(
    st.integers(0, 10_000),  # seed
    st.integers(1, 5),  # n
    st.integers(2, 4),  # classes
    st.integers(0, 3),  # finished members
    st.integers(1, 4),  # members that train
    st.floats(0, 50),  # strength
    st.integers(1, 12),  # size
)


@given(problems)
def test_terms_and_gradients_agree_with_loops(problem):
    """Gradients are of a member's own term: those that it meets do not move."""
    seed, n, classes, finished, training, strength, size = problem
    generator = torch.Generator().manual_seed(seed)
    bank, live = probabilities(generator, finished, n, classes), probabilities(generator, training, n, classes)
    leaf = live.clone().requires_grad_()
    terms = of(Pairwise, strength, size).terms(leaf, bank)
    terms.sum().backward()
    for i, term in enumerate(terms.tolist()):
        value, gradient = by_loops(live[i], torch.cat([bank, live[:i]]), strength, size)
        assert term == pytest.approx(value, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(leaf.grad[i], gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("wrong", ["sum over members", "mean over classes", "also the later ones", "no division by M"])
def test_plausible_wrong_versions_differ(wrong):
    generator = torch.Generator().manual_seed(1)
    bank, live = probabilities(generator, 2, 4, 3), probabilities(generator, 2, 4, 3)
    squares = (live[0] - bank) ** 2
    versions = {
        "sum over members": -(3 / 5) * squares.sum(dim=2).mean(dim=1).sum(),
        "mean over classes": -(3 / 5) * squares.mean(),
        "also the later ones": -(3 / 5) * ((live[0] - torch.cat([bank, live[1:]])) ** 2).sum(dim=2).mean(),
        "no division by M": -3 * squares.sum(dim=2).mean(),
    }
    assert of(Pairwise, 3.0, 5).terms(live, bank)[0].item() != pytest.approx(versions[wrong].item())


def test_two_that_coincide_cost_nothing_if_others_are_far():
    """What Figure 1b shows: the mean is as low where a member repeats another one."""
    bank = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    repeated, between = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    method = of(Pairwise, 2.0, 3)
    assert method.terms(repeated, bank).item() < method.terms(between, bank).item()
