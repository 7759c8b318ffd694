"""Tiles: what Triton demands of them, whatever the tables say."""

import pytest

from greedy_ensembles.models.convolution_function import MOST_CHANNELS
from greedy_ensembles.models.convolution_tiles import OUTPUT, OUTPUT_WIDE, WEIGHT, output_tile, weight_tile

OTHERS = {(side, i, o) for side, most in MOST_CHANNELS.items() for i in (1, 24, most) for o in (7, most)}
SHAPES = sorted({*OUTPUT, *OUTPUT_WIDE, *WEIGHT} | OTHERS)


@pytest.mark.parametrize("shape", SHAPES)
def test_tiles_are_powers_of_two_that_tensor_cores_multiply(shape):
    for tile in (output_tile(*shape, 2), output_tile(*shape, 4), weight_tile(*shape)):
        for length in (tile.pixels, tile.outputs, tile.depth):
            assert length >= 16
            assert length.bit_count() == 1
        assert tile.warps in (1, 2, 4, 8)
        assert tile.stages >= 1
