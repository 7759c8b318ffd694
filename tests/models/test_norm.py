"""BatchNorm and ReLU as one layer, against PyTorch's own two."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from greedy_ensembles import tf32
from greedy_ensembles.method import frozen_batchnorm, split_batchnorm
from greedy_ensembles.models import norm
from greedy_ensembles.models.convolution import ConvNormReLU
from greedy_ensembles.models.norm import NormReLU, fork
from greedy_ensembles.models.norm_function import can_fuse, norm_relu, norm_relu_fork, norm_relu_prediction


def two_layers(layer, x, shift, first_rows, frozen):
    """BatchNorm and ReLU of PyTorch on the same weights, the first rows in training, the others frozen, or not."""
    plain = nn.BatchNorm2d(layer.num_features, eps=layer.eps, momentum=layer.momentum).to(x.device)
    plain.load_state_dict(layer.state_dict())
    shifted = x if shift is None else x + shift[:, None, None]
    first = plain.train()(shifted[:first_rows]).relu()
    if frozen:
        others = plain.eval()(shifted[first_rows:]).relu()
    else:
        mean = shifted[:first_rows].mean(dim=(0, 2, 3), keepdim=True)
        std = ((shifted[:first_rows] - mean).square().mean(dim=(0, 2, 3), keepdim=True) + layer.eps).sqrt()
        others = (shifted[first_rows:] - mean) / std * plain.weight[:, None, None] + plain.bias[:, None, None]
        others = others.relu()
    return torch.cat([first, others]), plain


@given(
    n=st.integers(2, 6),
    others=st.integers(0, 4),
    channels=st.integers(1, 5),
    side=st.integers(1, 4),
    frozen=st.booleans(),
    shifted=st.booleans(),
    momentum=st.sampled_from([0.1, 0.5]),
    seed=st.integers(0, 1000),
)
def test_the_gradient_by_hand_is_autograds(n, others, channels, side, frozen, shifted, momentum, seed):
    draw = torch.Generator().manual_seed(seed)
    layer = NormReLU(channels, momentum=momentum)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(channels, generator=draw))
        layer.bias.copy_(torch.randn(channels, generator=draw))
        layer.running_mean.copy_(torch.randn(channels, generator=draw))
        layer.running_var.copy_(torch.rand(channels, generator=draw) + 0.5)
    x = (3 * torch.randn(n + others, channels, side, side, generator=draw) + 1).requires_grad_()
    shift = torch.randn(channels, generator=draw).requires_grad_() if shifted else None
    leaves = [x, *([shift] if shifted else [])]
    weights = torch.randn(x.shape, generator=draw)
    expected, plain = two_layers(layer, x, shift, n, frozen)
    theirs = torch.autograd.grad((expected * weights).sum(), [*leaves, plain.weight, plain.bias])
    found = norm_relu(x, layer, shift, n, frozen)
    ours = torch.autograd.grad((found * weights).sum(), [*leaves, layer.weight, layer.bias])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-4)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("used", ["both", "output", "input"])
def test_gradients_of_both_uses_of_an_input_are_added(used):
    torch.manual_seed(0)
    layer, x = NormReLU(3), (2 * torch.randn(5, 3, 4, 4) + 1).requires_grad_()
    weights = [torch.randn_like(x) for _ in range(2)]
    kept = [used != "input", used != "output"]

    def loss(uses):
        return sum((w * use).sum() for w, use, keep in zip(weights, uses, kept, strict=True) if keep)

    leaves = [x] if used == "input" else [x, layer.weight, layer.bias]
    twin = copy.deepcopy(layer)
    theirs = torch.autograd.grad(loss((two_layers(twin, x, None, 5, True)[0], x)), x)
    found = norm_relu_fork(x, layer, None, 5)
    assert torch.equal(found[1], x)
    ours = torch.autograd.grad(loss(found), leaves)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-4, atol=1e-5)


class Zeros(NormReLU):
    def forward(self, x, shift=None):
        return 0 * super().forward(x, shift)


def test_a_fork_calls_the_layer_where_something_would_be_left_out(monkeypatch):
    """With the kernels' way open, as on a GPU: for layers that are watched, derived from ours, or others."""
    monkeypatch.setattr(norm, "can_fuse", lambda *_: True)
    layer, x, seen = NormReLU(3), torch.randn(5, 3, 4, 4, requires_grad=True), []
    with split_batchnorm(layer, 5):
        active, same = fork(layer, x)
    assert type(same.grad_fn).__name__ == "_NormReLUBackward"
    torch.testing.assert_close(active, copy.deepcopy(layer).normalise(x).relu())
    layer.register_forward_hook(lambda *_: seen.append(True))
    assert fork(layer, x)[1] is x
    assert seen == [True]
    assert not fork(Zeros(3), x)[0].any()
    other = nn.Sequential(nn.GroupNorm(3, 3), nn.ReLU())
    assert torch.equal(fork(other, x)[0], other(x))


