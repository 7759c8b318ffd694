"""What a step is, and the plain engine, which takes it one operation after another, for any model on any device.

Every other engine takes the same step faster, and must end with the same weights: the examples of the step and samples
of p* go through each member, the coupling turns all members' outputs on p* into a term for each, and every member moves
against the gradient of its loss plus its term (line 10 of Algorithm 2).
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from greedy_ensembles.engines.execution import Exchange, Execution
from greedy_ensembles.engines.member import Member
from greedy_ensembles.inputs import Inputs, as_logits, concatenate, length, take
from greedy_ensembles.method import Bank, Coupling, TwoPasses, split_batchnorm

Call = Callable[[Any], Any]


class Pass(NamedTuple):
    """What came out of a member's forward pass."""

    loss: Tensor
    outputs: Tensor | None  #: on the samples of p*, as distances are measured between


class Plan(NamedTuple):
    """An epoch, step by step: every member's examples, samples of p*, and rates."""

    examples: list[Any]  #: indices (members, batch), or every member's iterator of batches
    samples: list[Tensor]  #: empty where members meet no one
    rates: list[float]  #: what the learning rate is multiplied by


class MicroBatch(NamedTuple):
    """The place of a batch among those whose gradients are averaged for one update."""

    share: float = 1.0
    first: bool = True
    last: bool = True


WHOLE = MicroBatch()


class Losses(NamedTuple):
    """Means over an epoch: of the loss over examples, and of the coupling's term over steps."""

    loss: float
    term: float | None


@dataclass(frozen=True)
class Step:
    """All that a step needs to know beside members, whichever engine takes it."""

    execution: Execution
    recipe: Any  #: the `ge.Recipe`, of which loss, augmentation and optimizer are below, ready for use
    look_up: Callable[[Any], tuple[Any, Tensor]]  #: from indices, or an iterator, to inputs and targets
    to_model: Call  #: from samples as they are stored to inputs as models take them
    loss: Callable[[Tensor, Tensor], Tensor]
    augment: Callable[..., Any] | None
    mixes: bool  #: whether `augment` takes and returns targets, too
    coupling: Coupling
    bank: Bank | None  #: None where no p* is drawn
    outputs: Call  #: from logits to what distances are measured between
    one_pass: bool  #: whether examples and samples of p* can go through a model together
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None  #: None where it is the user's own
    exchange: Exchange | None  #: between processes that train members together; None where one trains all of them
    off_device: str | None  #: why `look_up` cannot be recorded; None where it looks up one tensor on the device

    def samples(self, chosen: Tensor | None) -> tuple[Any, Tensor | None]:
        """Return samples of p* as models take them, and the outputs of finished members on them."""
        if chosen is None or self.bank is None:
            return None, None
        return self.to_model(take(self.bank.samples, chosen)), self.bank.at(chosen)

    def forward(self, model: nn.Module, inputs: Inputs, targets: Tensor, samples: Inputs | None) -> Pass:
        """Send a member's examples and samples of p* through it."""
        run, others = self.execution.run, None
        if self.augment is not None:
            inputs, targets = self.augment(inputs, targets) if self.mixes else (self.augment(inputs), targets)
        if samples is None:
            logits = run(model, inputs)
        elif self.one_pass:
            with split_batchnorm(model, len(targets), self.recipe.weighting_statistics):
                both = run(model, concatenate([inputs, samples]))
            logits, others = both.split([len(targets), length(samples)])
        else:
            passes = TwoPasses(model, self.recipe.weighting_statistics)
            with passes.of_examples():
                logits = run(model, inputs)
            with passes.of_samples():
                others = run(model, samples)
        outputs = None if others is None else self.outputs(as_logits(others))
        return Pass(self.loss(as_logits(logits), targets), outputs)

    def couple(self, live: Tensor, bank: Tensor) -> tuple[Tensor, Sequence[Tensor | None]]:
        """Return the term of every member of this process, and its gradient by the member's outputs on p*.

        `live` are outputs (members, n, classes) of all that train together, in other processes, too.
        """
        own = slice(0, len(live)) if self.exchange is None else self.exchange.own
        live = live.detach().requires_grad_()
        with torch.enable_grad():
            terms = self.coupling.terms(live, bank)
        if not terms.requires_grad:  # a method's terms may be constants, in a step or ever
            return terms[own], [None] * (own.stop - own.start)
        (gradient,) = torch.autograd.grad(terms.sum(), live)
        return terms[own].detach(), list(gradient[own])

    def update(self, member: Member, passed: Pass, gradient: Tensor | None, batch: MicroBatch = WHOLE) -> None:
        """Move a member against the gradient of its loss plus its term."""
        if batch.first:
            member.optimizer.zero_grad()
        loss = passed.loss if batch.share == 1 else passed.loss * batch.share
        if gradient is None or passed.outputs is None:
            loss.backward()
        else:
            gradient = gradient if batch.share == 1 else gradient * batch.share
            torch.autograd.backward([loss, passed.outputs], [None, gradient])
        if not batch.last:
            return
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(member.model.parameters(), self.recipe.clip)
        member.optimizer.step()
        if member.average:  # the average moves towards the weights
            torch._foreach_lerp_(member.average, [p.detach() for p in member.model.parameters()], 1 - self.recipe.ema)


