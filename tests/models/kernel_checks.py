"""Kernels against the same mathematics in PyTorch, on a GPU, or interpreted on a CPU in a process of its own.

Triton decides at its import whether it interprets, so the CPU needs a new process: TRITON_INTERPRET=1 and this file.
"""

import torch
from torch.nn.functional import max_pool2d

from greedy_ensembles.models.norm_function import TorchPasses
from greedy_ensembles.models.norm_kernels import TritonPasses
from greedy_ensembles.models.pool_kernels import pool, pool_gradient


def check_norm(device, channels, rows, count, frozen, shifted, dtype):
    """Hold every pass over (rows, channels), of which `count` are first, against PyTorch's."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw)

    x = (2 * normal(rows, channels) + 3).to(device, dtype)
    gradient = normal(rows, channels).to(device, dtype)
    weight, bias, shift = (normal(channels).to(device) for _ in range(3))
    statistics = normal(channels), torch.rand(channels, generator=draw) + 0.5, torch.tensor(3)
    buffers = [[value.clone().to(device) for value in statistics] for _ in range(2)]
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    given = (x, count, frozen, weight, shift if shifted else None)
    theirs = TorchPasses.moments(*given, buffers[0], 0.1, 1e-5)
    ours = TritonPasses.moments(*given, buffers[1], 0.1, 1e-5)
    for a, b in [*zip(ours, theirs, strict=True), *zip(*buffers, strict=True)]:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    given = (x, count, ours, bias)
    torch.testing.assert_close(TritonPasses.output(*given), TorchPasses.output(*given), **loose)
    summed = (x, gradient, count, frozen, ours, bias)
    sums = TritonPasses.gradient_sums(*summed)
    for a, b in zip(sums, TorchPasses.gradient_sums(*summed), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=2e-2)
    given = (x, gradient, count, ours, bias)
    torch.testing.assert_close(TritonPasses.gradient(*given, sums), TorchPasses.gradient(*given, sums), **loose)
    again = TritonPasses.gradient_sums(*summed)
    assert all(torch.equal(a, b) for a, b in zip(sums, again, strict=True))  # the same bits every time


def check_pool(device, shape, dtype):
    """Hold pooling and its gradient against PyTorch's, on few different values: almost every square has ties."""
    draw = torch.Generator().manual_seed(0)

    def channels_last(values):
        return values.to(device, dtype).contiguous(memory_format=torch.channels_last)

    x = channels_last(torch.randint(-1, 3, shape, generator=draw)).requires_grad_()
    expected = max_pool2d(x, 2)
    gradient = channels_last(torch.randn(expected.shape, generator=draw))
    (theirs,) = torch.autograd.grad(expected, x, gradient)
    assert torch.equal(pool(x.detach()), expected)
    assert torch.equal(pool_gradient(x.detach(), gradient), theirs)


if __name__ == "__main__":
    for frozen in (True, False):
        check_norm("cpu", 16, 96, 64, frozen, True, torch.float32)
        check_norm("cpu", 64, 192, 128, frozen, True, torch.bfloat16)
    check_norm("cpu", 160, 20, 20, True, False, torch.float32)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((2, 16, 4, 6), (3, 5, 2, 2), (1, 64, 8, 8)):
            check_pool("cpu", shape, dtype)
