"""Kernels against the same mathematics in PyTorch, on a GPU, or interpreted on a CPU in a process of its own.

Triton decides at its import whether it interprets, so the CPU needs a new process: TRITON_INTERPRET=1 and this file.
"""

import copy

import torch
from torch.nn.functional import cross_entropy, max_pool2d

from greedy_ensembles import tf32
from greedy_ensembles.method import split_batchnorm
from greedy_ensembles.models import (
    PreResNet,
    convolution_function,
    convolution_passes,
    half,
    half_kernel,
    norm_function,
)
from greedy_ensembles.models.norm_function import Given, TorchPasses
from greedy_ensembles.models.norm_passes import TritonPasses
from greedy_ensembles.models.pool_kernels import pool, pool_gradient
from greedy_ensembles.training.sgd_kernel import launch


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
    for added in (None, normal(rows, channels).to(device, dtype)):
        given = (x, gradient, count, ours, bias, sums, added)
        torch.testing.assert_close(TritonPasses.gradient(*given), TorchPasses.gradient(*given), **loose)
    again = TritonPasses.gradient_sums(*summed)
    assert all(torch.equal(a, b) for a, b in zip(sums, again, strict=True))  # the same bits every time


def check_norm_of_infinite_gradients(device):
    """Hold what the first rows pass on to be theirs alone: where it is infinite, others are as they would be."""
    x, weight, bias = (torch.randn(n, 16, generator=torch.Generator().manual_seed(0)).to(device) for n in (96, 1, 1))
    gradient = torch.ones_like(x)
    gradient[0] = float("inf")
    buffers = torch.zeros(16, device=device), torch.ones(16, device=device), torch.tensor(0, device=device)
    by = TritonPasses.moments(x, 64, True, weight[0], None, buffers, 0.1, 1e-5)
    sums = TritonPasses.gradient_sums(x, gradient, 64, True, by, bias[0])
    assert not sums.mean.isfinite().all()
    given = x, gradient, 64, by, bias[0], sums
    found, expected = TritonPasses.gradient(*given)[64:], TorchPasses.gradient(*given)[64:]
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected)


def check_narrow_weight(device, shape, layout):
    """Hold stored weights against PyTorch's, bit by bit: of any size, next to nothing, and next to infinity.

    What is no number, or infinite, stays that.
    """
    draw = torch.Generator().manual_seed(0)
    size = 10.0 ** torch.randint(-35, 35, (shape[0], 1, 1, 1), generator=draw)
    weight = size * torch.randn(shape, generator=draw)
    weight[0], weight[1, 0], weight[2], weight[3] = 0, 0, 1e-45, 2.0**127
    weight[-2, 0, 0, 0], weight[-1, -1, -1, -1] = float("nan"), float("inf")
    expected = half.narrow_weight(weight)
    found = half_kernel.narrow_weight(weight.to(device).contiguous(memory_format=layout))
    assert found.stored.is_contiguous(memory_format=torch.channels_last)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.cpu()[1:-2], b[1:-2])  # of nothing, any multiple will do
    assert not found.stored[0].any()
    for row, place in ((-2, (0, 0, 0)), (-1, (-1, -1, -1))):
        assert not found.stored[row][place].isfinite()
    back = found.stored.cpu().double() * (half.SCALE * found.unit.cpu().double())[:, None, None, None]
    off = (back - weight.double()).abs() / weight.double().abs().amax(dim=(1, 2, 3), keepdim=True)
    assert off[4:-2].max() <= 2**-11  # half a unit in the last of eleven bits


def check_norm_prediction(device, channels, rows, dtype, parameters=torch.float32, result=None):
    """Hold normalisation by given statistics against PyTorch's.

    One number of x is none, and must stay none; one is larger than half precision has them, and must stay a number;
    one is infinite, and must stay infinite.
    """
    draw = torch.Generator().manual_seed(0)
    x = (2 * torch.randn(rows, channels, generator=draw) + 3).to(device, dtype)
    x[rows // 2, channels // 2] = float("nan")
    x[0, 1], x[1, 1] = 1e8, float("inf")
    weight, bias, mean = (torch.randn(channels, generator=draw).to(device, parameters) for _ in range(3))
    weight[1] = 1.0
    variance = (torch.rand(channels, generator=draw) + 0.5).to(device, parameters)
    given = x, Given(weight, bias, mean, variance, 1e-5), result
    expected, found = TorchPasses.prediction(*given), TritonPasses.prediction(*given)
    assert found.dtype == (result or dtype)
    assert found.isinf().nonzero().tolist() == [[1, 1]]
    rounding = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(found.dtype, 0.0)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=2 * rounding + 1e-5, atol=1e-5)


