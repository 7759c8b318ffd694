import hashlib
import math

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter
from scipy.stats import norm

import greedy_ensembles as ge
from greedy_ensembles.data import noise

PINNED = {
    "uniform": "4412d101169901a379090f513aabaf8d17dbfcea4bae3ea5a86ef5f73739b90b",
    "gaussian": "2d8758aa148d58d920cf0e27a566c8d38d0036f230f2f627083988f7ffd33547",
    "bernoulli": "b08d71ed9bd79c5108d43fa795a83e0c6d666af2280717039fbfabf83fa30e00",
    "gaussian_wide": "1b0e00f4b505dc1102d73f82db290748f38fca6c651f40cceca0913e18faa6a3",
    "blobs": "0ec9fd80db7feb28b72beffdc9ce9b625daf800eb1d9271bd58b2abc5049dc1a",
}


@pytest.mark.parametrize("kind", noise.KINDS)
def test_the_bytes_are_pinned(kind):
    images = ge.data.make_noise(kind, 300, size=9, channels=3, seed=5).images
    assert hashlib.sha256(images.tobytes()).hexdigest() == PINNED[kind]


@pytest.mark.parametrize("kind", noise.KINDS)
def test_seed_and_shape_matter_and_length_does_not(kind):
    long = ge.data.make_noise(kind, 600, size=7, channels=1).images
    assert long.shape == (600, 1, 7, 7)
    assert long.dtype == np.uint8
    assert (ge.data.make_noise(kind, 333, size=7, channels=1).images == long[:333]).all()
    other = ge.data.make_noise(kind, 600, size=7, channels=1, seed=1).images
    assert (other != long).any()
    assert (ge.data.make_noise(kind, 600, size=7, channels=1, seed=np.int64(1)).images == other).all()
    assert len({image.tobytes() for image in long}) > 590  # no image twice, but for small blobs that are black


def test_kinds_are_independent_of_each_other():
    pixels = [ge.data.make_noise(kind, 50).images.astype(float).ravel() for kind in ("uniform", "bernoulli")]
    assert abs(np.corrcoef(*pixels)[0, 1]) < 0.02


def test_uniform_and_bernoulli_are_fair():
    uniform = ge.data.make_noise("uniform", 400).images
    counts = np.bincount(uniform.ravel(), minlength=256)
    expected = uniform.size / 256
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * math.sqrt(2 * 255)
    bernoulli = ge.data.make_noise("bernoulli", 400).images
    assert set(np.unique(bernoulli)) == {0, 255}
    assert abs((bernoulli == 255).mean() - 0.5) < 5 * 0.5 / math.sqrt(bernoulli.size)


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 0.25), ("gaussian_wide", 0.5)])
def test_gaussian_is_the_clipped_normal(kind, deviation):
    images = ge.data.make_noise(kind, 400).images
    edges = (np.arange(1, 256) - 0.5) / 255
    cumulative = norm.cdf(edges, 0.5, deviation)
    expected = np.diff(np.concatenate([[0.0], cumulative, [1.0]])) * images.size
    counts = np.bincount(images.ravel(), minlength=256)
    assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("deviation", [0.25, 0.5])
def test_no_threshold_of_the_normal_hangs_on_the_last_bits_of_a_library(deviation):
    edges = ((np.arange(1, 256) - 0.5) / 255 - 0.5) / deviation
    exact = norm.cdf(edges) * 2.0**32
    assert abs(exact - np.floor(exact) - 0.5).min() > 1e-4  # a double is good to about 1e-6 of these units
    assert (np.round(exact) == noise.gaussian_thresholds(deviation)).all()


@pytest.mark.parametrize("deviation", [0.25, 0.5])
def test_grey_values_are_the_thresholds_not_above_the_bits(deviation):
    """At every threshold, at every change of the upper half of the bits, and next to both."""
    thresholds = noise.gaussian_thresholds(deviation)
    assert np.diff(thresholds.astype(np.int64)).min() > 1 << 16
    places = np.concatenate([thresholds.astype(np.int64), np.arange(0, 1 << 32, 1 << 16)])
    bits = np.concatenate([places - 1, places, places + 1, [(1 << 32) - 1]])
    bits = bits[(bits >= 0) & (bits < 1 << 32)].astype(np.uint32)
    grey = noise.grey_values(bits, deviation)
    assert grey.dtype == np.uint8
    assert np.array_equal(grey, np.searchsorted(thresholds, bits, side="right"))


def test_the_blur_is_the_gaussian_of_the_recipe():
    weights = np.array([math.exp(-(d**2) / 4.5) for d in range(7)])
    weights *= 65536 / (2 * weights.sum() - weights[0])
    assert np.round(weights).astype(int).tolist() == list(noise.BLUR)
    assert 2 * sum(noise.BLUR) - noise.BLUR[0] == 65536


@pytest.mark.parametrize("channels", [1, 3])
def test_blobs_are_blurred_coins_above_a_threshold(channels):
    """Against scipy's own filter on the same coins, to the rounding of the weights."""
    shape = (20, channels, 24, 24)
    coins = noise._bits(np.random.Philox(key=(4 << 64) + 7), shape, "<u4") < 0.7 * 2**32
    blurred = np.stack([gaussian_filter(image.astype(float), 1.5, mode="nearest", truncate=4.0) for image in coins])
    expected = np.where(blurred < 0.75, 0.0, blurred)
    images = ge.data.make_noise("blobs", 20, size=24, channels=channels, seed=7).images / 255
    clear = abs(blurred - 0.75) > 1e-3
    assert clear.mean() > 0.95
    assert abs(images - expected)[clear].max() < 1e-3 + 0.5 / 255
    assert 0.05 < (images > 0).mean() < 0.6


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="did you mean 'gaussian'"):
        ge.data.make_noise("gausian")
    with pytest.raises(ValueError, match="seed must be below"):
        ge.data.make_noise("uniform", seed=2**64)
