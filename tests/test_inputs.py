import pytest
import torch
from torch import nn

from greedy_ensembles.inputs import as_normalize, device_of, dtype_of, to_model


def test_bytes_are_scaled_and_normalised_by_channel():
    images = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 2.0)
    found = to_model(images, (mean, std), torch.float32)
    for channel in range(3):
        expected = (images[:, channel].float() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(found[:, channel], expected)


def test_floats_take_the_models_type_and_tokens_pass():
    x = torch.randn(3, 2, dtype=torch.float64)
    assert to_model(x, None, torch.float32).dtype == torch.float32
    tokens = torch.arange(6).reshape(2, 3)
    assert to_model(tokens, ((0.5,), (2.0,)), torch.float32) is tokens


def test_one_number_serves_all_dimensions():
    x = torch.randn(3, 7)
    torch.testing.assert_close(to_model(x, as_normalize((1.0, 2.0)), torch.float32), (x - 1) / 2)
    torch.testing.assert_close(to_model(x, as_normalize(([0.0] * 7, [4.0] * 7)), torch.float32), x / 4)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((0.5,), r"normalize must be \(mean, std\)"),
        (((0.5, 0.5), 1.0), "2 means and 1 standard deviations"),
        ((0.0, 0.0), "must be positive"),
        (("a", 1.0), r"normalize must be \(mean, std\)"),
    ],
)
def test_bad_normalize_is_explained(value, message):
    with pytest.raises(ValueError, match=message):
        as_normalize(value)


def test_type_and_device_of_a_model():
    assert dtype_of(nn.Linear(2, 2, dtype=torch.float64)) == torch.float64
    assert dtype_of(nn.ReLU()) == torch.float32
    assert device_of(nn.ReLU()) == torch.device("cpu")
