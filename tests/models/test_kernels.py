"""The Triton kernels: interpreted on a CPU, or as they are on a GPU."""

import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from greedy_ensembles.models import convolution_function, norm_function

CHECKS = Path(__file__).with_name("kernel_checks.py")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def load_checks():
    """Return the checks as a module: only where Triton is, and not interpreting."""
    specification = importlib.util.spec_from_file_location("kernel_checks", CHECKS)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, they need not be interpreted")
def test_interpreted_on_a_cpu():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(CHECKS)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_both_kinds_of_passes_are_called_alike():
    from greedy_ensembles.models import convolution_passes, norm_passes

    def signatures(passes):
        return {name: inspect.signature(getattr(passes, name)) for name in vars(passes) if not name.startswith("_")}

    for ours, function in ((convolution_passes, convolution_function), (norm_passes, norm_function)):
        assert signatures(ours.TritonPasses) == signatures(function.TorchPasses)


class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize("channels", [16, 64, 160, 256, 640])
    @pytest.mark.parametrize(("rows", "count"), [(2048, 1024), (5000, 4864), (4096, 4096), (40, 3)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize(("frozen", "shifted"), [(True, True), (True, False), (False, True)])
    def test_norm(self, channels, rows, count, frozen, shifted, dtype):
        load_checks().check_norm("cuda", channels, rows, count, frozen, shifted, dtype)

    def test_norm_of_infinite_gradients(self):
        load_checks().check_norm_of_infinite_gradients("cuda")

    @pytest.mark.parametrize(("channels", "rows"), [(16, 100_000), (64, 4097), (160, 33), (5, 40)])
    @pytest.mark.parametrize(
        ("dtype", "result"), [(torch.float32, None), (torch.bfloat16, None), (torch.float32, torch.float16)]
    )
    def test_norm_prediction(self, channels, rows, dtype, result):
        load_checks().check_norm_prediction("cuda", channels, rows, dtype, result=result)

    @pytest.mark.parametrize("shape", [(2, 16, 4, 6), (3, 5, 2, 2), (1, 64, 8, 8)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_pool(self, shape, dtype):
        load_checks().check_pool("cuda", shape, dtype)

    @pytest.mark.parametrize(("inputs", "outputs"), [(1, 16), (3, 16), (16, 16), (32, 32), (64, 64), (5, 7), (24, 40)])
    @pytest.mark.parametrize(
        ("n", "height", "width", "layout"),
        [(64, 28, 28, torch.channels_last), (33, 7, 5, torch.contiguous_format)],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_convolution(self, inputs, outputs, n, height, width, layout, dtype):
        shape = n, inputs, height, width
        load_checks().check_convolution("cuda", shape, outputs, 3, dtype, layout, residual=inputs > 3)

    @pytest.mark.parametrize(
        ("inputs", "outputs"), [(16, 64), (64, 16), (32, 128), (128, 32), (64, 256), (256, 64), (5, 7)]
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_pointwise_convolution(self, inputs, outputs, dtype):
        shape = 5, inputs, 13, 11
        load_checks().check_convolution("cuda", shape, outputs, 1, dtype, torch.channels_last, residual=True)

    @pytest.mark.parametrize(
        ("inputs", "outputs", "side"), [(3, 16, 3), (16, 32, 3), (32, 64, 1), (64, 64, 3), (5, 7, 3)]
    )
    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("normalised", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_convolution_prediction(self, inputs, outputs, side, stride, normalised, dtype):
        shape = 9, inputs, 15, 14
        residual = stride == 1
        load_checks().check_convolution_prediction(
            "cuda", shape, outputs, side, stride, dtype, residual=residual, normalised=normalised
        )

    @pytest.mark.parametrize(("inputs", "outputs", "side"), [(16, 16, 3), (64, 64, 3), (16, 64, 1), (256, 64, 1)])
    @pytest.mark.parametrize("result", [torch.float16, torch.float32])
    def test_convolution_prediction_stored_in_half(self, inputs, outputs, side, result):
        shape, before_a_norm = (9, inputs, 15, 14), result == torch.float16
        given = outputs, side, 1, torch.float16, not before_a_norm, before_a_norm, result
        load_checks().check_convolution_prediction("cuda", shape, *given)

    @pytest.mark.parametrize("shape", [(16, 16, 3, 3), (64, 64, 3, 3), (24, 5, 3, 3), (64, 256, 1, 1)])
    @pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
    def test_narrow_weight(self, shape, layout):
        load_checks().check_narrow_weight("cuda", shape, layout)

    @pytest.mark.parametrize("elements", [7, 5000, 1_000_000])
    @pytest.mark.parametrize("nesterov", [False, True])
    def test_sgd(self, elements, nesterov):
        load_checks().check_sgd("cuda", elements, nesterov, torch.bfloat16)

    def test_a_weights_gradient_has_the_same_bits_every_time(self):
        load_checks().check_same_bits("cuda")
