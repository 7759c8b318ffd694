"""What a call costs a GPU, without what launching it costs the host."""

import statistics
from collections.abc import Callable

import torch

from greedy_ensembles.engines.graphs import record, warm_up

BANDWIDTH = 4e12  # bytes a second that an H200 copies
_CALLS, _REPLAYS = 20, 10


def microseconds(run: Callable[[], object]) -> float:
    """Return the median time of a call, from replays of a recording of some."""
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