def check_pool(device, shape, dtype):
    """Hold pooling and its gradient against PyTorch's, on few different values: almost every square has ties."""
    draw = torch.Generator().manual_seed(0)

    def channels_last(values):
        return values.to(device, dtype).contiguous(memory_format=torch.channels_last)

    x = channels_last(torch.randint(-1, 3, shape, generator=draw)).requires_grad_()
    unknown = x.detach().clone()
    unknown[0, 0, 1, 0] = float("nan")  # which stays none
    torch.testing.assert_close(pool(unknown), max_pool2d(unknown, 2), rtol=0, atol=0, equal_nan=True)
    expected = max_pool2d(x, 2)
    gradient = channels_last(torch.randn(expected.shape, generator=draw))
    (theirs,) = torch.autograd.grad(expected, x, gradient)
    assert torch.equal(pool(x.detach()), expected)
    assert torch.equal(pool_gradient(x.detach(), gradient), theirs)


def check_convolution(device, shape, outputs, side, dtype, layout, residual):
    """Hold every pass on x of a shape against PyTorch's, in whole numbers, whose sums are exact: not a bit differs.

    Sums go far beyond where half precision rounds whole numbers: rounding before the residual is added would show.
    """
    draw = torch.Generator().manual_seed(0)

    def whole(largest, shape, layout=torch.channels_last):
        values = torch.randint(-largest, largest + 1, shape, generator=draw)
        return values.to(device, dtype).contiguous(memory_format=layout)

    ours, theirs = convolution_passes.TritonPasses, convolution_function.TorchPasses
    x, weight = whole(3, shape), whole(100, (outputs, shape[1], side, side), layout)
    gradient = whole(3, (shape[0], outputs, *shape[2:]))
    given = x, weight, whole(100, gradient.shape) if residual else None, 1, None
    found = ours.output(*given)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, theirs.output(*given))
    found = ours.input_gradient(gradient, weight)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, theirs.input_gradient(gradient, weight))
    found = ours.weight_gradient(x, gradient, weight)
    assert found.dtype == dtype
    assert torch.equal(found, theirs.weight_gradient(x, gradient, weight))


def check_convolution_prediction(device, shape, outputs, side, stride, dtype, residual, normalised, result=None):
    """Hold the output at a stride, normalised and activated, against PyTorch's; one number is none, and stays none.

    Sums of whole numbers are exact, statistics are powers of two: what is left is one rounding of the result. A
    result in half precision has a number beyond its largest, which must stay a number.
    """
    draw = torch.Generator().manual_seed(0)

    def whole(largest, shape):
        values = torch.randint(-largest, largest + 1, shape, generator=draw)
        return values.to(device, dtype).contiguous(memory_format=torch.channels_last)

    ours, theirs = convolution_passes.TritonPasses, convolution_function.TorchPasses
    x, weight = whole(3, shape), whole(10, (outputs, shape[1], side, side))
    x[-1, 0, 0, 0] = float("nan")
    if result == torch.float16:
        x[0, :, 0, 0], weight[0] = 6e4, 100
    sides = [convolution_function.strided(length, stride) for length in shape[2:]]
    added = whole(100, (shape[0], outputs, *sides)).to(result or dtype) if residual else None
    powers = [2.0 ** torch.randint(-3, 4, (outputs,), generator=draw).to(device) for _ in range(3)]
    by = Given(powers[0], whole(5, (1, outputs, 1, 1)).flatten(), powers[1], powers[2].square() - 2**-8, 2**-8)
    unit = None if result is None else 2.0 ** torch.randint(-3, 4, (outputs,), generator=draw).to(device)
    given = x, weight, added, stride, by if normalised else None, result, unit
    with tf32.set_inside(False):
        found, expected = ours.output(*given), theirs.output(*given)
    assert found.shape == (shape[0], outputs, *sides)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert expected.isnan().any()
    assert found.dtype == (result or dtype)
    assert not found.isinf().any()
    torch.testing.assert_close(found, expected, rtol=torch.finfo(found.dtype).eps, atol=0.0, equal_nan=True)


