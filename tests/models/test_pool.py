import pytest
import torch

from greedy_ensembles.models.pool import MaxPool2


@pytest.mark.parametrize(("side", "half"), [(32, 16), (28, 14), (7, 4), (1, 1)])
def test_odd_sides_are_rounded_up(side, half):
    x = torch.randn(2, 3, side, side)
    pooled = MaxPool2()(x)
    assert pooled.shape == (2, 3, half, half)
    assert pooled[0, 0, -1, -1] == x[0, 0, 2 * half - 2 :, 2 * half - 2 :].max()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_training_and_predicting_pool_alike_on_a_gpu():
    layer = MaxPool2()
    x = torch.randn(2, 8, 6, 6, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    assert torch.equal(layer.train()(x), layer.eval()(x))
