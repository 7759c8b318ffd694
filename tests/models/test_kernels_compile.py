"""Kernels compile for a GPU that is not here: what the interpreter takes, the compiler may not."""

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from greedy_ensembles.models import convolution_kernels, half_kernel, norm_kernels, norm_passes, pool_kernels  # noqa: E402
from greedy_ensembles.models.convolution_tiles import output_tile, weight_tile  # noqa: E402
from greedy_ensembles.training import sgd_kernel  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
HOPPER = GPUTarget("cuda", 90, 32)
MOST_SHARED = 227 * 1024  # bytes of a program's own memory
HALF = dict.fromkeys(("x", "y", "unit", "dy", "dx", "gradient", "added", "residual", "weight", "copy"), "*bf16")
SINGLE = dict.fromkeys(("by", "bias", "sums", "partial", "out", "mean", "variance", "shift", "buffer", "rate"), "*fp32")
STATISTICS = {"running_mean": "*fp32", "running_var": "*fp32", "tracked": "*i64", "weight": "*fp32"}
NUMBERS = dict.fromkeys(("eps", "norm_eps", "momentum", "decay"), "fp32")
NORM = {f"norm_{name}": "*fp32" for name in ("weight", "bias", "mean", "variance")}


def compile_kernel(kernel, constants, types=None, warps=4, stages=3):
    """Compile for an H200, with pointers and sizes that are multiples of 16, as they are in networks."""
    kinds = HALF | SINGLE | NUMBERS | NORM | (types or {})
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


@pytest.mark.parametrize(("inputs", "outputs", "side", "stride"), [(3, 16, 3, 1), (16, 16, 3, 1), (32, 64, 1, 2)])
@pytest.mark.parametrize("precision", ["bf16", "tf32", "tf32x3"])
def test_convolution(inputs, outputs, side, stride, precision):
    wide = precision != "bf16"
    tile = output_tile(side, inputs, outputs, 4 if wide else 2)
    sizes = {"H": 32, "W": 32, "C": inputs, "OUT": outputs, "SIDE": side, "STRIDE": stride}
    constants = {"UNIT": False, "RESIDUAL": True, "NORM": wide, "PRECISION": precision if wide else "tf32x3"}
    tiled = {"BP": tile.pixels, "BO": tile.outputs, "BJ": tile.depth}
    types = dict.fromkeys(("x", "y", "weight", "residual"), "*fp32") if wide else None
    launch = {"warps": tile.warps, "stages": tile.stages}
    ptx = compile_kernel(convolution_kernels.convolution, sizes | constants | tiled, types, **launch)
    assert "mma" in ptx  # tensor cores are used
    # Factors of single precision are rounded to the nearest, which tensor cores would not do.
    assert ("cvt.rna.tf32.f32" in ptx) == wide


@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("result", ["*fp16", "*fp32"])
def test_convolution_of_what_is_stored_in_half(side, result):
    tile = output_tile(side, 16, 16, 2)
    sizes = {"H": 32, "W": 32, "C": 16, "OUT": 16, "SIDE": side, "STRIDE": 1}
    constants = {"UNIT": True, "RESIDUAL": result == "*fp32", "NORM": result == "*fp16", "PRECISION": "tf32x3"}
    tiled = {"BP": tile.pixels, "BO": tile.outputs, "BJ": tile.depth}
    types = {"x": "*fp16", "y": result, "weight": "*fp16", "residual": "*fp32", "unit": "*fp32"}
    launch = {"warps": tile.warps, "stages": tile.stages}
    ptx = compile_kernel(convolution_kernels.convolution, sizes | constants | tiled, types, **launch)
    assert "k16.f32.f16.f16" in ptx  # factors of half precision, sums in single
    taps = {"C": 16, "TAPS": side * side, "BLOCK": 256}
    compile_kernel(half_kernel._narrow_weight, taps, {"weight": "*fp32", "stored": "*fp16", "unit": "*fp32"})


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 64), (16, 16)])
def test_gradient_of_a_convolutions_weight(inputs, outputs):
    tile = weight_tile(3, inputs, outputs)
    sizes = {"H": 32, "W": 32, "C": inputs, "OUT": outputs, "SIDE": 3}
    tiled = {"BP": tile.pixels, "BO": tile.outputs, "BJ": tile.depth}
    kernels = convolution_kernels
    kernel = kernels.convolution_sums if inputs < 16 else kernels.convolution_sums_by_row
    assert "mma" in compile_kernel(kernel, sizes | tiled, warps=tile.warps, stages=tile.stages)
    compile_kernel(kernels.convolution_add_up, {"BR": 256, "BLOCK": 16}, {"out": "*bf16"})


@pytest.mark.parametrize("channels", [16, 160])
def test_norms(channels):
    height, width = norm_passes._tile(channels)
    tile = {"C": channels, "BR": height, "BC": width}
    for name in ("moments", "output", "gradient_sums", "gradient"):
        more = {"ADDED": True} if name == "gradient" else {}
        ptx = compile_kernel(getattr(norm_kernels, f"norm_{name}"), tile | more, warps=8)
        assert "ld.global.v4" in ptx, name  # activations are loaded 16 bytes at a time
        assert "ld.global.b16" not in ptx, name
    for result in ("*fp32", "*fp16"):
        ptx = compile_kernel(
            norm_kernels.norm_prediction, tile, {"x": "*fp32", "y": result, "weight": "*fp32"}, warps=8
        )
        assert "st.global.v4" in ptx
    partial = {"C": channels, "P": 512, "BC": 8}
    compile_kernel(norm_kernels.norm_finish_moments, partial | {"FROZEN": True, "HAS_SHIFT": True}, STATISTICS)
    compile_kernel(norm_kernels.norm_finish_sums, partial)


def test_pooling_and_sgd():
    for kernel in (pool_kernels._pool, pool_kernels._pool_gradient):
        compile_kernel(kernel, {"C": 64, "W": 16, "BLOCK": 1024})
    for nesterov in (True, False):
        ptx = compile_kernel(sgd_kernel._sgd, {"NESTEROV": nesterov, "BLOCK": 2048}, {"weight": "*fp32"})
        assert "ld.global.b16" not in ptx
