"""Steps of a whole group as a fixed sequence of operations on fixed tensors, so that a GPU can record and replay them.

What changes from step to step (which examples, which samples of p*, the learning rate) lies in tables on the device,
whose row is chosen by a counter that the step itself advances; sums of the losses stay on the device too. Members are
branches that meet at one point only: each waits, between its passes, for the outputs on p* of those before it. So of
several steps, a member may be at the next while others are at this one.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import Batch, Pass, forward, objective
from greedy_ensembles.training.weighting_set import WeightingSet
from greedy_ensembles.training.working_copies import WorkingCopies


class Branches(Protocol):
    """How members run beside each other."""

    def begin(self) -> None:
        """Begin a run of steps: all that came before is through."""

    def start(self) -> None:
        """Let every branch begin a step where the group is now."""

    def of(self, position: int) -> AbstractContextManager[object]:
        """Return the block in which a member's operations are issued."""
        ...

    def drawing(self, position: int) -> AbstractContextManager[object]:
        """Return the block in which random numbers are the member's own."""
        ...

    def wait_for_earlier(self, position: int) -> None:
        """Let a member's branch go on only when those before it have their outputs."""

    def join(self) -> None:
        """Let the group go on when all branches are through."""


class OneByOne:
    """No branches: members take turns, which is what a CPU does, and what a single member needs."""

    def begin(self) -> None:
        """Do nothing."""

    def start(self) -> None:
        """Do nothing."""

    def of(self, position: int) -> AbstractContextManager[object]:
        """Return a block that changes nothing."""
        return nullcontext()

    def drawing(self, position: int) -> AbstractContextManager[object]:
        """Return a block that changes nothing."""
        return nullcontext()

    def wait_for_earlier(self, position: int) -> None:
        """Do nothing."""

    def join(self) -> None:
        """Do nothing."""


class _Taken(NamedTuple):
    """What a step made outside of a single branch, and what came out of it, by member."""

    inputs: Tensor
    targets: Tensor
    samples: Tensor | None
    bank: Tensor | None
    rates: dict[float, Tensor]
    live: list[Tensor]
    losses: list[Tensor]
    terms: list[Tensor]


class GroupStep:
    """Steps of one batch size: `load` an epoch's tables, then `run` every row of them."""

    def __init__(
        self,
        members: Sequence[Member],
        problem: Problem,
        weighting: WeightingSet | None,
        totals: Tensor,
        rows: int,
        batch_size: int,
        branches: Branches | None = None,
        copies: Sequence[WorkingCopies] | None = None,
    ) -> None:
        device = problem.device
        self._members, self._problem, self._weighting, self._totals = members, problem, weighting, totals
        self._branches, self._copies = branches or OneByOne(), copies
        self._examples = torch.zeros(rows, len(members), batch_size, dtype=torch.long, device=device)
        samples = 0 if weighting is None else weighting.batch_size
        self._samples = torch.zeros(rows, samples, dtype=torch.long, device=device)
        self._rates = torch.ones(rows, device=device)
        self._counter = torch.zeros(1, dtype=torch.long, device=device)

    def load(self, examples: Sequence[Sequence[Tensor]], samples: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Fill the tables: indices of examples by member and step, of samples by step, and learning-rate factors."""
        self._examples.copy_(torch.stack([torch.stack(list(batches)) for batches in examples], dim=1))
        if len(samples):
            self._samples.copy_(torch.stack(list(samples)))
        self._rates.copy_(torch.tensor(rates))
        self._counter.zero_()
        for copies in self._copies or ():
            copies.refresh_all()  # steps of other lengths, or a checkpoint, may have changed the weights since

    def run_first_row(self) -> None:
        """Take the step of the first row, whatever the tables hold."""
        self._counter.zero_()
        self.run()

    def run(self, steps: int = 1) -> None:
        """Take the steps of as many rows, from the current one on, and advance to the row after them."""
        self._branches.begin()
        with self._own_learning_rates():
            # Memory that a branch may still read must not be used again before all are through.
            taken = [self._take() for _ in range(steps)]
            self._branches.join()
        for one in taken:
            self._totals += torch.stack([torch.stack(one.losses) * one.targets.shape[1], torch.stack(one.terms)])

    def _take(self) -> "_Taken":
        """Issue the step of the current row on the branches, and advance."""
        branches, problem = self._branches, self._problem
        examples = self._examples.index_select(0, self._counter)[0]
        # What needs no member in particular is done once for all of them.
        inputs = problem.inputs(problem.examples.inputs(examples.flatten())).unflatten(0, examples.shape)
        targets = problem.examples.labels[examples]
        samples, bank = self._draw_samples()
        rates = self._set_learning_rates()
        self._counter += 1
        live: list[Tensor] = []  # outputs of the members so far
        losses, terms = [], []
        branches.start()
        for position, member in enumerate(self._members):
            with branches.of(position):
                with branches.drawing(position):
                    passed = self._forward(position, Batch(inputs[position], targets[position], samples))
                branches.wait_for_earlier(position)
                others = None if bank is None else torch.cat([bank, *live])
                loss, term = objective(passed, problem, others)
                member.optimizer.zero_grad()
                loss.backward()
                (member.optimizer if self._copies is None else self._copies[position]).step()
                losses.append(passed.loss.detach())
                terms.append(torch.zeros_like(losses[-1]) if term is None else term.detach())
                if passed.outputs is not None:
                    live.append(passed.outputs.detach()[None])
        return _Taken(inputs, targets, samples, bank, rates, live, losses, terms)

    def _draw_samples(self) -> tuple[Tensor | None, Tensor | None]:
        if self._weighting is None:
            return None, None
        indices = self._samples.index_select(0, self._counter)[0]
        return self._problem.inputs(self._weighting.samples[indices]), self._weighting.bank.at(indices)

    def _set_learning_rates(self) -> dict[float, Tensor]:
        """Give optimizers the row's learning rate, by where it started: a new tensor, as others may be behind."""
        factor = self._rates.index_select(0, self._counter)[0]
        rates = {initial: factor * initial for initial in {group["initial_lr"] for group in self._groups()}}
        for group in self._groups():
            group["lr"] = rates[group["initial_lr"]]
        return rates

    @contextmanager
    def _own_learning_rates(self) -> Iterator[None]:
        """Leave optimizers the tensors that they had, with the last learning rate in them."""
        own = [(group, group["lr"]) for group in self._groups()]
        try:
            yield
            for tensor, last in {id(tensor): (tensor, group["lr"]) for group, tensor in own}.values():
                tensor.copy_(last)
        finally:
            for group, tensor in own:
                group["lr"] = tensor

    def _groups(self) -> list[dict[str, Any]]:
        return [group for member in self._members for group in member.optimizer.param_groups]

    def _forward(self, position: int, batch: Batch) -> Pass:
        model, call = self._members[position].model, None
        if self._copies is not None:
            self._copies[position].refresh()
            call = self._copies[position].call
        return forward(model, self._problem, batch, call)


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
