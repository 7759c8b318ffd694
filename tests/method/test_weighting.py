import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from greedy_ensembles.method.weighting import FromData, Gaussian, Uniform, moments, wrap


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


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


@pytest.mark.parametrize("overflow", ["none", "clip", "wrap"])
def test_samples_depend_on_the_generator_alone(overflow):
    gaussian = Gaussian(torch.zeros(3), torch.ones(3), overflow=overflow, low=-1, high=1)
    first = gaussian.sample(5000, generator(1))
    torch.rand(7)
    assert torch.equal(first, gaussian.sample(5000, generator(1)))
    assert not torch.equal(first, gaussian.sample(5000, generator(2)))


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gaussian(0.0, 1.0, overflow="warp"), "overflow must be one of .* did you mean 'wrap'"),
        (lambda: Gaussian(0.0, 1.0, overflow="clip"), "needs low and high"),
        (lambda: Gaussian(0.0, 1.0, overflow="wrap", low=1.0, high=0.0), "low must be below high"),
        (lambda: Gaussian(0.0, -1.0), "std of a Gaussian weighting must not be negative"),
        (lambda: Gaussian(float("nan"), 1.0), "mean of a Gaussian weighting must be finite"),
        (lambda: Gaussian(0.0, 1.0, scale=0.0), "scale of a Gaussian weighting must be finite and above 0"),
        (lambda: Gaussian(0.0, 1.0, scale=float("inf")), "scale of a Gaussian weighting must be finite"),
        (lambda: Gaussian(torch.zeros(3), torch.ones(2)), "mean and std of a Gaussian weighting do not fit"),
        (lambda: Uniform(0.0, float("inf"), (2,)), "high of a Uniform weighting must be finite"),
        (lambda: FromData(torch.full((3, 2), float("nan"))), "FromData needs finite examples"),
        (lambda: Gaussian(0.0, 1.0, levels=1), "levels must be at least 2"),
        (lambda: Uniform(1.0, 0.0, (2,)), "low must be below high"),
        (lambda: Uniform(torch.zeros(3), 1.0, (2,)), "low of shape .* does not fit shape"),
        (lambda: FromData(torch.zeros(3)), "FromData needs examples"),
        (lambda: moments([]), "at least one example"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
