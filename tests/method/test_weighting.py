import json
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.forms import InputForm
from greedy_ensembles.inputs import as_stored
from greedy_ensembles.method.weighting import (
    Entries,
    FromData,
    Gaussian,
    Mixture,
    Overflow,
    PhaseScrambled,
    Shuffled,
    Tokens,
    Uniform,
    apportion,
    moments,
    wrap,
)
from greedy_ensembles.runs.configuration import describe_weighting
from greedy_ensembles.training.validate import as_examples, default_weighting


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_images(shape, seed=0, dtype=torch.float32):
    values = 255 * torch.rand(shape, generator=generator(seed))
    return values.to(dtype)  # to uint8, this truncates


@given(st.lists(st.floats(-3000, 3000, width=32), min_size=1, max_size=20))
def test_wrapping_pixels_is_a_cast_to_eight_bits(values):
    wrapped = wrap(torch.tensor(values, dtype=torch.float32), 0, 255, 256)
    by_hand = [int(v) % 256 for v in values]  # int() truncates towards zero, % is never negative
    assert wrapped.tolist() == by_hand
    assert wrapped.to(torch.uint8).tolist() == np.array([int(v) for v in values]).astype(np.uint8).tolist()


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=10),
    st.floats(-5, 5),
    st.floats(0.5, 20),
    st.integers(2, 300),
)
def test_wrapping_any_range_agrees_with_the_definition(values, low, width, levels):
    step = (low + width - low) / (levels - 1)
    wrapped = wrap(torch.tensor(values, dtype=torch.float64), low, low + width, levels)
    for value, found in zip(values, wrapped.tolist(), strict=True):
        cell = int(np.trunc((value - low) / step)) % levels
        assert found == pytest.approx(low + step * cell)
        assert low - 1e-9 <= found <= low + width + 1e-9


def test_wrapping_differs_from_rounding_and_from_a_sign_that_is_kept():
    assert wrap(torch.tensor([0.6, -0.6, -1.2]), 0, 255, 256).tolist() == [0.0, 0.0, 255.0]


def test_unclipped_gaussian_has_the_moments_asked_for():
    mean, std = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0])
    samples = Gaussian(mean, std, scale=5.0).sample(40_000, generator())
    assert samples.shape == (40_000, 2)
    torch.testing.assert_close(samples.mean(dim=0), mean, rtol=0, atol=4 * 15 / 200)  # four standard errors
    torch.testing.assert_close(samples.std(dim=0), 5 * std, rtol=0.02, atol=0)


def test_clip_moves_to_the_ends_and_nothing_else():
    free = Gaussian(0.5, 0.2).sample(1000, generator())
    clipped = Gaussian(0.5, 0.2, overflow="clip", low=0.0, high=1.0).sample(1000, generator())
    assert torch.equal(clipped, free.clamp(0, 1))
    assert (free < 0).any()
    assert (free > 1).any()


def test_wrapped_samples_of_pixels_are_nearly_uniform_where_pixels_vary_and_constant_where_not():
    gaussian = Gaussian(torch.tensor([120.0, 7.9]), torch.tensor([64.0, 0.0]), overflow="wrap", low=0, high=255)
    samples = gaussian.sample(25_600, generator())
    counts = torch.bincount(samples[:, 0].long(), minlength=256)
    assert counts.max() < 160  # 100 a level, standard deviation 10
    assert counts.min() > 50
    assert samples[:, 1].eq(7).all()


