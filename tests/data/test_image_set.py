import math

import numpy as np
import pytest
from PIL import Image
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.data.image_set import fit_square, squeeze


def test_it_refuses_what_is_no_set_of_images():
    good = np.zeros((2, 1, 4, 4), np.uint8)
    with pytest.raises(TypeError, match="uint8 array, got float64"):
        ge.data.ImageSet(good.astype(float), None, "x")
    with pytest.raises(ValueError, match="1 or 3 channels"):
        ge.data.ImageSet(good.reshape(2, 2, 2, 4), None, "x")
    with pytest.raises(ValueError, match=r"must be in 0\.\.1, got 0\.\.2"):
        ge.data.ImageSet(good, np.array([0, 2]), "x", ("a", "b"))


def test_labels_become_int64():
    assert ge.data.ImageSet(np.zeros((1, 1, 2, 2), np.uint8), np.array([1], np.uint8), "x").labels.dtype == np.int64


def test_channel_means_are_those_of_floats(random_bytes):
    images = random_bytes(20, 3, 5, 6)
    expected = images.astype(float).mean(axis=(0, 2, 3)) / 255
    assert ge.data.ImageSet(images, None, "x").channel_means == pytest.approx(expected, abs=1e-15)
    assert np.isnan(ge.data.ImageSet(images[:0], None, "x").channel_means).all()


def test_grey_is_pillows_grey(random_bytes):
    images = random_bytes(3, 3, 8, 8)
    grey = ge.data.ImageSet(images, None, "x").with_channels(1).images
    for image, ours in zip(images, grey, strict=True):
        assert (np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L")) == ours[0]).all()


def test_resizing_averages_over_all_pixels_that_it_drops():
    """Without antialiasing, a checkerboard of single pixels halved would come out black or white."""
    board = np.indices((32, 32)).sum(0) % 2 * np.uint8(255)
    small = ge.data.ImageSet(board.astype(np.uint8)[None, None], None, "x").resized(8).images
    assert small.shape == (1, 1, 8, 8)
    assert abs(small.astype(int) - 127).max() <= 3


def squeezed_in_a_loop(pixels, size):
    """OpenCV's bilinear resize of bytes, one pixel at a time in whole numbers."""
    height, width, channels = pixels.shape
    result = np.zeros((size, size, channels), np.uint8)
    for i in range(size):
        y = (i + 0.5) * (height / size) - 0.5
        down = round((y - math.floor(y)) * 2048)
        rows = [min(max(math.floor(y) + step, 0), height - 1) for step in (0, 1)]
        for j in range(size):
            x = (j + 0.5) * (width / size) - 0.5
            across = round((x - math.floor(x)) * 2048)
            columns = [min(max(math.floor(x) + step, 0), width - 1) for step in (0, 1)]
            for c in range(channels):
                of_rows = [
                    int(pixels[row, columns[0], c]) * (2048 - across) + int(pixels[row, columns[1], c]) * across
                    for row in rows
                ]
                upper, lower = (of_rows[0] >> 4) * (2048 - down) >> 16, (of_rows[1] >> 4) * down >> 16
                result[i, j, c] = (upper + lower + 2) >> 2
    return result


@pytest.mark.parametrize("shape", [(64, 64, 3), (105, 105, 1), (41, 67, 3), (9, 5, 3), (12, 12, 1)])
def test_whole_pictures_are_resized_as_opencv_does(random_bytes, shape):
    pixels = random_bytes(*shape)
    result = squeeze(pixels, 12)
    assert np.array_equal(result, squeezed_in_a_loop(pixels, 12))
    images = ge.data.ImageSet(np.ascontiguousarray(pixels.transpose(2, 0, 1))[None], None, "x")
    assert np.array_equal(images.resized(12, "whole").images[0], result.transpose(2, 0, 1))


def test_bytes_that_opencv_gave():
    """cv2.resize(pixels, (4, 4)) of OpenCV 5.0.0."""
    pixels = (np.arange(9 * 7) * 37 % 256).astype(np.uint8).reshape(9, 7, 1)
    assert squeeze(pixels, 4)[..., 0].tolist() == [
        [16, 80, 145, 210],
        [22, 87, 152, 217],
        [29, 94, 159, 223],
        [36, 101, 165, 230],
    ]


def test_a_whole_picture_keeps_its_edges_and_its_grain():
    board = np.indices((36, 60)).sum(0) % 2 * np.uint8(255)
    small = ge.data.ImageSet(board.astype(np.uint8)[None, None], None, "x").resized(12, "whole").images
    assert set(np.unique(small)) == {0, 255}  # a third, by single pixels; averages would be grey
    with pytest.raises(ValueError, match="resize must be one of 'crop', 'whole'"):
        ge.data.ImageSet(small, None, "x").resized(4, "all")


def test_the_crop_is_the_centre():
    wide = np.zeros((4, 10, 3), np.uint8)
    wide[:, 3:7] = 200
    assert (np.asarray(fit_square(Image.fromarray(wide), 4)) == 200).all()
    assert (np.asarray(fit_square(Image.fromarray(wide.transpose(1, 0, 2)), 4)) == 200).all()


def test_notes_add_up():
    plain = ge.data.ImageSet(np.zeros((1, 1, 2, 2), np.uint8), None, "x")
    assert plain.with_note("").note == ""
    assert plain.with_note("partial").with_note("").with_note("stand-in").note == "partial; stand-in"


def test_a_set_goes_into_fit_and_predict_as_it_is(random_bytes):
    data = ge.data.ImageSet(random_bytes(40, 1, 4, 4), np.arange(40) % 2, "x")
    recipe = ge.Recipe(epochs=1, normalize=(0.5, 0.25))
    ensemble = ge.fit(
        lambda: nn.Sequential(nn.Flatten(), ge.models.MLP(16)),
        (data.images, data.labels),
        size=1,
        method="deep",
        recipe=recipe,
        progress=False,
    )
    noise = ge.data.make_noise("gaussian", 5, size=4, channels=1)
    assert ensemble.predict_proba(noise.images).shape == (1, 5, 2)
