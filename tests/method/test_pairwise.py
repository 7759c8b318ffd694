import pytest
import torch
from hypothesis import given
from tests.method.terms import check_terms, drawn, prepared, probabilities, problems, squared

from greedy_ensembles.method import Pairwise


@given(problems)
def test_terms_and_gradients_are_those_of_the_definition(problem):
    """Minus the scaled mean squared distance to those that a member meets."""
    *_, strength, size = problem

    def definition(own, earlier, later):
        value, gradient = 0.0, torch.zeros_like(own)
        for other in earlier:
            value -= strength / size * squared(own, other) / len(earlier)
            gradient -= strength / size * 2 * (own - other) / len(own) / len(earlier)
        return value, gradient

    check_terms(prepared(Pairwise(), strength, size), *drawn(problem), definition)


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
    assert prepared(Pairwise(), 3.0).terms(live, bank)[0].item() != pytest.approx(versions[wrong].item())


def test_two_that_coincide_cost_nothing_if_others_are_far():
    """What Figure 1b shows: the mean is as low where a member repeats another one."""
    bank = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    repeated, between = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.5, 0.5]]])
    method = prepared(Pairwise(), 2.0, 3)
    assert method.terms(repeated, bank).item() < method.terms(between, bank).item()
