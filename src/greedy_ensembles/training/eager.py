"""The eager engine: one operation after another, for any model, data and optimizer on any device."""

from contextlib import nullcontext

import torch
from torch import Tensor

from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.heap import keep_freed_memory
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.recipe import learning_rate_factor, set_learning_rate
from greedy_ensembles.training.seeds import SHUFFLE, generator
from greedy_ensembles.training.step import Batch, Losses, forward, objective
from greedy_ensembles.training.weighting_set import WeightingSet


class EagerEngine(Engine):
    """Trains a group of members together; all of them are at the same epoch."""

    def __init__(self, members: list[Member], problem: Problem, weighting: WeightingSet | None) -> None:
        self._members, self._problem = members, problem
        self._weighting = weighting if needs_samples(members, weighting) else None
        if problem.device.type == "cpu":
            keep_freed_memory()

    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, each against the bank and the members before it in the group."""
        problem, members = self._problem, self._members
        batches = [epoch_batches(problem, member) for member in members]
        totals = torch.zeros(2, len(members), dtype=torch.float64, device=problem.device)
        for member in members:
            member.model.train()
        steps = len(batches[0])
        for number in range(steps):
            step = members[0].epoch * steps + number
            self._step(step, learning_rate_factor(problem.recipe, step / steps), [b[number] for b in batches], totals)
        examples = sum(len(indices) for indices in batches[0])
        return as_losses(totals, examples, steps, members, self._weighting)

    def _step(self, step: int, rate: float, batches: list[Tensor], totals: Tensor) -> None:
        problem, weighting = self._problem, self._weighting
        samples, others = None, None
        if weighting is not None:
            indices = weighting.indices(step)
            samples, others = problem.inputs(weighting.samples[indices]), weighting.bank.at(indices)
        for position, (member, indices) in enumerate(zip(self._members, batches, strict=True)):
            set_learning_rate(member.optimizer, rate)
            with nullcontext() if len(self._members) == 1 else member.at_work():
                inputs = problem.inputs(problem.examples.inputs(indices))
                targets = problem.examples.labels[indices].to(problem.device)
                member.optimizer.zero_grad()
                passed = forward(member.model, problem, Batch(inputs, targets, samples))
                loss, term = objective(passed, problem, others)
                loss.backward()
                member.optimizer.step()
            totals[0, position] += passed.loss.detach() * len(indices)
            if term is not None:
                totals[1, position] += term.detach()
            if passed.outputs is not None and others is not None:
                others = torch.cat([others, passed.outputs.detach()[None]])


def needs_samples(members: list[Member], weighting: WeightingSet | None) -> bool:
    """Return whether there is anyone to differ from: a bank that is not empty, or another member of the group."""
    return weighting is not None and len(weighting.bank) + len(members) > 1


def as_losses(
    totals: Tensor, examples: int, steps: int, members: list[Member], weighting: WeightingSet | None
) -> list[Losses]:
    """Return the means of an epoch's sums (2, members): of losses over examples, and of terms over steps."""
    losses, terms = totals.tolist()  # the one time in an epoch that the host waits for the device
    alone = weighting is None or len(weighting.bank) == 0  # then the first has no term
    return [
        Losses(losses[k] / examples, None if weighting is None or (alone and k == 0) else terms[k] / steps)
        for k in range(len(members))
    ]


def epoch_batches(problem: Problem, member: Member) -> list[Tensor]:
    """Return the indices of the examples of each step, shuffled by (member's seed, epoch)."""
    return in_batches(shuffled(problem, member), problem.recipe.batch_size)


def shuffled(problem: Problem, member: Member) -> Tensor:
    """Return the indices of all examples in the order in which a member sees them in its next epoch."""
    order = torch.randperm(len(problem.train), generator=generator(SHUFFLE, member.seed, member.epoch))
    return problem.train[order.to(problem.train.device)]


def in_batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Return an epoch's examples, along the last dimension, step by step.

    A last batch of one example is left out, since BatchNorm cannot train on it; it is another one in every epoch.
    """
    batches = list(order.split(batch_size, dim=-1))
    if len(batches) > 1 and batches[-1].shape[-1] == 1 < batch_size:
        batches.pop()
    return batches
