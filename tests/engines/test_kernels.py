"""The Triton kernels: interpreted on a CPU, or as they are on a GPU."""

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.engines.torch_passes import TorchPasses

CHECKS = "tests.engines.kernel_checks"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
needs_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


def load_checks():
    """Return the checks as a module: only where Triton is, and not interpreting."""
    return importlib.import_module(CHECKS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="where there is a GPU, they need not be interpreted")
def test_interpreted_on_a_cpu():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-m", CHECKS], cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_both_kinds_of_passes_are_called_alike():
    from greedy_ensembles.engines.norm_kernels import TritonPasses

    def signatures(passes):
        return {name: inspect.signature(getattr(passes, name)) for name in vars(passes) if not name.startswith("_")}

    assert signatures(TritonPasses) == signatures(TorchPasses)


class TestOnAGpu:
    pytestmark = needs_cuda

    @pytest.mark.parametrize(
        ("channels", "rows", "count"),
        [(16, 2048, 1024), (64, 5000, 4864), (160, 4096, 4096), (256, 2048, 1024), (640, 40, 3)],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("frozen", [True, False])
    def test_norm(self, channels, rows, count, frozen, dtype):
        load_checks().check_norm("cuda", channels, rows, count, frozen, dtype)

    def test_norm_of_infinite_gradients(self):
        load_checks().check_norm_of_infinite_gradients("cuda")

    @pytest.mark.parametrize(("channels", "rows"), [(16, 100_000), (64, 4097), (160, 33), (5, 40)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_norm_prediction(self, channels, rows, dtype):
        load_checks().check_norm_prediction("cuda", channels, rows, dtype)
