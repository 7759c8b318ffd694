"""BatchNorm and ReLU as one operation, against PyTorch's own two layers."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from tests.engines.torch_passes import TorchPasses
from torch import nn

from greedy_ensembles.engines.accelerate import BatchNormReLU
from greedy_ensembles.engines.norm import can_fuse, norm_relu, norm_relu_prediction
from greedy_ensembles.method import split_batchnorm


def two_layers(layer, x, first_rows, frozen):
    """BatchNorm and ReLU of PyTorch on the same weights, the first rows in training, the others frozen, or not."""
    plain = nn.BatchNorm2d(layer.num_features, eps=layer.eps, momentum=layer.momentum).to(x.device)
    plain.load_state_dict(layer.state_dict())
    first = plain.train()(x[:first_rows]).relu()
    if frozen:
        others = plain.eval()(x[first_rows:]).relu()
    else:
        mean = x[:first_rows].mean(dim=(0, 2, 3), keepdim=True)
        std = ((x[:first_rows] - mean).square().mean(dim=(0, 2, 3), keepdim=True) + layer.eps).sqrt()
        others = (x[first_rows:] - mean) / std * plain.weight[:, None, None] + plain.bias[:, None, None]
        others = others.relu()
    return torch.cat([first, others]), plain


@given(
    n=st.integers(2, 6),
    others=st.integers(0, 4),
    channels=st.integers(1, 5),
    side=st.integers(1, 4),
    frozen=st.booleans(),
    lacks=st.booleans(),
    momentum=st.sampled_from([0.1, 0.5]),
    seed=st.integers(0, 1000),
)
def test_the_gradient_by_hand_is_autograds(n, others, channels, side, frozen, lacks, momentum, seed):
    """Of x, and of the bias of a convolution that it may lack."""
    draw = torch.Generator().manual_seed(seed)
    layer = nn.BatchNorm2d(channels, momentum=momentum)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(channels, generator=draw))
        layer.bias.copy_(torch.randn(channels, generator=draw))
        layer.running_mean.copy_(torch.randn(channels, generator=draw))
        layer.running_var.copy_(torch.rand(channels, generator=draw) + 0.5)
    x = (3 * torch.randn(n + others, channels, side, side, generator=draw) + 1).requires_grad_()
    weights = torch.randn(x.shape, generator=draw)
    shift = torch.randn(channels, generator=draw).requires_grad_()
    shifts = [shift] if lacks else []
    expected, plain = two_layers(layer, x + shift[:, None, None] if lacks else x, n, frozen)
    theirs = torch.autograd.grad((expected * weights).sum(), [x, plain.weight, plain.bias, *shifts])
    found = norm_relu(x, layer, n, frozen, *shifts, passes=TorchPasses)
    ours = torch.autograd.grad((found * weights).sum(), [x, layer.weight, layer.bias, *shifts])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


@given(n=st.integers(1, 4), channels=st.integers(1, 5), side=st.integers(1, 4), seed=st.integers(0, 1000))
def test_predictions_are_what_two_layers_give(n, channels, side, seed):
    draw = torch.Generator().manual_seed(seed)
    theirs = nn.Sequential(nn.BatchNorm2d(channels, eps=0.1), nn.ReLU()).eval()
    for value in theirs[0].state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(channels, generator=draw) + 0.5)
    ours = theirs[0]
    x = 2 * torch.randn(n, channels, side, side, generator=draw)
    shift = torch.randn(channels, generator=draw)
    with torch.no_grad():
        torch.testing.assert_close(norm_relu_prediction(x, ours, passes=TorchPasses), theirs(x))
        expected = theirs(x + shift[:, None, None])
        torch.testing.assert_close(norm_relu_prediction(x, ours, shift, TorchPasses), expected)


def test_what_the_kernels_do_not_take_goes_the_usual_way():
    x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert not can_fuse(nn.BatchNorm2d(4), x)  # not on a GPU


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("first_rows", [4, 6])
def test_the_fused_layer_on_a_gpu(first_rows, statistics):
    torch.manual_seed(0)
    layer = BatchNormReLU(32).cuda()
    x = (2 * torch.randn(6, 32, 8, 8, device="cuda") + 1).contiguous(memory_format=torch.channels_last)
    assert can_fuse(layer, x)
    x.requires_grad_()
    weights = torch.randn_like(x)
    expected, plain = two_layers(layer, x, first_rows, statistics == "running")
    theirs = torch.autograd.grad((expected * weights).sum(), [x, plain.weight, plain.bias])
    with split_batchnorm(layer, first_rows, statistics):
        found = layer(x)
    ours = torch.autograd.grad((found * weights).sum(), [x, layer.weight, layer.bias])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_layer_in_predictions_on_a_gpu(dtype):
    torch.manual_seed(0)
    layer = BatchNormReLU(32).cuda().eval()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    x = torch.randn(6, 32, 8, 8, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
    with_gradients = layer(x).relu()
    assert with_gradients.requires_grad  # of weight and bias: not the fused one
    with torch.no_grad():
        found = layer(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    close = {"rtol": 2**-7, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, with_gradients.detach(), **close)