def check_same_bits(device):
    """Hold two runs of a weight's gradient against each other, on numbers whose sums depend on their order."""
    draw = torch.Generator().manual_seed(0)
    x, gradient = (
        torch.randn(16, 16, 9, 9, generator=draw).to(device).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    weight = torch.empty(16, 16, 3, 3, device=device)
    first, second = (convolution_passes.TritonPasses.weight_gradient(x, gradient, weight) for _ in range(2))
    assert torch.equal(first, second)


def check_convolutions_interpreted():
    """Check few small images: several tiles of pixels, sides that differ, all that is masked, several partial sums.

    Interpreted products of bfloat16 are those of its bits, taken for whole numbers; float16 has its size.
    """
    half, last, first = torch.float16, torch.channels_last, torch.contiguous_format
    check_convolution("cpu", (2, 1, 13, 11), 16, 3, half, last, residual=False)
    check_convolution("cpu", (2, 3, 6, 5), 16, 3, torch.float32, first, residual=False)
    check_convolution("cpu", (3, 16, 9, 11), 16, 3, half, last, residual=True)
    check_convolution("cpu", (2, 32, 7, 4), 32, 3, half, first, residual=True)
    check_convolution("cpu", (2, 64, 4, 9), 64, 3, torch.float32, last, residual=True)
    check_convolution("cpu", (1, 16, 12, 12), 64, 1, half, last, residual=True)
    check_convolution("cpu", (1, 128, 5, 3), 32, 1, half, first, residual=False)
    check_convolution("cpu", (2, 5, 3, 2), 7, 3, half, last, residual=True)
    check_convolution("cpu", (1, 24, 1, 1), 40, 3, torch.float32, first, residual=False)
    for stride, residual, normalised in ((1, False, True), (2, True, True), (2, False, False), (3, True, False)):
        check_convolution_prediction("cpu", (2, 16, 7, 10), 24, 3, stride, torch.float32, residual, normalised)
    check_convolution_prediction("cpu", (2, 3, 5, 6), 16, 3, 2, half, residual=False, normalised=True)
    check_convolution_prediction("cpu", (3, 32, 8, 5), 64, 1, 2, half, residual=True, normalised=False)
    for result, normalised in ((half, True), (torch.float32, False)):
        check_convolution_prediction("cpu", (2, 16, 9, 8), 32, 3, 1, half, not normalised, normalised, result)
    check_narrow_weight("cpu", (16, 16, 3, 3), last)
    check_narrow_weight("cpu", (24, 5, 3, 3), first)
    check_narrow_weight("cpu", (7, 40, 1, 1), first)
    # So that the loops over chunks and over partial sums have several turns.
    convolution_passes.PROGRAMS, convolution_passes._ADDED = 2, convolution_passes._NARROW
    check_convolution("cpu", (5, 16, 9, 11), 16, 3, half, last, residual=False)
    check_convolution("cpu", (3, 64, 11, 9), 16, 1, half, last, residual=False)


def check_sgd(device, elements, nesterov, dtype):
    """Hold three steps of SGD against PyTorch's, on a gradient and a copy of a type; and nothing beyond is touched."""
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(elements + 7, generator=draw).to(device)
    weight, momentum = start.clone(), torch.zeros_like(start)
    copy = torch.zeros_like(start, dtype=dtype)
    theirs = torch.nn.Parameter(start[:elements].clone())
    options = {"momentum": 0.9, "weight_decay": 0.1, "nesterov": nesterov}
    optimizer = torch.optim.SGD([theirs], lr=0.3, **options)
    for _ in range(3):
        gradient = torch.randn(elements, generator=draw).to(device, dtype)
        given = weight[:elements], momentum[:elements], gradient, copy[:elements]
        launch(*given, torch.tensor(0.3, device=device), 0.9, 0.1, nesterov)
        theirs.grad = gradient.float()
        optimizer.step()
    expected = optimizer.state[theirs]["momentum_buffer"]
    torch.testing.assert_close(weight[:elements], theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(momentum[:elements], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(copy[:elements], weight[:elements].to(dtype))
    assert torch.equal(weight[elements:], start[elements:])
    assert not momentum[elements:].any()
    assert not copy[elements:].any()


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
        with torch.no_grad(), tf32.set_inside(False):
            return logits.detach(), net.eval()(x)

    expected = train_and_predict(theirs)
    for module, passes in ((norm_function, TritonPasses), (convolution_function, convolution_passes.TritonPasses)):
        module.can_launch, module._passes = lambda _: True, lambda _, passes=passes: passes
    convolution_function.has_tensor_cores = lambda _: True
    for found, other in zip(train_and_predict(ours), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5, msg=name)
    for (name, a), b in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=name)
    with torch.no_grad(), tf32.set_inside(True):
        off = (ours(x) - expected[1]).abs().max() / expected[1].abs().max()
    assert 1e-5 < off < 2**-9, off  # what is stored in half precision has ten bits behind the point


if __name__ == "__main__":
    for nesterov in (False, True):
        check_sgd("cpu", 5000, nesterov, torch.float16)
    check_convolutions_interpreted()
    for frozen in (True, False):
        check_norm("cpu", 16, 96, 64, frozen, True, torch.float32)
        check_norm("cpu", 64, 192, 128, frozen, True, torch.bfloat16)
    check_norm("cpu", 160, 20, 20, True, False, torch.float32)
    check_norm_of_infinite_gradients("cpu")
    check_norm_prediction("cpu", 16, 300, torch.float32)
    check_norm_prediction("cpu", 160, 130, torch.bfloat16)
    check_norm_prediction("cpu", 5, 40, torch.bfloat16, torch.bfloat16)
    check_norm_prediction("cpu", 16, 40, torch.float32, result=torch.float16)
    for dtype in (torch.float32, torch.bfloat16):
        for shape in ((2, 16, 4, 6), (3, 5, 2, 2), (1, 64, 8, 8)):
            check_pool("cpu", shape, dtype)
    check_network_interpreted()
