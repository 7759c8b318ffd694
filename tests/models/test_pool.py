import pytest
import torch
from torch.nn.functional import max_pool2d

from greedy_ensembles.models.pool import MaxPool2


@pytest.mark.parametrize(("side", "half"), [(32, 16), (28, 14), (7, 4), (1, 1)])
def test_odd_sides_are_rounded_up(side, half):
    x = torch.randn(2, 3, side, side)
    pooled = MaxPool2()(x)
    assert pooled.shape == (2, 3, half, half)
    assert pooled[0, 0, -1, -1] == x[0, 0, 2 * half - 2 :, 2 * half - 2 :].max()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("side", [6, 7])
def test_training_and_predicting_pool_alike_on_a_gpu(side):
    layer = MaxPool2()
    x = torch.randn(2, 8, side, side, device="cuda").contiguous(memory_format=torch.channels_last)
    x[0, 0, 3, 3] = float("nan")
    expected = max_pool2d(x, 2, ceil_mode=True)
    for found in (layer.train()(x.requires_grad_()), layer.eval()(x)):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=0, equal_nan=True)
