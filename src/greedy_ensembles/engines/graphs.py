"""Recording what a GPU does, to be replayed without the host: graphs, what they read anew, whether they are right."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from greedy_ensembles.engines.member import Member

Result = TypeVar("Result")

#: How many times more a recording may differ than two plain repetitions do; and, where those are the same to the bit,
#: the share of the weights' own change by which rounding may.
_TIMES, _ROUNDING = 10, 1e-3
_WARM_UP = 2  # runs: the first lets libraries choose their kernels, the second finds all choices made


class CannotCapture(Exception):
    """Why a step cannot be recorded, in a few words."""


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


class DeviceGenerators:
    """A generator on the device for each member, which a recorded step draws from; there are none on a CPU."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._members, self._device = members, device
        self.generators = [torch.Generator(device) for _ in members] if device.type == "cuda" else []

    @contextmanager
    def loaded(self) -> Iterator[None]:
        """Give the generators the members' states inside the block, and members the states at its end."""
        for generator, member in zip(self.generators, self._members, strict=False):
            assert member.generators.cuda is not None
            generator.set_state(member.generators.cuda)
        try:
            yield
        finally:
            for generator, member in zip(self.generators, self._members, strict=False):
                member.generators = member.generators._replace(cuda=generator.get_state())

    @contextmanager
    def of(self, position: int) -> Iterator[None]:
        """Let the device's default generator, which dropout uses, be a member's inside the block."""
        if not self.generators:
            yield
            return
        default = torch.cuda.default_generators[self._device.index or 0]
        before = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generators[position].graphsafe_get_state())
        try:
            yield
        finally:
            default.graphsafe_set_state(before)


def make_capturable(members: Sequence[Member], device: torch.device) -> None:
    """Let optimizers keep their learning rates, and AdamW its count of steps, in tensors that a step can change.

    What starts from the same learning rate shares one tensor.
    """
    rates: dict[float, Tensor] = {}
    for member in members:
        for group in member.optimizer.param_groups:
            if group["initial_lr"] not in rates:
                rates[group["initial_lr"]] = torch.tensor(float(group["lr"]), device=device)
            group["lr"] = rates[group["initial_lr"]]
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"


def check_replayed(
    start: list[list[Tensor]], plain: list[list[Tensor]], again: list[list[Tensor]], replayed: list[list[Tensor]]
) -> None:
    """Refuse replayed steps that differ from plain ones by more than two plain repetitions may, in either kind.

    Each has weights and statistics: before the steps, after plain ones, after these once more, after replayed ones.
    """
    for one, *others in zip(plain, start, again, replayed, strict=True):
        moved, repeated, differs = (_distance(one, other) for other in others)
        if differs > max(_TIMES * repeated, _ROUNDING * moved):
            raise CannotCapture(
                f"replayed steps differ from plain ones by {differs:.1e}, and those among themselves by {repeated:.1e}"
            )


def _distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest difference of two states; what left the range of numbers in both is the same."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a.numel()]
    if not pairs:
        return 0.0
    largest = [torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs()).max() for a, b in pairs]
    return float(torch.stack([one.double() for one in largest]).max().nan_to_num(torch.inf, torch.inf))
