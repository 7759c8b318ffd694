"""Our convolutions of few channels against PyTorch's, on a GPU: output, gradient of the input, gradient of the weight.

Microseconds a call, from replays of a recording of 20 calls, so that launches do not count. In bf16 as in training; as
in predictions, a network's first layer in float32 with TF32 products, others with BatchNorm and ReLU, stored in half
precision, against PyTorch's three layers in float32. `floor` is what reading and writing everything once would take.

    python benchmarks/convolutions.py          # about a minute, most of it compiling
    python benchmarks/convolutions.py --tune   # tries tiles, prints tables for models/convolution_tiles.py
"""

import argparse
import contextlib
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch
from gpu_time import BANDWIDTH, microseconds
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d

from greedy_ensembles.models import convolution_tiles
from greedy_ensembles.models.convolution_tiles import FEW, Tile, power
from greedy_ensembles.models.half import SCALE, narrow_weight
from greedy_ensembles.models.norm_function import Given

#: Pixels of a tile, products added up at once, and (warps, stages).
OUTPUT_GRID = ((64, 128, 256), (16, 32, 64), ((4, 1), (4, 3), (8, 1)))
WEIGHT_GRID = ((32, 64, 128), (32, 64, 128, 256), ((4, 1), (4, 3), (8, 1)))
MOST_OUTPUTS = 64  # of a tile


class Shape(NamedTuple):
    """A convolution of stride 1."""

    batch: int
    image: int
    inputs: int
    outputs: int
    side: int
    dtype: torch.dtype = torch.bfloat16


SHAPES = (
    Shape(512, 28, 1, 16, 3),
    Shape(256, 32, 3, 16, 3),
    Shape(512, 28, 16, 16, 3),
    Shape(512, 14, 32, 32, 3),
    Shape(512, 7, 64, 64, 3),
    Shape(256, 32, 16, 16, 3),
    Shape(256, 16, 32, 32, 3),
    Shape(256, 8, 64, 64, 3),
    Shape(256, 32, 16, 64, 1),
    Shape(256, 32, 64, 16, 1),
    Shape(256, 16, 32, 128, 1),
    Shape(256, 16, 128, 32, 1),
    Shape(256, 8, 64, 256, 1),
    Shape(256, 8, 256, 64, 1),
    Shape(1024, 32, 3, 16, 3, torch.float32),
    Shape(1024, 32, 16, 16, 3, torch.float16),
    Shape(1024, 16, 32, 32, 3, torch.float16),
    Shape(1024, 8, 64, 64, 3, torch.float16),
)


KINDS = {torch.bfloat16: "bf16", torch.float32: "tf32", torch.float16: "half"}


class Pass(NamedTuple):
    """One pass of a convolution, both ways; `table` and `key` say where our tile comes from."""

    name: str
    table: str
    key: tuple[int, int, int]
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    floor: float
    scale: float = 1.0  #: of what ours gives


