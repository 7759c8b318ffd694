"""The captured engine: the whole step of a group as one CUDA graph, its members side by side.

Small networks at usual batch sizes are bound by the launches of their kernels, not by the GPU. So everything that a
step does, from choosing the examples to the optimizer, is recorded once and replayed from then on. What changes from
step to step (which examples, which samples of p*, the learning rate) lies in tables on the device, whose row is chosen
by a counter that the step itself advances; sums of the losses stay on the device too.

Before training starts, a few replayed steps are compared with the same steps that copies of the members took without a
recording. State of a model in Python that starts to change later is not noticed, and not supported.

Where processes share the members, a step is two recordings, and in between outputs on p* are exchanged. While a process
gets ready it exchanges nothing: others may not follow.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.checks import reason
from greedy_ensembles.engines.accelerate import accelerate
from greedy_ensembles.engines.graphs import (
    CannotCapture,
    DeviceGenerators,
    check_replayed,
    make_capturable,
    record,
    warm_up,
)
from greedy_ensembles.engines.member import Member
from greedy_ensembles.engines.plain import Losses, Pass, PlainEngine, Plan, Step, means
from greedy_ensembles.generators import Generators

#: How many members are under way at the same time: enough to fill the gaps that one leaves, few enough for what one
#: kernel wrote to be in the cache still when the next reads it, and for their activations to fit.
STREAMS = 6
#: Steps of a recording that are compared with plain ones.
CHECKED = 3


def why_not_captured(step: Step) -> str | None:
    """Return what forbids capturing a training, as far as can be told without trying."""
    if step.off_device is not None:
        return step.off_device
    if step.recipe.accumulate > 1:
        return "gradients are accumulated over batches"
    if step.make_optimizer is None:
        return "optimizers of one's own may do what cannot be recorded; those of the recipe can"
    return None


class CapturedEngine(PlainEngine):
    """Trains a group of members together; raises `CannotCapture` where their step cannot be recorded."""

    def __init__(self, members: list[Member], step: Step, plan: Plan) -> None:
        super().__init__(members, step)
        device = step.execution.device
        for member in members:
            member.model.train()
        self._totals = torch.zeros(2, len(members), dtype=torch.float64, device=device)
        self._generators = DeviceGenerators(members, device)
        self._pool = torch.cuda.graph_pool_handle()  # of all recordings: what outlives one of them is made before it
        make_capturable(members, device)
        lengths = [batch.shape[1] for batch in plan.examples]
        full = lengths.count(lengths[0])
        with accelerate(*(member.model for member in members)), _preserved(members, device):
            self._full = self._record(_part(plan, slice(0, full)))
            self._rest = self._record(_part(plan, slice(full, None))) if full < len(lengths) else None

    def train_epoch(self, plan: Plan) -> list[Losses]:
        """Train every member for one epoch, and return its means of loss and term."""
        self._totals.zero_()
        full = self._full.rows
        with self._generators.loaded():
            self._full.play(_part(plan, slice(0, full)))
            if self._rest is not None:
                self._rest.play(_part(plan, slice(full, None)))
            # Reading the sums waits for the device, after which the generators' states are those after the epoch.
            return means(self._totals, plan, self._step)

    def _record(self, plan: Plan) -> "Recording":
        """Return the recorded step, after holding its first replays against plain steps."""
        device, start = self._step.execution.device, [[v.clone() for v in kind] for kind in _state(self.members)]
        exchange = self._step.exchange
        trial = self._step if exchange is None else replace(self._step, exchange=replace(exchange, simulated=True))
        # Before there is a recording, whose memory they would otherwise have to leave alone.
        plain, again = (take_on_copies(self.members, trial, plan) for _ in range(2))
        step = GroupStep(self.members, trial, self._totals, plan, self._generators)
        with _preserved(self.members, device):
            recording = Recording(step, plan, self._pool)
        with _preserved(self.members, device), self._generators.loaded():
            recording.play(plan, CHECKED)
            check_replayed(start, plain, again, _state(self.members))
        step.exchange = exchange
        return recording


def _part(plan: Plan, rows: slice) -> Plan:
    return Plan(plan.examples[rows], plan.samples[rows], plan.rates[rows])


class GroupStep:
    """A step of a group as a fixed sequence of operations on fixed tensors: `load` tables, then `run` once a row.

    With an exchange between processes it is two such sequences, `begin` and `end`, with `meet` between them.
    """

    def __init__(
        self, members: Sequence[Member], step: Step, totals: Tensor, plan: Plan, generators: DeviceGenerators
    ) -> None:
        self._members, self._step, self._totals = members, step, totals
        self.generators, self.exchange = generators, step.exchange
        self.device = device = step.execution.device
        self._examples = torch.stack(plan.examples)
        self._samples = torch.stack(plan.samples) if plan.samples else None
        self._rates = torch.tensor(plan.rates, device=device)
        self._counter = torch.zeros(1, dtype=torch.long, device=device)
        count = len(members) if device.type == "cuda" else 0
        self._streams = [torch.cuda.Stream(device) for _ in range(min(STREAMS, count))] if count > 1 else []
        self._passes: list[Pass] = []  # which stay until the next step makes them anew: streams share them
        self._gradients: Sequence[Tensor | None] = ()
        self._bank: Tensor | None = None
        self._live: Tensor | None = None  # outputs on p*, of one's own members
        self._everyone: Tensor | None = None  # and of all that train together, where it does not move

    def load(self, plan: Plan) -> None:
        """Fill the tables: indices of examples by step and member, of samples by step, and learning-rate factors."""
        self._examples.copy_(torch.stack(plan.examples))
        if self._samples is not None:
            self._samples.copy_(torch.stack(plan.samples))
        self._rates.copy_(torch.tensor(plan.rates))
        self._counter.zero_()

    def forget(self) -> None:
        """Let go of what the step left for itself."""
        self._passes, self._gradients = [], ()

    def run(self) -> None:
        """Take the step of the current row, and advance to the next."""
        self.begin()
        self.meet()
        self.end()

    def begin(self) -> None:
        """Send examples and samples of p* through the members, side by side; who meets no one moves, too."""
        self.forget()
        step, members = self._step, range(len(self._members))
        examples = self._examples.index_select(0, self._counter)[0]
        inputs, targets = step.look_up(examples.flatten())
        inputs, targets = inputs.unflatten(0, examples.shape), targets.unflatten(0, examples.shape)
        chosen = None if self._samples is None else self._samples.index_select(0, self._counter)[0]
        samples, self._bank = step.samples(chosen)
        self._set_learning_rates()
        self._counter += 1
        for position in self._side_by_side(members):
            with self.generators.of(position):
                model = self._members[position].model
                self._passes.append(step.forward(model, inputs[position], targets[position], samples))
            if self._bank is None:  # who meets no one need not wait for the others, nor keep activations meanwhile
                self._update(position, None)
        if self._bank is not None:
            self._live = torch.stack([one.outputs.detach() for one in self._passes if one.outputs is not None])

    def meet(self) -> None:
        """Exchange outputs on p* with other processes, if there are any."""
        if self._live is None or self.exchange is None:
            return
        found = self.exchange(self._live)
        self._everyone = found if self._everyone is None else self._everyone.copy_(found)

    def end(self) -> None:
        """Let members meet, and move them, side by side."""
        live = self._live if self._everyone is None else self._everyone
        if live is None or self._bank is None:
            return
        terms, self._gradients = self._step.couple(live, self._bank)
        for position in self._side_by_side(range(len(self._members))):
            self._update(position, self._gradients[position])
        self._totals[1].add_(terms)

    def _update(self, position: int, gradient: Tensor | None) -> None:
        passed = self._passes[position]
        self._step.update(self._members[position], passed, gradient)
        self._totals[0, position].add_(passed.loss.detach(), alpha=self._examples.shape[2])

    def _side_by_side(self, members: Sequence[int]) -> Iterator[int]:
        """Yield positions, each on a stream that it shares in turn; what follows waits for all of them."""
        if not self._streams:
            yield from members
            return
        current = torch.cuda.current_stream(self._counter.device)
        for stream in self._streams:
            stream.wait_stream(current)
        for position in members:
            with torch.cuda.stream(self._streams[position % len(self._streams)]):
                yield position
        for stream in self._streams:
            current.wait_stream(stream)

    def objects(self) -> list[dict[str, Any]]:
        """Return what models, loss, augmentation and coupling have in their attributes and buffers now."""
        modules = [module for member in self._members for module in member.model.modules()]
        others = (self._step.loss, self._step.augment, self._step.coupling)
        buffers = [dict(module._buffers) for module in modules]
        return [*buffers, *(dict(vars(one)) for one in (*modules, *others) if hasattr(one, "__dict__"))]

    def _set_learning_rates(self) -> None:
        rate = self._rates.index_select(0, self._counter)[0]
        groups = [group for member in self._members for group in member.optimizer.param_groups]
        for initial, tensor in {id(group["lr"]): (group["initial_lr"], group["lr"]) for group in groups}.values():
            tensor.copy_(rate * initial)


class Recording:
    """A step that was recorded, to be played as often as its tables have rows."""

    def __init__(self, step: GroupStep, plan: Plan, pool: Any) -> None:
        self._step, self.rows = step, len(plan.rates)

        def first_row() -> None:
            step.load(plan)
            step.run()

        with _failures_as_reasons():
            before = _host_generators()
            with step.generators.loaded():
                warm_up(first_row, step.device)
            if _host_generators() != before:
                raise CannotCapture("model, loss or augmentation draws random numbers on the host")
            self._graphs = []
            for part in [step.run] if step.exchange is None else [step.begin, step.end]:
                self._graphs.append(record(part, step.device, step.generators.generators, pool)[0])
            step.forget()  # so that the next recording can use the memory
        self._alive = step.objects()  # what a recording reads must not be freed, whoever replaces it

    def play(self, plan: Plan, at_most: int | None = None) -> None:
        """Take as many steps as there are rates, or only the first of them."""
        self._step.load(plan)
        for _ in plan.rates[:at_most]:
            self._graphs[0].replay()
            for graph in self._graphs[1:]:
                self._step.meet()
                graph.replay()


def take_on_copies(members: Sequence[Member], step: Step, plan: Plan) -> list[list[Tensor]]:
    """Return weights and statistics after the first steps, taken without a recording by copies of the members.

    Model, loss, augmentation and coupling are copied with all that they remember in Python, so that it is the same at
    the start of every repetition.
    """
    with _failures_as_reasons():
        not_copied = {id(one.recipe): one.recipe for one in members}  # nothing of it is called in a step
        of_step = (list(members), step.loss, step.augment, step.coupling)
        copies, loss, augment, coupling = copy.deepcopy(of_step, not_copied)
        step, device = replace(step, loss=loss, augment=augment, coupling=coupling), step.execution.device
        totals = torch.zeros(2, len(copies), dtype=torch.float64, device=device)
        generators = DeviceGenerators(copies, device)
        first = _part(plan, slice(0, CHECKED))
        group = GroupStep(copies, step, totals, first, generators)
        for member in copies:  # which a copy forgets, and then warns that it is not being recorded
            member.optimizer._warned_capturable_if_run_uncaptured = True
        with generators.loaded():
            for _ in first.rates:
                group.run()
        return [[value.detach() for value in kind] for kind in _state(copies)]


@contextmanager
def _failures_as_reasons() -> Iterator[None]:
    """Turn errors of any kind into a reason why the step cannot be recorded, but for those of memory."""
    try:
        yield
    except (CannotCapture, torch.OutOfMemoryError):
        raise
    except Exception as error:  # of any kind: the model, loss and augmentation may be anyone's
        raise CannotCapture(f"{reason(error):.200}") from error


def _host_generators() -> tuple[object, ...]:
    """Return the states of the generators that a graph cannot advance, in a form that can be compared."""
    states = Generators.current(torch.device("cpu"))
    return states.cpu.tolist(), states.numpy[1].tolist(), states.numpy[2:], states.python


def _state(members: Sequence[Member]) -> list[list[Tensor]]:
    """Return all weights, and all statistics, where they lie: statistics may move so much more that they hide them."""
    weights = [p.detach() for member in members for p in member.model.parameters()]
    return [weights, [v for member in members for v in member.model.buffers() if v.is_floating_point()]]


@contextmanager
def _preserved(members: Sequence[Member], device: torch.device) -> Iterator[None]:
    """Leave members as they were found, in the same memory: recording takes steps that are not part of training."""
    before = [{key: value.clone() for key, value in _tensors(member).items()} for member in members]
    generators = [member.generators for member in members]
    default = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # a step that broke off may be under way on some streams still
        for member, found, states in zip(members, before, generators, strict=True):
            for key, value in _tensors(member).items():
                if key in found:
                    value.copy_(found[key])
                elif key[0] == "optimizer":  # what the first step made starts from 0; a buffer that it made stays
                    value.zero_()
            member.generators = states
        if default is not None:
            torch.cuda.set_rng_state(default, device)


def _tensors(member: Member) -> dict[tuple[object, ...], Tensor]:
    """Return all that a step changes in place: weights, statistics, averages, and what the optimizer remembers."""
    model, optimizer = member.model, member.optimizer
    found: dict[tuple[object, ...], Tensor] = {
        ("model", name): value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())
    }
    found |= {("average", index): value for index, value in enumerate(member.average)}
    for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found["optimizer", index, name] = value
    return found
