"""Layers and networks as training leaves them, the same in PyTorch's layers, and a CPU that goes a GPU's way."""

from types import SimpleNamespace

import pytest
import torch
from benchmarks import pytorchs as twins
from torch import nn

from greedy_ensembles.models import convolution, convolution_function, norm_function
from greedy_ensembles.models.norm import NormReLU


@pytest.fixture(scope="session")
def trained():
    """Makers of what training leaves: `norm(channels, seed)` and `network(make_net, *depth)`, in eval mode."""
    return SimpleNamespace(norm=_settled, network=_with_statistics)


@pytest.fixture(scope="session")
def pytorchs():
    """Makers of the same in PyTorch's layers, on the same weights: `layer`, `block` and `network`; `error_in_tf32`."""
    return SimpleNamespace(layer=twins.layer, block=twins.Block, network=twins.network, error_in_tf32=_error_in_tf32)


def _settled(channels, seed):
    """Return a layer as training leaves it: weights and statistics that are neither 0 nor 1."""
    draw = torch.Generator().manual_seed(seed)
    layer = NormReLU(channels, eps=0.3).eval()
    for values in (layer.weight.data, layer.bias.data, layer.running_mean):
        values.copy_(torch.randn(channels, generator=draw))
    layer.running_var.copy_(torch.rand(channels, generator=draw) + 0.1)
    return layer


def _with_statistics(make_net, *depth):
    """Return a network as training leaves it: each norm's statistics are those of what it sees."""
    torch.manual_seed(0)
    net = make_net(*depth)
    for layer in net.modules():
        if isinstance(layer, NormReLU):
            layer.momentum = 1.0
            nn.init.normal_(layer.bias, std=0.3)
            nn.init.uniform_(layer.weight, 0.3, 1.5)
        elif isinstance(layer, nn.Conv2d) and layer.bias is not None:
            nn.init.normal_(layer.bias, std=0.3)
    with torch.no_grad():
        net(torch.rand(16, 3, 32, 32))
    return net.eval()


def _error_in_tf32(net, x):
    """Return how far a network is from exact where factors of its convolutions have ten bits, and all else has many."""
    exact = twins.network(net).double()
    with torch.no_grad():
        expected = exact(x.double())
        for layer in exact.modules():
            if isinstance(layer, nn.Conv2d):
                layer.weight.copy_(_as_tf32(layer.weight))
                layer.register_forward_pre_hook(lambda _layer, inputs: _as_tf32(inputs[0]))
        return (exact(x.double()) - expected).abs().max()


def _as_tf32(values):
    """Return values with ten bits behind the point, rounded to the nearest."""
    bits = values.float().view(torch.int32) + 0x1000
    return (bits & ~0x1FFF).view(torch.float32).double()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Take the way that a GPU takes, with the kernels' mathematics in PyTorch, and return what convolutions saw.

    That is, for each: the types of what it read, left and added.
    """
    for module in (convolution, convolution_function, norm_function):
        monkeypatch.setattr(module, "can_launch", lambda _: True)
    output, seen = convolution_function.TorchPasses.output, []

    def spy(x, weight, residual, stride=1, given=None, dtype=None, unit=None):
        assert weight.dtype == x.dtype
        assert (unit is None) == (x.dtype != torch.float16)
        seen.append((x.dtype, dtype, None if residual is None else residual.dtype))
        y = output(x, weight, residual, stride, given, dtype, unit)
        return y.contiguous(memory_format=torch.channels_last)  # as the kernels leave it

    monkeypatch.setattr(convolution_function.TorchPasses, "output", staticmethod(spy))
    return seen
