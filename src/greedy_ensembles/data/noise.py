"""Synthetic out-of-distribution sets: uniform, Gaussian (two of them) and Bernoulli noise, and blobs.

They follow the benchmark of outlier exposure (Hendrycks, Mazeika and Dietterich, 2019), whose pixels lie in [-1, 1];
the paper rescales to [0, 1], and here the 256 grey values are those of [0, 1]:

- **uniform**: each value equally likely;
- **gaussian**: normal with mean 0 and standard deviation 0.5 on [-1, 1], cut off at the ends: 0.5 and 0.25 on [0, 1],
  so that 2.3 % of the pixels are black and as many white;
- **gaussian_wide**: normal with mean 0.5 and standard deviation 0.5 on [0, 1], cut off at the ends, so that 16 % of the
  pixels are black and as many white: what that benchmark draws for MNIST and SVHN;
- **bernoulli**: black or white by the toss of a fair coin for each pixel and channel (Rademacher noise on [-1, 1]);
- **blobs**: every pixel and channel is white with probability 0.7; a Gaussian blur of standard deviation 1.5 pixels
  turns that into hills; what then lies below 0.75 becomes black. As in the original the blur runs over the channels,
  too, so that they agree about most of a blob and differ at its edge: blobs are white with coloured rims.

**The same bytes everywhere.** All randomness is the raw output of the Philox generator, which numpy keeps fixed (its
distributions it does not), and all that follows is arithmetic on whole numbers: a table of thresholds for the
normal distribution, a blur whose weights are multiples of 1/65536. No sine, exponential or sum depends on the machine.
"""

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.data.image_set import Bytes, ImageSet, check_channels

COUNT = 25_000
_CHUNK = 250  # images at a time: what is blurred is eight times the size of the images

#: One side of the blur: round(65536 * exp(-d^2 / 4.5) / sum), d = 0..6 pixels; the sum with the other side is 65536.
BLUR = (17_430, 13_957, 7_166, 2_359, 498, 67, 6)
_ONE = 1 << 16
#: Probabilities are compared with 32 random bits.
_WHITE = 7 * (1 << 32) // 10


def make_noise(kind: str, count: int = COUNT, *, size: int = 32, channels: int = 3, seed: int = 0) -> ImageSet:
    """Return a set of `count` images of noise, the same for the same arguments on every machine.

    Args:
        kind: "uniform", "gaussian", "gaussian_wide", "bernoulli" or "blobs".
        count: how many images; the first of a longer set are those of a shorter one.
        size: height and width in pixels.
        channels: 1 or 3.
        seed: a whole number below 2**64.

    >>> make_noise("bernoulli", 2, size=4, channels=1).images[0, 0].tolist()
    [[255, 0, 255, 0], [255, 0, 255, 0], [255, 255, 255, 0], [255, 0, 255, 0]]
    """
    check_choice("kind", kind, KINDS)
    check_count("count", count, 1)
    check_count("size", size, 1)
    check_channels(channels)
    check_count("seed", seed, 0)
    if seed >= 1 << 64:
        raise ValueError(f"seed must be below 2**64, got {seed}")
    bit_generator = np.random.Philox(key=int(seed) + (list(KINDS).index(kind) + 1 << 64))
    images = np.empty((count, channels, size, size), np.uint8)
    for start in range(0, count, _CHUNK):
        chunk = images[start : start + _CHUNK]
        chunk[:] = KINDS[kind](bit_generator, chunk.shape)
    return ImageSet(images, None, kind, source=f"generated, seed {seed}")


def _bits(bit_generator: np.random.Philox, shape: tuple[int, ...], dtype: str) -> npt.NDArray[np.unsignedinteger]:
    """Return random whole numbers of a type; each image starts with a new word, however many images are asked for."""
    pixels = math.prod(shape[1:])
    words = -(-pixels * np.dtype(dtype).itemsize // 8)
    raw = np.asarray(bit_generator.random_raw(shape[0] * words), "<u8").reshape(shape[0], words)
    return raw.view(dtype)[:, :pixels].reshape(shape)


def grey_values(bits: npt.NDArray[np.unsignedinteger], deviation: float) -> Bytes:
    """Return how many thresholds are not above 32 random bits.

    Thresholds are further apart than 2^16, so the upper half of the bits says it up to one; a search took ten times as
    long.
    """
    thresholds, of_upper_half = _tables(deviation)
    grey: Bytes = of_upper_half[bits >> np.uint32(16)]
    grey += bits >= thresholds[grey]
    return grey


@cache
def _tables(deviation: float) -> tuple[npt.NDArray[np.uint64], Bytes]:
    """Return the thresholds, with one that nothing reaches, and the grey values of bits whose lower half is 0."""
    thresholds = np.append(gaussian_thresholds(deviation).astype(np.uint64), np.uint64(1 << 32))
    upper_halves = np.arange(1 << 16, dtype=np.uint64) << np.uint64(16)
    return thresholds, np.searchsorted(thresholds, upper_halves, side="right").astype(np.uint8)


def gaussian_thresholds(deviation: float) -> npt.NDArray[np.uint32]:
    """Return 2^32 P(pixel < v) for v = 1..255: the grey value of 32 random bits is the number of those not above them.

    The error function is the C library's, which may be off in its last bits; rounding to 32 bits hides that (a test
    checks that no threshold is near a tie).
    """
    edges = (((value - 0.5) / 255 - 0.5) / deviation for value in range(1, 256))
    return np.array([round((1 << 32) * 0.5 * math.erfc(-edge / math.sqrt(2))) for edge in edges], np.uint32)


def _blobs(bit_generator: np.random.Philox, shape: tuple[int, ...]) -> Bytes:
    from scipy.ndimage import correlate1d  # slow to import

    weights = np.array([*BLUR[:0:-1], *BLUR], np.float64)
    hills = (_bits(bit_generator, shape, "<u4") < _WHITE).astype(np.float64)
    for axis in (1, 2, 3):  # whole numbers below 2^53: float64 adds them without error, in any order
        hills = correlate1d(hills, weights, axis, mode="nearest")
    values = hills.astype(np.int64)  # in units of 2^-48
    grey = (values * 255 + (_ONE**3 >> 1)) // _ONE**3
    return np.where(values * 4 < 3 * _ONE**3, 0, grey).astype(np.uint8)


KINDS: dict[str, Callable[[np.random.Philox, tuple[int, ...]], Bytes]] = {
    "uniform": lambda bits, shape: _bits(bits, shape, "u1").astype(np.uint8),
    "gaussian": lambda bits, shape: grey_values(_bits(bits, shape, "<u4"), 0.25),
    "bernoulli": lambda bits, shape: np.where(_bits(bits, shape, "u1") >= 128, np.uint8(255), np.uint8(0)),
    "blobs": _blobs,
    "gaussian_wide": lambda bits, shape: grey_values(_bits(bits, shape, "<u4"), 0.5),
}
