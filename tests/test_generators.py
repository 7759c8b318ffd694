import random

import numpy as np
import torch

from greedy_ensembles.generators import Generators, generator, preserved_generators, seed_generators

CPU = torch.device("cpu")


def draws():
    return torch.randn(3).tolist(), np.random.randn(3).tolist(), random.gauss(0, 1), np.random.rand(), random.random()  # noqa: NPY002


def test_generators_depend_on_all_keys_and_on_nothing_else():
    def numbers(*keys):
        return tuple(torch.rand(4, generator=generator(*keys)).tolist())

    torch.manual_seed(1)
    first = numbers(1, 0, 5)
    torch.manual_seed(2)
    assert first == numbers(1, 0, 5)
    assert len({numbers(*keys) for keys in [(1, 0, 5), (1, 5, 0), (2, 0, 5), (1, 0, 6), (1, 0)]}) == 5


def test_states_of_torch_numpy_and_python_come_back():
    seed_generators(3)
    draws()  # leaves half-used Gaussian pairs behind
    state = Generators.from_state(Generators.current(CPU).state())
    expected = draws()
    draws()
    state.restore(CPU)
    assert draws() == expected


def test_seeding_sets_all_three():
    seed_generators(4)
    first = draws()
    seed_generators(4)
    assert draws() == first
    seed_generators(5)
    assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_the_callers_generators_are_left_alone():
    seed_generators(6)
    expected = draws()
    seed_generators(6)
    with preserved_generators(CPU):
        seed_generators(99)
        draws()
    assert draws() == expected
