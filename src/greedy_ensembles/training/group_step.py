"""A step of a whole group as a fixed sequence of operations on fixed tensors, so that a GPU can record and replay it.

What changes from step to step (which examples, which samples of p*, the learning rate) lies in tables on the device,
whose row is chosen by a counter that the step itself advances; sums of the losses stay on the device too. It comes in
pieces: what needs no member in particular, then of every member a forward pass and an update. A member's update needs
the outputs on p* of those before it; that is the only point where members meet.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import Batch, Pass, forward, objective
from greedy_ensembles.training.weighting_set import WeightingSet
from greedy_ensembles.training.working_copies import WorkingCopies


class GroupStep:
    """Steps of one batch size: `load` an epoch's tables, then `run` once for every row of them."""

    def __init__(
        self,
        members: Sequence[Member],
        problem: Problem,
        weighting: WeightingSet | None,
        totals: Tensor,
        rows: int,
        batch_size: int,
        drawing: Callable[[int], AbstractContextManager[object]] = lambda _: nullcontext(),
        copies: Sequence[WorkingCopies] | None = None,
    ) -> None:
        device = problem.device
        self._members, self._problem, self._weighting, self._totals = members, problem, weighting, totals
        self._drawing, self._copies = drawing, copies
        self._examples = torch.zeros(rows, len(members), batch_size, dtype=torch.long, device=device)
        samples = 0 if weighting is None else weighting.batch_size
        self._samples = torch.zeros(rows, samples, dtype=torch.long, device=device)
        self._rates = torch.ones(rows, device=device)
        self._counter = torch.zeros(1, dtype=torch.long, device=device)
        # What one piece leaves for others stays until the next step makes it anew: they may be on other streams.
        self._batches: list[Batch] = []
        self._bank: Tensor | None = None
        self._passed: dict[int, Pass] = {}
        self._live: dict[int, Tensor] = {}  # outputs on p*

    def load(self, examples: Sequence[Sequence[Tensor]], samples: Sequence[Tensor], rates: Sequence[float]) -> None:
        """Fill the tables: indices of examples by member and step, of samples by step, and learning-rate factors."""
        self._examples.copy_(torch.stack([torch.stack(list(batches)) for batches in examples], dim=1))
        if len(samples):
            self._samples.copy_(torch.stack(list(samples)))
        self._rates.copy_(torch.tensor(rates))
        self._counter.zero_()
        for copies in self._copies or ():
            copies.refresh_all()  # steps of other lengths, or a checkpoint, may have changed the weights since

    def rewind(self) -> None:
        """Go back to the first row."""
        self._counter.zero_()

    def run(self) -> None:
        """Take the step of the current row, and advance to the next."""
        self.prepare()
        for position in range(len(self._members)):
            self.forward(position)
            self.update(position)

    def forget(self) -> None:
        """Let go of what pieces left for each other: all members are through."""
        self._batches, self._bank = [], None
        self._passed.clear()
        self._live.clear()

    def prepare(self) -> None:
        """Make what needs no member in particular, at once for all of them, and advance to the next row."""
        self.forget()
        problem = self._problem
        examples = self._examples.index_select(0, self._counter)[0]
        inputs = problem.inputs(problem.examples.inputs(examples.flatten())).unflatten(0, examples.shape)
        targets = problem.examples.labels[examples]
        samples, self._bank = self._draw_samples()
        self._batches = [Batch(x, y, samples) for x, y in zip(inputs, targets, strict=True)]
        self._set_learning_rates()
        self._counter += 1

    def forward(self, position: int) -> None:
        """Take a member's forward pass, on its examples and on samples of p*."""
        model, call = self._members[position].model, None
        with self._drawing(position):
            if self._copies is not None:
                self._copies[position].refresh()
                call = self._copies[position].call
            passed = forward(model, self._problem, self._batches[position], call)
        self._passed[position] = passed
        if passed.outputs is not None:
            self._live[position] = passed.outputs.detach()[None]

    def update(self, position: int) -> None:
        """Take a member's backward pass and the step of its optimizer, given the outputs of those before it."""
        optimizer, passed = self._members[position].optimizer, self._passed.pop(position)
        others = None if self._bank is None else torch.cat([self._bank, *(self._live[k] for k in range(position))])
        loss, term = objective(passed, self._problem, others)
        optimizer.zero_grad()
        loss.backward()
        (optimizer if self._copies is None else self._copies[position]).step()
        self._totals[0, position].add_(passed.loss.detach(), alpha=len(self._batches[position].targets))
        if term is not None:
            self._totals[1, position].add_(term.detach())

    def _draw_samples(self) -> tuple[Tensor | None, Tensor | None]:
        if self._weighting is None:
            return None, None
        indices = self._samples.index_select(0, self._counter)[0]
        return self._problem.inputs(self._weighting.samples[indices]), self._weighting.bank.at(indices)

    def _set_learning_rates(self) -> None:
        rate = self._rates.index_select(0, self._counter)[0]
        groups = [group for member in self._members for group in member.optimizer.param_groups]
        for initial, tensor in {id(group["lr"]): (group["initial_lr"], group["lr"]) for group in groups}.values():
            tensor.copy_(rate * initial)


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