class PlainEngine:
    """Trains a group of members together; all of them are at the same epoch."""

    def __init__(self, members: list[Member], step: Step) -> None:
        self.members, self._step = members, step
        # glibc returns blocks of the size of activations to the system as they are freed; getting them anew, page by
        # page, took up to a fifth of a step. It stops doing so for blocks up to the size of the largest freed so far.
        torch.empty(31 * 2**20, dtype=torch.uint8)

    def train_epoch(self, plan: Plan) -> list[Losses]:
        """Train every member for one epoch, and return its means of loss and term."""
        samples: Sequence[Tensor | None] = plan.samples or [None] * len(plan.rates)
        count, steps, most = len(self.members), len(plan.rates), self._step.recipe.accumulate
        totals = torch.zeros(2, count, dtype=torch.float64, device=self._step.execution.device)
        seen = [0] * count
        updates = [min(most, steps - first) for first in range(0, steps, most)]  # batches of each
        batches = [MicroBatch(1 / size, k == 0, k == size - 1) for size in updates for k in range(size)]
        for member in self.members:
            member.model.train()
        # Members that meet no one need not take turns.
        for first, last in [(0, count)] if plan.samples else [(k, k + 1) for k in range(count)]:
            group = self.members[first:last]
            with group[0].random_state() if len(group) == 1 else nullcontext():
                for examples, chosen, rate, batch in zip(plan.examples, samples, plan.rates, batches, strict=True):
                    rows = self._take(group, examples[first:last], chosen, rate, batch, totals[:, first:last])
                    for k, row_count in enumerate(rows, start=first):
                        seen[k] += row_count
        return means(totals, plan, self._step, seen)

    def _take(
        self,
        members: list[Member],
        examples: Any,
        chosen: Tensor | None,
        rate: float,
        batch: MicroBatch,
        totals: Tensor,
    ) -> list[int]:
        """Take a step of these members, add losses and terms to their sums, and return how many examples each saw."""
        step = self._step
        samples, bank = step.samples(chosen)
        passes, rows = [], []
        for member, indices in zip(members, examples, strict=True):
            with nullcontext() if len(members) == 1 else member.random_state():
                inputs, targets = step.look_up(indices)
                passes.append(step.forward(member.model, inputs, targets, samples))
                rows.append(len(targets))
        terms: Tensor | None = None
        gradients: Sequence[Tensor | None] = [None] * len(members)
        if bank is not None:
            live = torch.stack([one.outputs.detach() for one in passes if one.outputs is not None])
            terms, gradients = step.couple(live if step.exchange is None else step.exchange(live), bank)
        for position, (member, passed, gradient) in enumerate(zip(members, passes, gradients, strict=True)):
            set_learning_rate(member.optimizer, rate)
            with nullcontext() if len(members) == 1 else member.random_state():
                step.update(member, passed, gradient, batch)
            totals[0, position].add_(passed.loss.detach(), alpha=rows[position])
        if terms is not None:
            totals[1] += terms
        return rows

    @torch.no_grad()
    def predict(self, inputs: Any) -> Tensor:
        """Return every member's logits in eval mode, (members, n, classes)."""
        rows = []
        for member in self.members:
            member.model.eval()
            with member.random_state(), member.averaged():
                rows.append(in_pieces(member.model, inputs, self._step.execution))
        return torch.stack(rows)


def means(totals: Tensor, plan: Plan, step: Step, seen: Sequence[int] | None = None) -> list[Losses]:
    """Return the means of an epoch's sums (2, members): of losses over the examples seen, and of terms over steps."""
    losses, terms = totals.tolist()  # the one time in an epoch that the host waits for the device
    seen, steps = seen or [sum(batch.shape[1] for batch in plan.examples)] * len(losses), len(plan.rates)
    first_is_here = step.exchange is None or step.exchange.own.start == 0
    first_is_alone = step.bank is None or (len(step.bank) == 0 and step.coupling.sees == "earlier")
    without_term = range(1 if first_is_here and first_is_alone else 0) if plan.samples else range(len(losses))
    return [
        Losses(loss / seen[k], None if k in without_term else term / steps)
        for k, (loss, term) in enumerate(zip(losses, terms, strict=True))
    ]


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Multiply the learning rates that the optimizer was made with by `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def in_pieces(model: nn.Module, inputs: Inputs, execution: Execution) -> Tensor:
    """Return a model's logits of a batch, in halves of it where memory does not hold the whole."""
    try:
        return as_logits(execution.run(model, inputs))
    except torch.OutOfMemoryError:
        if (count := length(inputs)) == 1:
            raise
    halves = slice(0, (count + 1) // 2), slice((count + 1) // 2, None)
    return torch.cat([in_pieces(model, take(inputs, half), execution) for half in halves])
