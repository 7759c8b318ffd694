"""How large the pieces are that programs of `convolution_kernels` work on: all that has to be measured, in one place.

`python benchmarks/convolutions.py --tune` tries others, and prints the fastest in the form of these tables.
"""

from typing import NamedTuple

#: Channels that tensor cores multiply at once: of fewer, the kernels take all taps together.
FEW = 16


class Tile(NamedTuple):
    """What a program holds at once: pixels x outputs of its result, or of the gradient of a weight depth x outputs."""

    pixels: int
    outputs: int
    depth: int  #: channels of a tap at once; of images with fewer than FEW, pairs of (tap, channel)
    warps: int
    stages: int  #: tiles on their way from memory at a time; 1: none ahead of its use


#: Of convolutions, by (side, channels that go in, channels that come out), with factors of two bytes. The gradient of
#: an input is a convolution from the outputs' channels to the inputs'.
OUTPUT: dict[tuple[int, int, int], Tile] = {
    (3, 1, 16): Tile(256, 16, 16, 4, 1),
    (3, 3, 16): Tile(256, 16, 32, 4, 3),
    (3, 16, 16): Tile(256, 16, 16, 8, 1),
    (3, 32, 32): Tile(256, 32, 16, 8, 1),
    (3, 64, 64): Tile(64, 64, 64, 4, 3),
    (1, 16, 64): Tile(64, 64, 16, 4, 3),
    (1, 64, 16): Tile(128, 16, 64, 8, 1),
    (1, 32, 128): Tile(128, 64, 32, 4, 1),
    (1, 128, 32): Tile(256, 32, 32, 4, 3),
    (1, 64, 256): Tile(128, 64, 64, 4, 3),
    (1, 256, 64): Tile(128, 64, 32, 4, 3),
}
#: The same with factors of four bytes: of a network's first layer and, where TF32 is forbidden, of all.
OUTPUT_WIDE: dict[tuple[int, int, int], Tile] = {
    (3, 1, 16): Tile(256, 16, 16, 4, 1),
    (3, 3, 16): Tile(128, 16, 32, 4, 3),
    (3, 16, 16): Tile(128, 16, 16, 4, 3),
    (3, 32, 32): Tile(256, 32, 32, 4, 3),
    (3, 64, 64): Tile(256, 64, 16, 4, 3),
}
#: Of gradients of weights, by (side, channels that go in, channels that come out).
WEIGHT: dict[tuple[int, int, int], Tile] = {
    (3, 1, 16): Tile(128, 16, 16, 4, 1),
    (3, 3, 16): Tile(128, 16, 32, 4, 3),
    (3, 16, 16): Tile(128, 16, 16, 4, 3),
    (3, 32, 32): Tile(32, 32, 32, 4, 3),
    (3, 64, 64): Tile(64, 64, 64, 4, 1),
    (1, 16, 64): Tile(64, 64, 16, 4, 3),
    (1, 64, 16): Tile(64, 16, 64, 4, 3),
    (1, 32, 128): Tile(128, 64, 32, 4, 1),
    (1, 128, 32): Tile(128, 32, 64, 4, 3),
    (1, 64, 256): Tile(64, 64, 64, 4, 3),
    (1, 256, 64): Tile(64, 64, 64, 4, 3),
}
#: Programs of a weight's gradient, each of which leaves a partial sum: enough to fill a GPU, few enough to add up.
PROGRAMS = 528


def output_tile(side: int, inputs: int, outputs: int, item_bytes: int) -> Tile:
    """Return the tile of a convolution."""
    table = OUTPUT if item_bytes == 2 else OUTPUT_WIDE
    depth = power(inputs if inputs >= FEW else side * side * inputs, 64 * 2 // item_bytes)
    return table.get((side, inputs, outputs), Tile(128, power(outputs, 64), depth, 4, 3))


def weight_tile(side: int, inputs: int, outputs: int) -> Tile:
    """Return the tile of the gradient of a weight."""
    depth = power(inputs if inputs >= FEW else side * side * inputs, 64)
    return WEIGHT.get((side, inputs, outputs), Tile(64, power(outputs, 64), depth, 4, 3))


def power(value: int, most: int) -> int:
    """Return the next power of two, at least what tensor cores multiply and at most as asked."""
    return min(max(FEW, 1 << (value - 1).bit_length()), most)
