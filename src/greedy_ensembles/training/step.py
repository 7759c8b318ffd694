"""What one step of one member is, whichever engine takes it (lines 7 to 11 of Algorithm 2).

The examples of the step and the samples of p* go through the model, together in one pass where that is the same thing
(`split_batchnorm`), otherwise one after the other with BatchNorm frozen; loss and coupling term are differentiated.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from greedy_ensembles.method import frozen_batchnorm, split_batchnorm
from greedy_ensembles.training.numerics import autocast
from greedy_ensembles.training.problem import Problem

Call = Callable[[Tensor], Tensor]


class Losses(NamedTuple):
    """Means over an epoch: of the loss over examples, and of the coupling's term over steps."""

    loss: float
    diversity: float | None


class Pass(NamedTuple):
    """What came out of a member's forward pass."""

    loss: Tensor
    outputs: Tensor | None  #: on the samples of p*, as distances are measured between


@dataclass
class Batch:
    """The inputs of a step as the model takes them; `samples` of p* are None for a member that needs none."""

    inputs: Tensor
    targets: Tensor
    samples: Tensor | None


def forward(model: nn.Module, problem: Problem, batch: Batch, call: Call | None = None) -> Pass:
    """Send a member's examples and samples through it; `call` stands in for the model, as on copies of its weights."""
    inputs = batch.inputs if problem.augment is None else problem.augment(batch.inputs)
    with autocast(problem.recipe, problem.device):
        logits, others = _logits(model, call or model, problem, inputs, batch.samples)
    outputs = None if others is None else problem.outputs(full_precision(others))
    return Pass(problem.loss(full_precision(logits), batch.targets), outputs)


def _logits(
    model: nn.Module, call: Call, problem: Problem, inputs: Tensor, samples: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    layout = problem.memory_format
    if samples is None:
        return call(inputs.to(memory_format=layout)), None
    if problem.one_pass:
        count = len(inputs)
        with split_batchnorm(model, count, problem.recipe.weighting_statistics):
            both = call(torch.cat([inputs, samples]).to(memory_format=layout))
        logits, others = both.split([count, len(samples)])
        return logits, others
    logits = call(inputs.to(memory_format=layout))
    with frozen_batchnorm(model):
        return logits, call(samples.to(memory_format=layout))


def objective(passed: Pass, problem: Problem, others: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return what a member minimises, and the coupling's term in it; `others` (k, n, classes) said this on p*."""
    if others is None or len(others) == 0:  # the first member has no one to differ from
        return passed.loss, None
    assert problem.coupling is not None  # who has a p* has a coupling
    assert passed.outputs is not None
    term = problem.coupling.term(passed.outputs, others)
    return passed.loss + term, term


def full_precision(logits: Tensor) -> Tensor:
    """Return logits in at least single precision: autocast leaves them in half."""
    return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
