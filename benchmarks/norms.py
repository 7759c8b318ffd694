"""The passes of BatchNorm with ReLU on a GPU, beside what reading and writing each activation once would take.

Microseconds a call, in bf16 as in training, of 128 examples and as many samples of p*; the floor is at the speed at
which an H200 copies. Small layers lie in its cache, and may be faster than that.

    python benchmarks/norms.py
"""

import statistics
from collections.abc import Callable

import torch

from greedy_ensembles.engines.graphs import record, warm_up

BANDWIDTH = 4e12  # bytes a second that an H200 copies
_CALLS, _REPLAYS = 20, 10

#: (image, channels): of PreResNet164, VGG16BN, WideResNet28x10.
SHAPES = (
    *((32, 16), (32, 64), (16, 32), (16, 128), (8, 64), (8, 256)),
    *((16, 256), (4, 512), (2, 512)),
    *((32, 160), (16, 320), (8, 640)),
)
ROWS, FIRST = 256, 128


def microseconds(run: Callable[[], object]) -> float:
    """Return the median time of a call, from replays of a recording of some: without what launching costs the host."""
    device = torch.device("cuda")

    def calls() -> None:
        for _ in range(_CALLS):
            run()

    warm_up(run, device)
    graph, _ = record(calls, device)
    graph.replay()
    times: list[float] = []
    for _ in range(_REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / _CALLS)
    return statistics.median(times)


def main() -> None:
    """Measure, where there is a GPU."""
    if not torch.cuda.is_available():
        print("There is no GPU here: passes of BatchNorm were not measured.")
        return
    from greedy_ensembles.engines.norm_passes import TritonPasses

    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'image':>5} {'channels':>8} {'pass':15} {'took':>7} {'floor':>6} {'ratio':>6}")
    for image, channels in SHAPES:
        pixels = image**2
        x, g, y = (torch.randn(ROWS * pixels, channels, device="cuda").bfloat16() for _ in range(3))
        weight, bias = torch.rand(channels, device="cuda"), torch.randn(channels, device="cuda")
        buffers = torch.zeros_like(bias), torch.ones_like(bias), torch.zeros((), dtype=torch.long, device="cuda")
        count = FIRST * pixels
        of_first = x, count, False, weight, None, buffers, 0.1, 1e-5
        by = TritonPasses.moments(*of_first)
        sums = TritonPasses.gradient_sums(x, g, count, False, by, bias)
        passes = {
            "moments": (lambda of_first=of_first: TritonPasses.moments(*of_first), FIRST / ROWS),
            "output": (lambda of=(x, count, by, bias, y): TritonPasses.output(*of), 2),
            "gradient sums": (lambda of=(x, g, count, False, by, bias): TritonPasses.gradient_sums(*of), 2),
            "gradient": (lambda of=(x, g, count, by, bias, sums): TritonPasses.gradient(*of), 3),
        }
        for name, (run, touched) in passes.items():
            took, floor = microseconds(run), 1e6 * touched * x.nbytes / BANDWIDTH
            print(f"{image:5} {channels:8} {name:15} {took:7.1f} {floor:6.1f} {took / floor:6.2f}", flush=True)


if __name__ == "__main__":
    main()