def passes(shape: Shape) -> list[Pass]:
    """Return what a shape is measured in: all that training does, or the output alone, as predictions do."""
    from greedy_ensembles.models.convolution_passes import TritonPasses

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device="cuda", dtype=shape.dtype).contiguous(memory_format=torch.channels_last)

    batch, image, inputs, outputs, side, dtype = shape
    x, dy = normal(batch, inputs, image, image), normal(batch, outputs, image, image)
    weight = normal(outputs, inputs, side, side)
    # A loop over members predicts from images as they come; training has them channels last.
    plain, own = (x, weight) if dtype == torch.bfloat16 else (x.float().contiguous(), weight.float())
    if dtype == torch.float16:  # which x is what is stored of
        plain = plain / SCALE
    floor = 1e6 * dtype.itemsize * batch * image**2 * (inputs + outputs) / BANDWIDTH

    def backward(which: int) -> Tensor:
        mask = [which == 0, which == 1, False]
        settings = None, [1, 1], [side // 2] * 2, [1, 1], False, [0, 0], 1
        return torch.ops.aten.convolution_backward(dy, x, weight, *settings, mask)[which]  # type: ignore[no-any-return]

    def output() -> Tensor:
        return conv2d(plain, own, padding=side // 2)

    forth, back = (side, inputs, outputs), (side, outputs, inputs)
    if dtype == torch.float32:
        return [Pass("output", "OUTPUT_WIDE", forth, partial(TritonPasses.output, x, weight, None), output, floor)]
    if dtype == torch.float16:
        ones, zeros = torch.ones(outputs, device="cuda"), torch.zeros(outputs, device="cuda")
        given = Given(ones, zeros, zeros, ones, 1e-5)

        def ours() -> Tensor:
            stored, unit = narrow_weight(own)
            return TritonPasses.output(x, stored, None, given=given, dtype=torch.float16, unit=unit)

        def theirs() -> Tensor:
            return batch_norm(output(), zeros, ones).relu()

        return [Pass("stored output", "OUTPUT", forth, ours, theirs, floor, SCALE)]
    of_weight = partial(TritonPasses.weight_gradient, x, dy, weight), partial(backward, 1)
    found = [
        Pass("output", "OUTPUT", forth, partial(TritonPasses.output, x, weight, None), output, floor),
        Pass("weight gradient", "WEIGHT", forth, *of_weight, floor),
    ]
    if inputs >= FEW:  # a network's first layer needs no gradient of its input
        of_input = partial(TritonPasses.input_gradient, dy, weight), partial(backward, 0)
        found.insert(1, Pass("input gradient", "OUTPUT", back, *of_input, floor))
    return found


def compare() -> None:
    """Print the table of ours against PyTorch's."""
    row = "{:>5} {:>5} {:>4} {:>4} {:>6} {:>5}  {:15} {:>7} {:>8} {:>6} {:>6} {:>8}"
    names = ("batch", "image", "in", "out", "kernel", "type", "pass", "ours", "PyTorch", "floor", "ratio", "differs")
    print(row.format(*names), flush=True)
    ratios = []
    for shape in SHAPES:
        kernel, kind = f"{shape.side}x{shape.side}", KINDS[shape.dtype]
        for one in passes(shape):
            ours, theirs = microseconds(one.ours), microseconds(one.theirs)
            a, b = one.ours().float() / one.scale, one.theirs().float()
            differs = ((a - b).abs().max() / b.abs().max()).item()
            ratios.append(theirs / ours)
            times = [f"{time:.1f}" for time in (ours, theirs, one.floor)]
            figures = *times, f"{ratios[-1]:.2f}", f"{differs:.0e}"
            print(row.format(*shape[:4], kernel, kind, one.name, *figures), flush=True)
    print(f"PyTorch's over ours: geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.2f}, ", end="")
    print(f"least {min(ratios):.2f}, below 1 in {sum(ratio < 1 for ratio in ratios)} of {len(ratios)}")


def candidates(one: Pass) -> list[Tile]:
    """Return the tiles to try: those that are not larger than what there is to do."""
    side, inputs, outputs = one.key
    width = power(outputs, MOST_OUTPUTS)
    deepest = power(inputs if inputs >= FEW else side * side * inputs, 1024)
    pixels, depths, launches = WEIGHT_GRID if one.table == "WEIGHT" else OUTPUT_GRID
    kept = sorted({min(depth, deepest) for depth in depths})
    grid = itertools.product(pixels, kept, launches)
    return [Tile(rows, width, depth, warps, stages) for rows, depth, (warps, stages) in grid]


@contextlib.contextmanager
def tiled(one: Pass, tile: Tile) -> Iterator[None]:
    """Give a pass a tile inside the block."""
    table = getattr(convolution_tiles, one.table)
    before = dict(table)
    table[one.key] = tile
    try:
        yield
    finally:
        table.clear()
        table.update(before)


def tasks() -> list[tuple[int, int]]:
    """Return (number of a shape, of a pass) for every entry of the tables, the first shape that has it."""
    found: dict[Any, tuple[int, int]] = {}
    for number, shape in enumerate(SHAPES):
        for position, one in enumerate(passes(shape)):
            found.setdefault((one.table, one.key), (number, position))
    return list(found.values())


def compile_all(task: tuple[int, int]) -> None:
    """Run a pass with every tile once, in a process of its own, which leaves what was compiled on disk."""
    one = passes(SHAPES[task[0]])[task[1]]
    for tile in candidates(one):
        with contextlib.suppress(Exception), tiled(one, tile):  # too large for the GPU: it will not be measured either
            one.ours()
    torch.cuda.synchronize()


def tune() -> None:
    """Print the fastest tile of every entry of the tables, beside what the tables have now."""
    workers = min(os.cpu_count() or 1, 16)
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_all, tasks()))
    best: dict[str, list[str]] = {}
    for number, position in tasks():
        one = passes(SHAPES[number])[position]
        now = microseconds(one.ours)
        times: dict[Tile, float] = {}
        for tile in candidates(one):
            with contextlib.suppress(Exception), tiled(one, tile):
                times[tile] = microseconds(one.ours)
        tile = min(times, key=times.__getitem__)
        line = f"    {one.key}: Tile{tuple(tile)},  # {times[tile]:.1f} us, was {now:.1f}, floor {one.floor:.1f}"
        best.setdefault(one.table, []).append(line)
        print(f"{one.table} {line.strip()}", flush=True)
    for table, lines in best.items():
        print(f"{table}: dict[tuple[int, int, int], Tile] = {{", *lines, "}", sep="\n")


def main() -> None:
    """Measure, where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tune", action="store_true", help="try tiles, and print the fastest")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("There is no GPU here: convolutions of few channels were not measured.")
        return
    torch.backends.cudnn.benchmark = True  # as training has it
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    with torch.no_grad():
        if arguments.tune:
            tune()
        else:
            compare()


if __name__ == "__main__":
    main()
