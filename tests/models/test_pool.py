import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from greedy_ensembles.models.pool import MaxPool2

KERNELS = """
import torch
from torch.nn.functional import max_pool2d
from greedy_ensembles.models.pool_kernels import pool, pool_gradient

torch.manual_seed(0)
for shape in [(2, 16, 4, 6), (3, 5, 2, 2), (1, 64, 8, 8)]:
    for dtype in (torch.float32, torch.bfloat16):
        # Few different values, so that there are ties in almost every square.
        x = torch.randint(-1, 3, shape).to(dtype).to("{device}").contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        expected = max_pool2d(x, 2)
        gradient = torch.randn(expected.shape).to(dtype).to("{device}").contiguous(memory_format=torch.channels_last)
        (theirs,) = torch.autograd.grad(expected, x, gradient)
        assert torch.equal(pool(x.detach()), expected)
        assert torch.equal(pool_gradient(x.detach(), gradient), theirs)
"""


@pytest.mark.parametrize(("side", "half"), [(32, 16), (28, 14), (7, 4), (1, 1)])
def test_odd_sides_are_rounded_up(side, half):
    x = torch.randn(2, 3, side, side)
    pooled = MaxPool2()(x)
    assert pooled.shape == (2, 3, half, half)
    assert pooled[0, 0, -1, -1] == x[0, 0, 2 * half - 2 :, 2 * half - 2 :].max()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton, which interprets kernels, is not here")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves are tested where there is a GPU")
def test_the_kernels_interpreted_on_a_cpu():
    script = KERNELS.replace("{device}", "cpu")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_the_kernels_on_a_gpu():
    exec(KERNELS.replace("{device}", "cuda"), {})
    layer = MaxPool2()
    x = torch.randn(2, 8, 6, 6, device="cuda").contiguous(memory_format=torch.channels_last).requires_grad_()
    assert torch.equal(layer.train()(x), layer.eval()(x))
