"""The eager engine: one member, one epoch, one step after another, for any model on any device.

A step is the published one: backward of the loss; forward of the p* samples with BatchNorm frozen and dropout on;
backward of the coupling's term; one step of the optimizer.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import dtype_of
from greedy_ensembles.method import frozen_batchnorm
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.recipe import learning_rate_factor, set_learning_rate
from greedy_ensembles.training.seeds import SHUFFLE, generator
from greedy_ensembles.training.weighting_set import WeightingSet

_EVALUATION_BATCH = 1024


class Losses(NamedTuple):
    """Means over an epoch: of the loss over examples, and of the coupling's term over steps."""

    loss: float
    diversity: float | None


def train_epoch(member: Member, problem: Problem, weighting: WeightingSet | None) -> Losses:
    """Train a member for one epoch against the members in the bank."""
    model, optimizer, recipe = member.model.train(), member.optimizer, problem.recipe
    augment = problem.augment
    batches = epoch_batches(problem, member)
    if weighting is not None and len(weighting.bank) == 0:
        weighting = None  # the first member has no one to differ from
    total, term_total = torch.zeros(2, dtype=torch.float64, device=problem.device).unbind()
    for number, indices in enumerate(batches):
        step = member.epoch * len(batches) + number
        set_learning_rate(optimizer, learning_rate_factor(recipe, step / len(batches)))
        inputs = problem.inputs(problem.examples.inputs(indices))
        targets = problem.examples.labels[indices].to(problem.device)
        optimizer.zero_grad()
        loss = problem.loss(model(inputs if augment is None else augment(inputs)), targets)
        loss.backward()
        total += loss.detach() * len(indices)
        if weighting is not None:
            term = coupling_term(model, problem, weighting, step)
            term.backward()
            term_total += term.detach()
        optimizer.step()
    examples = sum(len(indices) for indices in batches)
    return Losses(float(total) / examples, float(term_total) / len(batches) if weighting is not None else None)


def coupling_term(model: nn.Module, problem: Problem, weighting: WeightingSet, step: int) -> Tensor:
    """Return the coupling's term on this step's samples of p*."""
    assert problem.coupling is not None  # who has a p* has a coupling
    indices = weighting.indices(step)
    with frozen_batchnorm(model):
        outputs = problem.outputs(model(problem.inputs(weighting.samples[indices])))
    return problem.coupling.term(outputs, weighting.bank.at(indices))


def epoch_batches(problem: Problem, member: Member) -> list[Tensor]:
    """Return the indices of the examples of each step, shuffled by (member's seed, epoch).

    A last batch of one example is left out, since BatchNorm cannot train on it; it is another one in every epoch.
    """
    count, batch_size = len(problem.train), problem.recipe.batch_size
    order = torch.randperm(count, generator=generator(SHUFFLE, member.seed, member.epoch))
    batches = list(problem.train[order.to(problem.train.device)].split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1 < batch_size:
        batches.pop()
    return batches


@torch.no_grad()
def count_correct(model: nn.Module, problem: Problem) -> int | None:
    """Return how many held-out examples the model gets right, or None where none are held out."""
    if len(problem.validation) == 0:
        return None
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=problem.device)
    for indices in problem.validation.split(_EVALUATION_BATCH):
        predicted = model(problem.inputs(problem.examples.inputs(indices))).argmax(dim=1)
        correct += (predicted == problem.examples.labels[indices].to(problem.device)).sum()
    return int(correct)


@torch.no_grad()
def outputs_on_set(model: nn.Module, problem: Problem, weighting: WeightingSet) -> Tensor:
    """Return a finished member's row of the bank: its outputs on the whole p* set in eval mode, in single precision."""
    model.eval()
    rows = [
        problem.outputs(model(problem.inputs(batch, dtype_of(model)))).float()
        for batch in weighting.samples.split(_EVALUATION_BATCH)
    ]
    return torch.cat(rows)
