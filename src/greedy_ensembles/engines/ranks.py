"""Several processes, each with members of its own: what `torchrun` starts.

Members meet in their outputs on a batch of p* and nowhere else, (members, n, classes) numbers a step. So every process
trains its own members, and a step exchanges these numbers; everything else travels at the end of an epoch.
"""

import atexit
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """The processes of a training, of which this is number `rank`, counted from 0."""

    rank: int = 0
    world: int = 1

    def shares(self, count: int) -> list[slice]:
        """Return which of `count` members each process trains: neighbours, as many as the others or one more.

        >>> Ranks(0, 3).shares(5)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
        """
        least, more = divmod(count, self.world)
        ends = [rank * least + min(rank, more) for rank in range(self.world + 1)]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def gather(self, value: Value) -> list[Value]:
        """Return what every process has, in the order of ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with _told():
            distributed.all_gather_object(found, value)
        return found

    def share(self, value: Value | None) -> Value:
        """Return what the first process has."""
        if self.world == 1:
            return value  # type: ignore[return-value]
        held = [value]
        with _told():
            distributed.broadcast_object_list(held, src=0)
        return held[0]  # type: ignore[return-value]


ALONE = Ranks()


@dataclass(frozen=True)
class Exchange:
    """Every step's exchange of outputs on p*, between the processes that train `count` members."""

    ranks: Ranks
    count: int
    alone: bool = False  #: whether to make up what others say, so that a step can be tried

    @property
    def own(self) -> slice:
        """Which of the members this process trains."""
        return self.ranks.shares(self.count)[self.ranks.rank]

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return all members' outputs (members, n, classes) from those of one's own, without gradients."""
        if self.alone:
            return torch.stack([outputs[k % len(outputs)].roll(k, dims=-1) for k in range(self.count)])
        shares = self.ranks.shares(self.count)
        most = max(share.stop - share.start for share in shares)
        padded = outputs.new_zeros(most, *outputs.shape[1:])  # processes may differ by one member
        padded[: len(outputs)] = outputs
        found = [torch.empty_like(padded) for _ in shares]
        with _told():
            distributed.all_gather(found, padded)
        return torch.cat([one[: share.stop - share.start] for one, share in zip(found, shares, strict=True)])


@contextmanager
def _told() -> Iterator[None]:
    """Say what a broken connection means."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ConnectionError(
            "another process of this training ended, or does not answer; its own message says why. With run_dir, the "
            f"same command goes on after the last epoch that was saved ({str(error).splitlines()[0]})"
        ) from error


def backend_for(device: torch.device) -> str:
    """Return what carries tensors of a device between processes; states and members go from CPU to CPU."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


def join(device: torch.device) -> Ranks:
    """Join the processes that `torchrun` started, if it did; once in a process, since a second start would not meet."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if not distributed.is_available() or (world == 1 and not distributed.is_initialized()):
        return ALONE
    if not distributed.is_initialized():
        distributed.init_process_group(backend_for(device))
        atexit.register(distributed.destroy_process_group)
    return Ranks(distributed.get_rank(), distributed.get_world_size())
