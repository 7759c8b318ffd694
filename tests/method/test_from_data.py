"""p* that is made of examples, and of tokens: the distributions, against what the data says itself."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.method.test_weighting import generator

import greedy_ensembles as ge
from greedy_ensembles.method.weighting import Mixture


@given(st.integers(1, 6), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 9), st.integers(0, 99))
def test_every_position_of_shuffled_holds_values_of_that_position(count, shape, n, seed):
    places = int(np.prod(shape))
    # No value stands at two positions, so that one that came from another position is seen.
    x = (torch.arange(count)[:, None] * places + torch.arange(places)).reshape(count, *shape)
    samples = ge.weighting.Shuffled(x).sample(n, generator(seed))
    assert samples.shape == (n, *shape)
    assert samples.dtype == x.dtype
    assert torch.equal(samples.flatten(1) % places, torch.arange(places).expand(n, places))


def test_shuffled_has_the_marginals_of_the_data_and_independent_positions():
    x = torch.tensor([[0, 0], [0, 0], [0, 0], [1, 1]])  # the two columns are one and the same
    samples = ge.weighting.Shuffled(x).sample(4000, generator())
    found = Counter(map(tuple, samples.tolist()))
    shares = {0: 3 / 4, 1: 1 / 4}
    expected = {pair: 4000 * shares[pair[0]] * shares[pair[1]] for pair in itertools.product(shares, shares)}
    assert stats.chisquare([found[pair] for pair in expected], list(expected.values())).pvalue > 1e-3


def test_shuffled_takes_entries_of_one_shape_from_the_same_examples():
    tokens = torch.arange(1, 41).reshape(8, 5)
    mask = torch.ones(8, 5, dtype=torch.bool)
    tokens[3:, 4:], mask[3:, 4:] = 0, False
    x = {"input_ids": tokens, "attention_mask": mask, "kind": torch.arange(8)}
    samples = ge.weighting.Shuffled(x).sample(50, generator())
    assert torch.equal(samples["input_ids"] != 0, samples["attention_mask"])
    assert samples["kind"].shape == (50,)
    assert not any(torch.equal(row, own) for row in samples["input_ids"] for own in tokens)  # no whole example
    pair = ge.weighting.Shuffled((tokens, mask)).sample(2, generator())
    assert [part.shape for part in pair] == [(2, 5), (2, 5)]


def test_shuffled_takes_columns_that_are_entries_from_examples_of_their_own():
    column = torch.arange(1000.0)
    for x in ({"age": column, "income": column}, (column[:, None], column[:, None])):
        samples = ge.weighting.Shuffled(x).sample(500, generator())
        one, other = samples.values() if isinstance(x, dict) else samples
        assert (one == other).sum() < 10  # and not all of them, which would be the data


def test_shuffled_takes_entries_of_several_shapes_from_examples_of_their_own():
    short, long = torch.arange(1000)[:, None].expand(-1, 3), torch.arange(1000)[:, None].expand(-1, 5)
    one, other = ge.weighting.Shuffled((short, long)).sample(20, generator())
    assert (one == other[:, :3]).sum() < 3  # in the first sample, too


def test_tokens_are_uniform_and_independent():
    samples = ge.weighting.Tokens(3, 2).sample(4500, generator())
    assert samples.dtype == torch.int64
    found = Counter(map(tuple, samples.tolist()))
    assert found.keys() == set(itertools.product(range(3), repeat=2))
    assert stats.chisquare(list(found.values())).pvalue > 1e-3


def test_a_mixture_takes_entries_in_its_shares():
    x = {"a": torch.zeros(5, 2), "b": torch.zeros(5, 3, dtype=torch.long)}
    others = {"a": torch.ones(5, 2), "b": torch.ones(5, 3, dtype=torch.long)}
    mixture = Mixture([ge.weighting.FromData(x), ge.weighting.FromData(others)], shares=[3, 1])
    samples = mixture.sample(100, generator())
    assert samples["b"].dtype == torch.int64
    assert torch.equal(samples["a"][:, 0].long(), samples["b"][:, 0])  # entries of a sample stay together
    assert int(samples["b"][:, 0].sum()) == 25
    with pytest.raises(ValueError, match="one shape"):
        Mixture([ge.weighting.FromData(x), ge.weighting.FromData(x["a"])])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ge.weighting.Shuffled(torch.zeros(3)), "x of Shuffled must be examples of shape"),
        (lambda: ge.weighting.Shuffled({}), "x of Shuffled must hold at least one entry"),
        (
            lambda: ge.weighting.Shuffled({"a": torch.zeros(3, 1), "b": torch.zeros(2, 1)}),
            r"x\['b'\] of shape \(2, 1\)",
        ),
    ],
)
def test_what_will_not_do_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_set_stands_for_its_inputs():
    images = np.random.default_rng(0).integers(0, 256, (5, 1, 4, 4)).astype(np.uint8)
    tiny = ge.data.ImageSet(images, np.arange(5) % 2, "tiny")
    for make in (
        ge.weighting.FromData,
        ge.weighting.Shuffled,
        ge.weighting.PhaseScrambled,
        ge.weighting.Gaussian.from_data,
    ):
        assert torch.equal(make(tiny).sample(3, generator()), make(images).sample(3, generator()))