@pytest.mark.parametrize("mode", ["train", "eval", "frozen", "running", "batch"])
def test_a_layer_is_what_two_layers_are(mode):
    torch.manual_seed(0)
    ours, theirs = NormReLU(3), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU())
    x = 2 * torch.randn(5, 3, 4, 4) + 1
    if mode == "eval":
        ours.eval()
        theirs.eval()
    if mode in ("running", "batch"):
        with split_batchnorm(ours, 3, mode), split_batchnorm(theirs, 3, mode):
            a, b = ours(x), theirs(x)
    elif mode == "frozen":
        with frozen_batchnorm(ours), frozen_batchnorm(theirs):
            a, b = ours(x), theirs(x)
    else:
        a, b = ours(x), theirs(x)
    assert torch.equal(a, b)
    assert all(torch.equal(value, theirs[0].state_dict()[name]) for name, value in ours.state_dict().items())


@given(n=st.integers(1, 4), channels=st.integers(1, 5), side=st.integers(1, 4), seed=st.integers(0, 1000))
def test_predictions_are_what_two_layers_give(n, channels, side, seed):
    draw = torch.Generator().manual_seed(seed)
    theirs = nn.Sequential(nn.BatchNorm2d(channels, eps=0.1), nn.ReLU()).eval()
    for value in theirs[0].state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(channels, generator=draw) + 0.5)
    ours = NormReLU(channels, eps=0.1)
    ours.load_state_dict(theirs[0].state_dict())
    x = 2 * torch.randn(n, channels, side, side, generator=draw)
    shift = torch.randn(channels, generator=draw)
    with torch.no_grad():
        torch.testing.assert_close(norm_relu_prediction(x, ours), theirs(x))
        shifted = theirs(x + shift[:, None, None])
        torch.testing.assert_close(norm_relu_prediction(x, ours, shift), shifted, rtol=1e-4, atol=1e-5)


def test_a_shift_is_the_bias_of_a_convolution():
    torch.manual_seed(0)
    block = ConvNormReLU(2, 4)
    nn.init.normal_(block.conv.bias)
    x = torch.randn(5, 2, 6, 6)
    twin = copy.deepcopy(block)
    a = block(x)
    b = twin.norm(twin.conv._conv_forward(x, twin.conv.weight, None), twin.conv.bias)
    torch.testing.assert_close(a, b)
    torch.testing.assert_close(block.norm.running_mean, twin.norm.running_mean)


def test_what_the_kernels_do_not_take_goes_the_usual_way():
    x = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    assert not can_fuse(NormReLU(4), x)  # not on a GPU


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("first_rows", [4, 6])
def test_the_fused_layer_on_a_gpu(first_rows, statistics):
    torch.manual_seed(0)
    layer = NormReLU(32).cuda()
    x = (2 * torch.randn(6, 32, 8, 8, device="cuda") + 1).contiguous(memory_format=torch.channels_last)
    assert can_fuse(layer, x)
    x.requires_grad_()
    weights = torch.randn_like(x)
    expected, plain = two_layers(layer, x, None, first_rows, statistics == "running")
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
def test_a_fork_on_a_gpu(dtype):
    torch.manual_seed(0)
    layer = NormReLU(32).cuda()
    x = torch.randn(6, 32, 8, 8, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    weights = [torch.randn_like(x) for _ in range(2)]
    with split_batchnorm(layer, 4):
        active, same = fork(copy.deepcopy(layer), x)
        expected = copy.deepcopy(layer)(x)
    assert type(same.grad_fn).__name__ == "_NormReLUBackward"
    assert torch.equal(active, expected)
    (ours,) = torch.autograd.grad((active * weights[0] + same * weights[1]).sum(), x)
    (theirs,) = torch.autograd.grad((expected * weights[0] + x * weights[1]).sum(), x)
    close = {"rtol": 2**-6, "atol": 2**-6} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(ours, theirs, **close)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fused_layer_in_predictions_on_a_gpu(dtype):
    torch.manual_seed(0)
    layer = NormReLU(32).cuda().eval()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    x = torch.randn(6, 32, 8, 8, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
    with_gradients = layer(x)
    assert with_gradients.requires_grad  # of weight and bias: not the fused one
    with torch.no_grad(), tf32.set_inside(False):
        found = layer(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    close = {"rtol": 2**-7, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, with_gradients.detach(), **close)
