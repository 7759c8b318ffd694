"""Recording what a GPU does, so that it can be replayed without the host's help."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")

_WARM_UP = 2  # runs: the first lets libraries choose their kernels, the second finds all choices made


def warm_up(run: Callable[[], object], device: torch.device) -> None:
    """Run what will be recorded on a stream of its own, as recording demands."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.device(device), torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream(device).wait_stream(side)


def record(
    run: Callable[[], Result], device: torch.device, generators: Iterable[torch.Generator] = (), pool: Any = None
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record a run, and return it with what the run returned; replays advance the generators and the device's own.

    Recordings that are never replayed at the same time, and leave each other nothing but what lies elsewhere, may share
    the memory of a pool (`torch.cuda.graph_pool_handle`). Where recording fails, the device is left fit for use.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    state = torch.cuda.get_rng_state(device)
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, pool=pool):  # which records the current device
            result = run()
    except BaseException:
        torch.cuda.synchronize(device)
        _renew_default_generator(device)
        torch.cuda.set_rng_state(state, device)
        raise
    return graph, result


def _renew_default_generator(device: torch.device) -> None:
    """Give the device's default generator a new state: a recording that broke off leaves the old one unusable."""
    fresh = torch.Generator(device)
    torch.cuda.default_generators[device.index or 0].graphsafe_set_state(fresh.graphsafe_get_state())
