"""Kernels compile for a GPU that is not here: what the interpreter takes, the compiler may not."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from greedy_ensembles.engines import norm_kernels  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
HOPPER = GPUTarget("cuda", 90, 32)
MOST_SHARED = 227 * 1024  # bytes of a program's own memory
HALF = dict.fromkeys(("x", "y", "dy", "dx", "gradient", "weight"), "*bf16")
SINGLE = dict.fromkeys(("by", "bias", "sums", "partial", "out", "mean", "variance"), "*fp32")
STATISTICS = {"running_mean": "*fp32", "running_var": "*fp32", "tracked": "*i64", "weight": "*fp32"}
NUMBERS = dict.fromkeys(("eps", "momentum"), "fp32")


def compile_kernel(kernel, constants, types=None, warps=4, stages=3):
    """Compile for an H200, with pointers and sizes that are multiples of 16, as they are in networks."""
    kinds = HALF | SINGLE | NUMBERS | (types or {})
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or signature[name] == "i32"]
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    compiled = triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": stages})
    assert compiled.metadata.shared <= MOST_SHARED
    return compiled.asm["ptx"]


@pytest.mark.parametrize("channels", [16, 160])
def test_norms(channels):
    height, width = norm_kernels._tile(channels)
    tile = {"C": channels, "BR": height, "BC": width}
    for name in ("moments", "output", "gradient_sums", "gradient"):
        ptx = compile_kernel(getattr(norm_kernels, f"norm_{name}"), tile, warps=8)
        assert "ld.global.v4" in ptx, name  # activations are loaded 16 bytes at a time
        assert "ld.global.b16" not in ptx, name
    single = {"x": "*fp32", "y": "*fp32", "weight": "*fp32"}
    assert "st.global.v4" in compile_kernel(norm_kernels.norm_prediction, tile, single, warps=8)
    partial = {"C": channels, "P": 512, "BC": 8}
    compile_kernel(norm_kernels.norm_finish_moments, partial | {"FROZEN": True}, STATISTICS)
    compile_kernel(norm_kernels.norm_finish_sums, partial)
