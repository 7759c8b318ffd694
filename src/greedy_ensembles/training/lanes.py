"""Members side by side on one GPU: on streams of their own, with random numbers of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from greedy_ensembles.training.group_step import GroupStep
from greedy_ensembles.training.member import Member

#: How many members are under way at the same time: enough to fill the gaps that one leaves, few enough for what one
#: kernel wrote to be in the cache still when the next reads it, and for their activations to fit.
LANES = 6


class Lanes:
    """Streams that members share in turn: those of one lane come one after the other."""

    def __init__(self, members: int, device: torch.device, coupled: bool) -> None:
        self._members, self._device, self._coupled = members, device, coupled
        self._lanes = [torch.cuda.Stream(device) for _ in range(min(LANES, members))]

    def run(self, step: GroupStep) -> None:
        """Take a step: members' updates wait for the outputs of those before them, the group goes on after all."""
        current = torch.cuda.current_stream(self._device)
        step.prepare()
        for lane in self._lanes:
            lane.wait_stream(current)
        earlier: list[torch.cuda.Event] = []
        for position in range(self._members):
            lane = self._lanes[position % len(self._lanes)]
            with torch.cuda.stream(lane):
                step.forward(position)
                if self._coupled:
                    outputs_are_there = lane.record_event()
                    for event in earlier:
                        lane.wait_event(event)
                    earlier.append(outputs_are_there)
                step.update(position)
        for lane in self._lanes:
            current.wait_stream(lane)


class Draws:
    """Random numbers on the device, members' own; one alone has the device's."""

    def __init__(self, members: Sequence[Member], device: torch.device) -> None:
        self._members, self._device = members, device
        self.generators = [torch.Generator(device) for _ in members] if len(members) > 1 else []

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Take the members' random numbers, and give them back as they are then."""
        for generator, member in zip(self.generators, self._members, strict=False):
            generator.set_state(member.generators["cuda"])
        try:
            yield
        finally:
            for generator, member in zip(self.generators, self._members, strict=False):
                member.generators = {**member.generators, "cuda": generator.get_state()}

    @contextmanager
    def of(self, position: int) -> Iterator[None]:
        """Let the device's default generator, which dropout uses, be the member's."""
        if not self.generators:
            yield
            return
        default = torch.cuda.default_generators[self._device.index or 0]
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generators[position].graphsafe_get_state())
        try:
            yield
        finally:
            default.graphsafe_set_state(own)
