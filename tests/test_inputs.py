import numpy as np
import pytest
import torch
from torch import nn

from greedy_ensembles.inputs import as_normalize, as_stored, as_tensor, device_of, dtype_of, to_model


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
    assert torch.equal(to_model(tokens, ((0.5,), (2.0,)), torch.float32), tokens)
    for given in (x.float(), tokens, torch.zeros(2, 2, dtype=torch.uint8)):  # models may work in place
        assert to_model(given, None, torch.float32).data_ptr() != given.data_ptr()


def test_one_number_serves_all_dimensions():
    x = torch.randn(3, 7)
    torch.testing.assert_close(to_model(x, as_normalize((1.0, 2.0)), torch.float32), (x - 1) / 2)
    torch.testing.assert_close(to_model(x, as_normalize(([0.0] * 7, [4.0] * 7)), torch.float32), x / 4)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((0.5,), r"normalize must be \(mean, std\)"),
        (((0.5, 0.5), 1.0), "2 means and 1 standard deviations"),
        ((0.0, 0.0), "standard deviations positive"),
        ((float("nan"), 1.0), "must be finite"),
        ((0.0, float("inf")), "must be finite"),
        (("a", 1.0), r"normalize must be \(mean, std\)"),
    ],
)
def test_bad_normalize_is_explained(value, message):
    with pytest.raises(ValueError, match=message):
        as_normalize(value)


def test_normalize_takes_arrays_and_tensors():
    expected = ((0.5, 0.25), (1.0, 2.0))
    assert as_normalize((torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0]))) == expected
    assert as_normalize(np.array(expected)) == expected


def test_arrays_of_every_layout_become_tensors():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = x.copy()
    frozen.setflags(write=False)
    for array in (x[:, ::-1], x.astype(">f4"), frozen, x.T):
        assert torch.equal(as_tensor(array), torch.tensor(array.astype(np.float32).tolist()))
    assert as_tensor(x).data_ptr() == torch.from_numpy(x).data_ptr()  # shared where it can be


def test_byte_data_gets_bytes_where_samples_are_whole_and_the_same_scale_where_not():
    pixels = torch.tensor([[0.0, 7.0, 255.0]])
    assert as_stored(pixels, torch.uint8).dtype == torch.uint8
    for samples in (pixels - 1, pixels + 0.5, pixels * 2):
        assert torch.equal(as_stored(samples, torch.uint8), samples / 255)
    assert as_stored(pixels, torch.float32) is pixels
    already = pixels.to(torch.uint8)
    assert as_stored(already, torch.uint8) is already


def test_type_and_device_of_a_model():
    assert dtype_of(nn.Linear(2, 2, dtype=torch.float64)) == torch.float64
    assert dtype_of(nn.ReLU()) == torch.float32
    assert device_of(nn.ReLU()) == torch.device("cpu")


def test_double_precision_is_kept_until_the_mean_is_out():
    x = 1.7e9 + torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    # In single precision the three would be one number.
    assert to_model(x, ((1.7e9 + 1,), (0.5,)), torch.float32).tolist() == [[-2.0], [0.0], [2.0]]
    assert to_model(x.float(), ((0.0,), (1.0,)), torch.float32).unique().numel() == 1
