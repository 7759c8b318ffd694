"""Kernels against the same mathematics in PyTorch, on a GPU, or interpreted on a CPU in a process of its own.

Triton decides at its import whether it interprets, so the CPU needs a new process: this module with TRITON_INTERPRET=1.
"""

import copy

import torch
from tests.engines.torch_passes import TorchPasses
from torch.nn.functional import cross_entropy

from greedy_ensembles.engines import norm
from greedy_ensembles.engines.accelerate import accelerate
from greedy_ensembles.engines.norm import Given
from greedy_ensembles.engines.norm_kernels import TritonPasses
from greedy_ensembles.method import split_batchnorm
from greedy_ensembles.models import PreResNet


def check_norm(device, channels, rows, count, frozen, dtype):
    """Hold every pass over (rows, channels), of which `count` are first, against PyTorch's."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    x = (2 * normal(rows, channels) + 3).to(device, dtype)
    gradient = normal(rows, channels).to(device, dtype)
    weight, bias = (normal(channels).to(device) for _ in range(2))
    statistics = normal(channels), torch.rand(channels, generator=draw) + 0.5, torch.tensor(3)
    buffers = [[value.clone().to(device) for value in statistics] for _ in range(2)]
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    given = (x, count, frozen, weight)
    theirs = TorchPasses.moments(*given, buffers[0], 0.1, 1e-5)
    ours = TritonPasses.moments(*given, buffers[1], 0.1, 1e-5)
    for a, b in [*zip(ours, theirs, strict=True), *zip(*buffers, strict=True)]:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    outputs = torch.empty_like(x), torch.empty_like(x)
    for passes, y in zip((TritonPasses, TorchPasses), outputs, strict=True):
        passes.output(x, count, ours, bias, y)
    torch.testing.assert_close(*outputs, **loose)
    summed = (x, gradient, count, frozen, ours, bias)
    sums = TritonPasses.gradient_sums(*summed)
    for a, b in zip(sums, TorchPasses.gradient_sums(*summed), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-2)
    given = (x, gradient, count, ours, bias, sums)
    torch.testing.assert_close(TritonPasses.gradient(*given), TorchPasses.gradient(*given), **loose)
    again = TritonPasses.gradient_sums(*summed)
    assert all(torch.equal(a, b) for a, b in zip(sums, again, strict=True))  # the same bits every time


def check_norm_of_infinite_gradients(device):
    """Hold what the first rows pass on to be theirs alone: where it is infinite, others are as they would be."""
    x, weight, bias = (torch.randn(n, 16, generator=torch.Generator().manual_seed(0)).to(device) for n in (96, 1, 1))
    gradient = torch.ones_like(x)
    gradient[0] = float("inf")
    buffers = torch.zeros(16, device=device), torch.ones(16, device=device), torch.tensor(0, device=device)
    by = TritonPasses.moments(x, 64, True, weight[0], buffers, 0.1, 1e-5)
    sums = TritonPasses.gradient_sums(x, gradient, 64, True, by, bias[0])
    assert not sums.mean.isfinite().all()
    given = x, gradient, 64, by, bias[0], sums
    found, expected = TritonPasses.gradient(*given)[64:], TorchPasses.gradient(*given)[64:]
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected)


def check_norm_prediction(device, channels, rows, dtype, parameters=torch.float32):
    """Hold normalisation by given statistics against PyTorch's.

    One number of x is none, and must stay none; one is infinite, and must stay infinite.
    """
    draw = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(rows, channels, generator=draw) + 3).to(device, dtype)
    x[rows // 2, channels // 2] = float("nan")
    x[1, 1] = float("inf")
    weight, bias, mean = (torch.randn(channels, generator=draw).to(device, parameters) for _ in range(3))
    weight[1] = 1.0
    variance = (torch.rand(channels, generator=draw) + 0.5).to(device, parameters)
    given = x, Given(weight, bias, mean, variance, 1e-5)
    expected, found = TorchPasses.prediction(*given), TritonPasses.prediction(*given)
    assert found.dtype == dtype
    assert found.isinf().nonzero().tolist() == [[1, 1]]
    rounding = 2**-8 if dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=2 * rounding + 1e-5, atol=1e-5)


def check_network_interpreted():
    """Hold a whole network, as a GPU runs it in training and in predictions, against PyTorch's layers."""
    torch.manual_seed(0)
    ours = PreResNet(8)
    theirs = copy.deepcopy(ours)
    x, y = torch.randn(4, 3, 6, 6).contiguous(memory_format=torch.channels_last), torch.arange(4)

    def train_and_predict(net):
        with split_batchnorm(net, 3):
            logits = net(x)
        cross_entropy(logits, y).backward()
        with torch.no_grad():
            return logits.detach(), net.eval()(x)

    expected = train_and_predict(theirs)
    norm.can_launch = lambda _: True
    with accelerate(ours):
        found = train_and_predict(ours)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5, msg=name)
    for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)


if __name__ == "__main__":
    for frozen in (True, False):
        check_norm("cpu", 16, 96, 64, frozen, torch.float32)
        check_norm("cpu", 64, 192, 128, frozen, torch.bfloat16)
    check_norm("cpu", 160, 20, 20, True, torch.float32)
    check_norm_of_infinite_gradients("cpu")
    check_norm_prediction("cpu", 16, 300, torch.float32)
    check_norm_prediction("cpu", 160, 130, torch.bfloat16)
    check_norm_prediction("cpu", 5, 40, torch.bfloat16, torch.bfloat16)
    check_network_interpreted()
