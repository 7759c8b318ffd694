"""What a member says outside of training steps: on the held-out examples, and on the whole p* set."""

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import dtype_of
from greedy_ensembles.training.numerics import autocast
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import full_precision
from greedy_ensembles.training.weighting_set import WeightingSet


@torch.no_grad()
def count_correct(model: nn.Module, problem: Problem) -> int | None:
    """Return how many held-out examples the model gets right, or None where none are held out."""
    if len(problem.validation) == 0:
        return None
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=problem.device)
    with autocast(problem.recipe, problem.device):
        for indices in problem.validation.split(problem.evaluation_rows):
            inputs = problem.inputs(problem.examples.inputs(indices)).to(memory_format=problem.memory_format)
            correct += (model(inputs).argmax(dim=1) == problem.examples.labels[indices].to(problem.device)).sum()
    return int(correct)


@torch.no_grad()
def outputs_on_set(model: nn.Module, problem: Problem, weighting: WeightingSet) -> Tensor:
    """Return a finished member's row of the bank: its outputs on the whole p* set in eval mode, in single precision."""
    model.eval()
    rows = []
    with autocast(problem.recipe, problem.device):
        for batch in weighting.samples.split(problem.evaluation_rows):
            logits = model(problem.inputs(batch, dtype_of(model)).to(memory_format=problem.memory_format))
            rows.append(problem.outputs(full_precision(logits)).float())
    return torch.cat(rows)