def test_from_data_fits_every_dimension_and_wraps_bytes():
    x = torch.randint(0, 256, (500, 3, 4), generator=generator(), dtype=torch.uint8)
    fitted = Gaussian.from_data(x)
    np.testing.assert_allclose(fitted.mean, x.numpy().astype(float).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(fitted.std, x.numpy().astype(float).std(axis=0), rtol=1e-5)
    assert (fitted.overflow, float(fitted.low), float(fitted.high)) == ("wrap", 0, 255)
    assert Gaussian.from_data(x.float()).overflow == "none"
    assert Gaussian.from_data(x, overflow="clip").sample(10, generator()).max() <= 255


@pytest.mark.parametrize("cuts", [[200], [1, 199], [64, 64, 64, 8]])
def test_moments_do_not_depend_on_the_batches_and_survive_a_large_offset(cuts):
    x = torch.randn(200, 3, generator=generator(), dtype=torch.float64) + 1e6
    mean, std = moments(x.split(cuts))
    np.testing.assert_allclose(mean, x.numpy().mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(std, x.numpy().std(axis=0), rtol=1e-6)


def test_uniform_fills_its_box():
    samples = Uniform(torch.tensor([0.0, -1.0]), 2.0, (2,)).sample(20_000, generator())
    assert samples.shape == (20_000, 2)
    assert samples.min(dim=0).values.tolist() == pytest.approx([0, -1], abs=0.01)
    assert samples.max(dim=0).values.tolist() == pytest.approx([2, 2], abs=0.01)
    torch.testing.assert_close(samples.mean(dim=0), torch.tensor([1.0, 0.5]), rtol=0, atol=0.03)


def test_from_data_draws_distinct_examples_while_it_can():
    x = torch.arange(50, dtype=torch.float32)[:, None]
    few = FromData(x).sample(50, generator())
    assert sorted(few[:, 0].tolist()) == x[:, 0].tolist()
    many = FromData(x).sample(500, generator())
    assert len(many) == 500
    assert set(many[:, 0].tolist()) <= set(x[:, 0].tolist())
    assert FromData(x.to(torch.uint8)).sample(3, generator()).dtype == torch.uint8


def test_apportion_by_hand():
    assert apportion(50_000, [0.5, 0.5]) == [25_000, 25_000]
    assert apportion(7, [0.5, 0.5]) == [4, 3]
    assert apportion(100, [0.29, 0.71]) == [29, 71]  # of which .29 * 100 falls short, in floating point
    assert apportion(3, [0.45, 0.1, 0.45]) == [2, 0, 1]
    assert apportion(0, [0.4, 0.6]) == [0, 0]


@given(st.integers(0, 100_000), st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
def test_apportion_gives_each_its_share_to_less_than_one(n, weights):
    counts = apportion(n, [weight / sum(weights) for weight in weights])
    assert sum(counts) == n
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count * sum(weights) - n * weight) < sum(weights) * (1 + 1e-6)
        assert weight > 0 or count == 0


def test_a_mixture_has_its_shares_exactly_in_an_order_by_chance():
    parts = [Uniform(10 * k, 10 * k + 1, (2,)) for k in range(3)]
    samples = Mixture(parts, shares=[2, 1, 0]).sample(300, generator())
    origin = (samples[:, 0] // 10).long()
    assert torch.bincount(origin, minlength=3).tolist() == [200, 100, 0]
    assert 80 < int(origin[:150].eq(0).sum()) < 120  # 100, standard deviation 4
    assert len(samples.unique(dim=0)) == 300
    equal = Mixture(parts).sample(300, generator())
    assert torch.bincount((equal[:, 0] // 10).long()).tolist() == [100, 100, 100]


def test_a_mixture_of_one_draws_what_its_part_does_and_mixtures_nest():
    inner = Mixture([FromData(torch.zeros(5, 2)), FromData(torch.ones(5, 2))])
    outer = Mixture([inner, FromData(torch.full((5, 2), 2.0))], shares=np.array([0.5, 0.5]))
    assert torch.bincount(outer.sample(100, generator())[:, 0].long()).tolist() == [25, 25, 50]
    x = torch.arange(30, dtype=torch.int64)[:, None]
    tokens = Mixture([FromData(x)]).sample(30, generator())
    assert (tokens.dtype, sorted(tokens[:, 0].tolist())) == (torch.int64, list(range(30)))


def test_a_mixture_of_bytes_remains_bytes_and_with_floats_of_pixels_becomes_floats():
    images = random_images((20, 3, 8, 8), dtype=torch.uint8)
    scrambled, wrapped = PhaseScrambled(images), Gaussian.from_data(images)
    assert Mixture([scrambled, FromData(images)]).sample(10, generator()).dtype == torch.uint8
    mixed = Mixture([scrambled, wrapped])
    samples = mixed.sample(10, generator())
    assert samples.dtype == torch.float32
    assert mixed.sample(1, generator()).dtype == torch.float32  # which is of the first part
    stored = as_stored(samples, InputForm(samples.shape[1:], torch.uint8))
    assert stored.dtype == torch.uint8  # all of them are whole pixel values
    assert torch.equal(stored.float(), samples)
    assert Mixture([scrambled, Uniform(0, 1, (3, 8, 8))]).sample(3, generator()).dtype == torch.float32
    assert Mixture([FromData(images.double()), scrambled]).sample(3, generator()).dtype == torch.float64


BYTES = random_images((30, 3, 8, 8), dtype=torch.uint8)
FLOATS = random_images((30, 3, 8, 8))
ROWS = torch.arange(60).reshape(30, 2)
EVERY_KIND = {
    **{name: Gaussian(torch.zeros(3), torch.ones(3), overflow=name, low=-1, high=1) for name in get_args(Overflow)},
    "uniform": Uniform(0, 1, (2,)),
    "tokens": Tokens(50, 3),
    "examples": FromData(ROWS),
    "shuffled": Shuffled(ROWS),
    "entries": Entries({"rows": Shuffled(ROWS)}),
    "scrambled bytes": PhaseScrambled(BYTES),
    "scrambled floats": PhaseScrambled(FLOATS),
    "mixture": Mixture([PhaseScrambled(FLOATS), FromData(FLOATS)]),
}


@pytest.mark.parametrize("weighting", EVERY_KIND.values(), ids=EVERY_KIND)
def test_samples_depend_on_the_generator_alone(weighting):
    first = weighting.sample(40, generator(1))
    torch.rand(7)
    torch.testing.assert_close(weighting.sample(40, generator(1)), first, rtol=0, atol=0)
    with pytest.raises(AssertionError, match="not equal"):
        torch.testing.assert_close(weighting.sample(40, generator(2)), first, rtol=0, atol=0)


def test_arrays_that_cannot_be_written_to_and_strided_ones_are_taken():
    images = random_images((6, 8, 8, 3), dtype=torch.uint8)
    array = images.numpy()
    array.flags.writeable = False
    found = PhaseScrambled(array.transpose(0, 3, 1, 2)).sample(6, generator())
    assert torch.equal(found, PhaseScrambled(images.permute(0, 3, 1, 2).contiguous()).sample(6, generator()))


def test_run_json_tells_mixtures_apart_and_equal_ones_not():
    images = random_images((20, 3, 8, 8), dtype=torch.uint8)

    def described(*shares, x=images):
        return json.dumps(describe_weighting(Mixture([PhaseScrambled(x), Gaussian.from_data(images)], shares or None)))

    assert described() == described(1, 1) == described(0.5, 0.5)
    assert described() != described(1, 3)
    assert described() != described(x=images.flip(0))
    assert json.loads(described())["parts"][0]["high"] == 255


@pytest.mark.filterwarnings("ignore::greedy_ensembles.runs.notes.WeakMemberWarning")  # pixels of 0 to 255, as floats
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_networks_train_with_scrambled_images_and_mixtures(dtype):
    images = random_images((40, 1, 7, 8), dtype=dtype)
    recipe = ge.Recipe(epochs=1, batch_size=20)

    def make_model():
        return nn.Sequential(nn.Flatten(), nn.Linear(56, 2))

    for weighting in (PhaseScrambled(images), Mixture([PhaseScrambled(images), Gaussian.from_data(images)])):
        data = (images, torch.arange(40) % 2)
        ensemble = ge.fit(
            make_model, data, size=2, strength=1.0, weighting=weighting, recipe=recipe, device="cpu", progress=False
        )
        assert torch.isfinite(ensemble.predict_proba(images)).all()


def test_the_papers_p_star_wraps_bytes_and_leaves_floats():
    x = random_images((500, 3, 4, 4), dtype=torch.uint8)
    y = torch.arange(500) % 2
    pixels = default_weighting("paper", as_examples((x, y)))
    np.testing.assert_allclose(pixels.std, x.numpy().astype(float).std(axis=0), rtol=1e-5)
    samples = pixels.sample(2000, generator())
    assert torch.equal(samples, samples.to(torch.uint8).float())
    assert samples.mean() == pytest.approx(127.5, abs=1)  # uniform
    floats = default_weighting("paper", as_examples((x / 255, y))).sample(2000, generator())
    np.testing.assert_allclose(floats.std(dim=0), 5 * (x / 255).std(dim=0), rtol=0.1)
    assert floats.min() < -2
    with pytest.raises(ValueError, match=r"x holds torch.int64, .* pass weighting"):
        default_weighting(None, as_examples((x.long(), y)))


@dataclass
class Numbers:
    """A user's own p*, of whole numbers."""

    def sample(self, n, generator):
        return torch.randint(9, (n, 2), generator=generator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: moments([]), "at least one example"),
        (lambda: Gaussian(0.0, [1.0, -1.0]), "std of a Gaussian weighting must not be negative"),
        (lambda: Gaussian(0.0, [1.0, 1.0], overflow="clip", low=[0, 1], high=1), "low must be below high"),
        (lambda: Gaussian(0.0, 1.0, overflow="wrap", high=1), "needs low and high"),
        (lambda: Uniform([0, 2], 1, (2,)), "low must be below high"),
        (lambda: Mixture([Uniform(0, 1, (2,)), 3]), "parts of a Mixture must be a list of weightings"),
        (
            lambda: PhaseScrambled(torch.zeros(5, 8, 8)),
            r"x of PhaseScrambled .* got shape \(5, 8, 8\); use x\[:, None\]",
        ),
        (lambda: PhaseScrambled(torch.zeros(5, 8)), r"\(n, channels, height, width\), .* got shape \(5, 8\)$"),
        (lambda: Mixture([Uniform(0, 1, (2,)), Uniform(0, 1, (3,))]), r"one shape .* got \(2,\) .*, \(3,\) of"),
        (lambda: Mixture([Uniform(0, 1, (2,)), Numbers()]), "one kind of values; got .*float32, .*int64"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("shape", [(4,), (3, 3)], ids=["another width", "a row for each sample"])
def test_the_range_of_a_gaussian_fits_its_samples(shape):
    for low, high in ((torch.zeros(shape), torch.ones(3)), (torch.zeros(3), torch.ones(shape))):
        with pytest.raises(ValueError, match=rf"of a Gaussian weighting is of shape \({shape[0]}.* fit \(3,\)"):
            ge.weighting.Gaussian(torch.zeros(3), torch.ones(3), overflow="wrap", low=low, high=high)


def test_a_range_may_keep_the_dimension_of_samples():
    x = torch.randn(50, 3, generator=generator())
    ends = {"low": x.amin(0), "high": x.amax(0)}
    kept = {name: value[None] for name, value in ends.items()}
    for overflow in ("clip", "wrap"):
        flat, deep = (ge.weighting.Gaussian.from_data(x, overflow=overflow, **own) for own in (ends, kept))
        assert torch.equal(flat.sample(20, generator()), deep.sample(20, generator()))
