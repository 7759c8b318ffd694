"""Images with scrambled phases as p*: against the definition, by their spectrum, and for images of all kinds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.method.test_weighting import generator, random_images

from greedy_ensembles.method.from_data import scramble_phases
from greedy_ensembles.method.weighting import (
    PhaseScrambled,
)


def by_definition(images, noise):
    """Scramble images one channel at a time, with the whole spectrum and in double precision."""
    scrambled = np.empty(images.shape)
    for image, field, result in zip(images.double().numpy(), noise.double().numpy(), scrambled, strict=True):
        phases = np.angle(np.fft.fft2(field))
        phases[0, 0] = 0
        for channel in range(len(image)):
            turned = np.fft.ifft2(np.fft.fft2(image[channel]) * np.exp(1j * phases))
            assert np.abs(turned.imag).max() < 1e-9 * (1 + np.abs(image).max())
            result[channel] = turned.real
    return scrambled


def check_spectrum(images, scrambled):
    """Assert that amplitudes, means and phases between channels are as they were: all that scrambling keeps."""
    before, after = (np.fft.fft2(part.double().numpy()) for part in (images, scrambled))
    scale = np.abs(before).max()
    np.testing.assert_allclose(np.abs(after), np.abs(before), rtol=0, atol=1e-4 * scale)
    np.testing.assert_allclose(after[..., 0, 0], before[..., 0, 0], rtol=0, atol=1e-4 * scale)
    between = (part * part[:, :1].conj() for part in (after, before))
    np.testing.assert_allclose(*between, rtol=0, atol=1e-4 * scale**2)


def turned_by(image, scrambled):
    """Return exp(i phi) of the field that was added to an image, for every channel and frequency."""
    turns = np.fft.fft2(scrambled.double().numpy()) / np.fft.fft2(image.double().numpy())
    return turns / np.abs(turns)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 12), st.integers(1, 12)),
    st.integers(0, 2**31),
    st.sampled_from([1e-3, 1.0, 1e4]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_scrambling_agrees_with_the_definition_and_keeps_the_spectrum(shape, seed, scale, dtype):
    images = scale * random_images(shape, seed, dtype)
    noise = torch.randn(shape[0], *shape[2:], generator=generator(seed + 1))
    scrambled = scramble_phases(images, noise)
    assert scrambled.dtype == dtype
    np.testing.assert_allclose(scrambled, by_definition(images, noise), rtol=0, atol=1e-4 * float(images.max()))
    check_spectrum(images, scrambled)


@pytest.mark.parametrize("shape", [(4, 1, 28, 28), (4, 3, 32, 32), (3, 3, 27, 31), (2, 2, 1, 8), (2, 3, 96, 64)])
def test_scrambling_agrees_with_the_definition_for_images_as_they_come(shape):
    images, noise = random_images(shape), torch.randn(shape[0], *shape[2:], generator=generator(1))
    scrambled = scramble_phases(images, noise)
    np.testing.assert_allclose(scrambled, by_definition(images, noise), rtol=0, atol=1e-4 * 255)
    check_spectrum(images, scrambled)
    assert (scrambled - images).abs().mean() > 10  # something was done


def phases_of_each_channel(images):
    noise = torch.fft.fft2(torch.randn(images.shape, generator=generator(1))).sgn()
    noise[..., 0, 0] = 1
    return torch.fft.ifft2(torch.fft.fft2(images) * noise).real


def phases_of_no_real_image(images):
    angles = 2 * np.pi * torch.rand(len(images), 1, *images.shape[2:], generator=generator(1))
    angles[..., 0, 0] = 0
    return torch.fft.ifft2(torch.fft.fft2(images) * torch.polar(torch.ones_like(angles), angles)).real


def phase_of_the_mean(images):
    noise = torch.fft.fft2(torch.randn(len(images), 1, *images.shape[2:], generator=generator(1)) - 3).sgn()
    return torch.fft.ifft2(torch.fft.fft2(images) * noise).real


@pytest.mark.parametrize("wrong", [phases_of_each_channel, phases_of_no_real_image, phase_of_the_mean])
def test_the_check_of_spectra_notices_what_is_not_scrambling(wrong):
    images = random_images((4, 3, 9, 8))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_spectrum(images, wrong(images))


def test_samples_are_images_each_scrambled_by_a_field_of_its_own():
    # Two at a time are scrambled together; the last image is of so wide a range that none of the others is clipped.
    images = random_images((5, 2, 512, 1024), seed=3) + 10 * torch.arange(5.0)[:, None, None, None]
    images[-1] = torch.where(images[-1] > 160, 1e4, -1e4)
    samples = PhaseScrambled(images).sample(5, generator())
    assert samples.dtype == torch.float32
    assert samples.abs().max() == 1e4
    means = images.mean(dim=(1, 2, 3))
    source = (samples.mean(dim=(1, 2, 3))[:, None] - means).abs().argmin(dim=1)
    rest = source != 4
    assert sorted(source[rest].tolist()) == list(range(4))  # all of them, and not in order
    assert source.tolist() != list(range(5))
    images, samples = images[source[rest]], samples[rest]
    check_spectrum(images, samples)
    turns = np.stack([turned_by(*pair) for pair in zip(images, samples, strict=True)])
    for frequency in [(0, 1), (1, 0), (3, 5), (100, 200)]:
        turn = turns[(slice(None), slice(None), *frequency)]
        np.testing.assert_allclose(turn, np.broadcast_to(turn[:, :1], turn.shape), atol=0.05)  # one for all channels
        assert len(np.unique(turn[:, 0].round(3))) == len(turn)  # and one for each sample


def test_one_image_gives_samples_that_differ_and_many_draws_use_all_images():
    image = random_images((1, 1, 8, 8), dtype=torch.uint8)
    samples = PhaseScrambled(image).sample(50, generator())
    assert len({tuple(sample.flatten().tolist()) for sample in samples}) == 50
    constant = torch.arange(9, dtype=torch.uint8)[:, None, None, None].expand(9, 3, 4, 4)
    assert sorted(PhaseScrambled(constant).sample(9, generator())[:, 0, 0, 0].tolist()) == list(range(9))
    assert set(PhaseScrambled(constant).sample(500, generator()).unique().tolist()) == set(range(9))
    assert PhaseScrambled(constant).sample(0, generator()).shape == (0, 3, 4, 4)


def test_floats_are_clipped_to_the_range_of_the_data_and_bytes_truncated_in_theirs():
    images = random_images((40, 3, 9, 7), dtype=torch.uint8)
    images[:, :, :4] //= 8  # for contrast
    wide = images.float()
    wide[0, 0, 0, 0], wide[0, 0, 0, 1] = -1e4, 1e4
    free, clipped, whole = (PhaseScrambled(x).sample(40, generator()) for x in (wide, images.float(), images))
    other = free.abs().amax(dim=(1, 2, 3)) < 2000  # not the image that was changed
    low, high = images.min(), images.max()
    assert int(other.sum()) == 39
    assert ((free < low) | (free > high))[other].float().mean() > 0.02
    assert torch.equal(clipped[other], free[other].clamp(low, high))
    assert whole.dtype == torch.uint8
    inside = (clipped > low) & (clipped < high)
    assert torch.equal(whole[inside], clipped[inside].floor().to(torch.uint8))
    assert (free[(whole == 255) & other[:, None, None, None]] >= 255).all()
    assert (free[(whole == 0) & other[:, None, None, None]] < 1).all()
    grey = PhaseScrambled(images // 8 + 100).sample(40, generator())
    assert grey.min() < 100  # bytes have the range of bytes, whichever of it the data fill
    assert grey.max() > 131


@pytest.mark.parametrize("size", [(28, 28), (27, 31), (32, 32), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.float16])
def test_constant_channels_stay_what_they_are(size, dtype):
    levels = torch.arange(256) if dtype == torch.uint8 else torch.arange(256) / 255
    images = levels.to(dtype)[:, None, None, None].expand(256, 3, *size).clone()
    images[:, 1] = random_images((256, *size), dtype=torch.float32).to(dtype)
    samples = PhaseScrambled(images).sample(256, generator())
    assert samples.dtype == dtype
    tolerance = 1e-15 if dtype == torch.float64 else 0
    for channel in (0, 2):
        flat = samples[:, channel].flatten(1)
        assert (flat - flat[:, :1]).abs().max() <= tolerance
        np.testing.assert_allclose(flat[:, 0].sort().values, levels.to(dtype), rtol=0, atol=tolerance)
    assert size == (1, 1) or not torch.equal(samples[:, 1].sort(dim=0).values, images[:, 1].sort(dim=0).values)
