"""p* of the search, against loops and numpy."""

import collections
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.paper.images import SEARCHED, Jigsaw, Kaleidoscope, Layout, Turned, mirrored, searched

IMAGES = torch.arange(2 * 3 * 7 * 6, dtype=torch.float32).reshape(2, 3, 7, 6).mul(37).remainder(101)


@given(st.integers(1, 9), st.integers(0, 1000))
def test_mirrors_stand_where_a_window_ends(side, seed):
    """Neighbours are neighbours in the window or the same position, and no more positions appear than it has."""
    window = (side + 1) // 2
    for row in mirrored(side, 5, torch.Generator().manual_seed(seed)).tolist():
        assert max(row) - min(row) < window
        assert 0 <= min(row) <= max(row) < side
        steps = [b - a for a, b in itertools.pairwise(row)]
        assert set(steps) <= {-1, 0, 1}
        turns = [k for k, step in enumerate(steps) if step == 0]
        assert all(row[k - d] == row[k + 1 + d] for k in turns for d in range(min(k + 1, side - 1 - k)))


def test_a_kaleidoscope_has_one_window_of_one_image():
    samples = Kaleidoscope(IMAGES).sample(20, torch.Generator().manual_seed(0))
    assert samples.dtype == IMAGES.dtype
    for sample in samples:
        # Values say where in which image they are from.
        places = [(IMAGES[:, 0] == value).nonzero() for value in sample[0].unique()]
        images = set.intersection(*({int(place[0]) for place in found} for found in places))
        assert images
        source = IMAGES[images.pop()]
        at = torch.tensor([[(source[0] == value).nonzero()[0].tolist() for value in row] for row in sample[0]])
        rows, columns = at.unbind(dim=2)
        assert rows.max() - rows.min() < 4
        assert columns.max() - columns.min() < 3
        assert torch.equal(sample, source[:, rows, columns])


def test_a_layout_keeps_low_phases_and_all_amplitudes():
    far = torch.full_like(IMAGES[:1], 1e4)  # so that nothing is clipped
    drawn = Layout(torch.cat([IMAGES[:1], far, -far]), kept=2.0).sample(30, torch.Generator().manual_seed(0))
    samples = [sample for sample in drawn.double().numpy() if sample.std() > 1]
    assert 5 < len(samples) < 15
    own = np.fft.fft2(IMAGES[0].double().numpy())
    cycles = np.hypot(np.fft.fftfreq(7, 1 / 7)[:, None], np.fft.fftfreq(6, 1 / 6)[None])
    low, high = cycles <= 2, cycles > 2
    for sample in samples:
        ours = np.fft.fft2(sample)
        np.testing.assert_allclose(ours[:, low], own[:, low], rtol=1e-3, atol=1e-2)
        turned = ours[:, high] / own[:, high]
        np.testing.assert_allclose(abs(turned), 1, atol=1e-3)
        np.testing.assert_allclose(turned, np.broadcast_to(turned[:1], turned.shape), atol=1e-3)  # as all channels are
        assert abs(turned - 1).max() > 1


def test_an_image_is_turned_by_less_than_a_whole():
    square = IMAGES[..., :6, :]
    seen = collections.Counter()
    for sample in Turned(square).sample(60, torch.Generator().manual_seed(0)).numpy():
        turns = [k for k in range(4) for image in square.numpy() if (np.rot90(image, k, (1, 2)) == sample).all()]
        seen.update(turns)
    assert set(seen) == {1, 2, 3}
    assert min(seen.values()) > 10
    assert seen.total() == 60


def test_a_jigsaw_has_the_quarters_of_one_image_in_all_other_orders():
    even = IMAGES[..., :6, :]
    quarters = [[image[:, i : i + 3, j : j + 3].tobytes() for i in (0, 3) for j in (0, 3)] for image in even.numpy()]
    orders = set()
    for sample in Jigsaw(even).sample(500, torch.Generator().manual_seed(0)).numpy():
        found = [sample[:, i : i + 3, j : j + 3].tobytes() for i in (0, 3) for j in (0, 3)]
        (source,) = [own for own in quarters if set(own) == set(found)]
        orders.add(tuple(source.index(part) for part in found))
    assert orders == set(itertools.permutations(range(4))) - {(0, 1, 2, 3)}


@pytest.mark.parametrize("name", SEARCHED)
def test_samples_are_like_the_images_and_come_from_the_generator(name):
    images = torch.randint(0, 256, (9, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    one, again, other = (searched(name, images).sample(40, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert one.shape == (40, 3, 8, 8)
    assert one.dtype == torch.uint8
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
