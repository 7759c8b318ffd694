"""The passes of `convolution_function` on a GPU: which kernels of `convolution_kernels` run, on how many programs."""

import torch
import triton
from torch import Tensor

from greedy_ensembles.models import convolution_kernels as kernels
from greedy_ensembles.models.convolution_function import strided
from greedy_ensembles.models.convolution_tiles import FEW, PROGRAMS, Tile, output_tile, weight_tile
from greedy_ensembles.models.norm_function import Given
from greedy_ensembles.models.tf32_kernel import precision

_ADDED = 4096  # elements of a tile of partial sums
_NARROW = 16  # weights of a program that adds up partial sums


class TritonPasses:
    """The three passes on a GPU; all activations are (n, channels, height, width), channels last."""

    @staticmethod
    def output(
        x: Tensor,
        weight: Tensor,
        residual: Tensor | None,
        stride: int = 1,
        given: Given | None = None,
        dtype: torch.dtype | None = None,
        unit: Tensor | None = None,
    ) -> Tensor:
        """Return the convolution in units, plus the residual, normalised and activated as given, rounded once.

        The result is of the type asked for, or else of x's.
        """
        outputs, inputs, side, _ = weight.shape
        strides = weight.stride(0), weight.stride(1), weight.stride(3)
        tile = output_tile(side, inputs, outputs, x.element_size())
        return _run(x, weight, strides, outputs, side, tile, residual, stride, given, dtype, unit)

    @staticmethod
    def input_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to x, given that of the output."""
        outputs, inputs, side, _ = weight.shape
        # The same weights with both channels exchanged, read from the last tap to the first.
        strides = weight.stride(1), weight.stride(0), -weight.stride(3)
        tile = output_tile(side, outputs, inputs, gradient.element_size())
        return _run(gradient, weight[:, :, -1:, -1:], strides, inputs, side, tile)

    @staticmethod
    def weight_gradient(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the weight, of its type."""
        outputs, inputs, side, _ = weight.shape
        n, _, height, width = x.shape
        tile = weight_tile(side, inputs, outputs)
        columns, pixels = side * side * inputs, n * height * width
        by_row = inputs >= FEW
        blocks = (
            side * triton.cdiv(inputs, tile.depth) if by_row else triton.cdiv(columns, tile.depth),
            triton.cdiv(outputs, tile.outputs),
        )
        chunk, programs = _chunks(pixels, tile.pixels, blocks[0] * blocks[1])
        partial = x.new_empty((programs, outputs, columns), dtype=torch.float32)
        dw = weight.new_empty((outputs, side, side, inputs))
        sizes = height, width, inputs, outputs, side, tile.pixels, tile.outputs, tile.depth
        launch = {"num_warps": tile.warps, "num_stages": tile.stages}
        sums = kernels.convolution_sums_by_row if by_row else kernels.convolution_sums
        sums[(programs, *blocks)](x, gradient, partial, pixels, chunk, *sizes, **launch)
        height = min(triton.next_power_of_2(programs), _ADDED // _NARROW)
        grid = (triton.cdiv(dw.numel(), _NARROW),)
        kernels.convolution_add_up[grid](partial, dw, programs, dw.numel(), height, _NARROW)
        return dw.permute(0, 3, 1, 2)


def _run(
    x: Tensor,
    weight: Tensor,
    strides: tuple[int, int, int],
    outputs: int,
    side: int,
    tile: Tile,
    residual: Tensor | None = None,
    stride: int = 1,
    given: Given | None = None,
    dtype: torch.dtype | None = None,
    unit: Tensor | None = None,
) -> Tensor:
    """Convolve with the weights that begin where `weight` does, `strides` apart by output, input and tap."""
    n, inputs, height, width = x.shape
    y = x.new_empty((n, strided(height, stride), strided(width, stride), outputs), dtype=dtype)
    pixels = y.numel() // outputs
    grid = (triton.cdiv(pixels, tile.pixels), triton.cdiv(outputs, tile.outputs))
    sizes = (
        height,
        width,
        inputs,
        outputs,
        side,
        stride,
        unit is not None,
        residual is not None,
        given is not None,
        precision(x),
        tile.pixels,
        tile.outputs,
        tile.depth,
    )
    launch = {"num_warps": tile.warps, "num_stages": tile.stages}
    unused = x, x, x, x, 0.0
    optional = (x if tensor is None else tensor for tensor in (unit, residual))
    tensors = x, weight, *optional, y, *(unused if given is None else given)
    kernels.convolution[grid](*tensors, pixels, *strides, *sizes, **launch)
    return y.permute(0, 3, 1, 2)


def _chunks(pixels: int, height: int, blocks: int) -> tuple[int, int]:
    """Return how many pixels a program sums, whole tiles of them, and how many programs that makes."""
    programs = max(PROGRAMS // blocks, 1)
    chunk = triton.cdiv(triton.cdiv(pixels, programs), height) * height
    return chunk, triton.cdiv(pixels, chunk)
