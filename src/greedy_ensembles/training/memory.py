"""Whether a training fits into memory, and how many members at once, known before it starts."""

import math
import warnings

from greedy_ensembles.inputs import as_stored
from greedy_ensembles.method import Bank
from greedy_ensembles.training.free_memory import available_memory, gib
from greedy_ensembles.training.lanes import LANES
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.seeds import generator
from greedy_ensembles.training.weighting_set import weighting_samples

#: What passes need beyond the tensors that they keep: buffers of kernels, gradients under way. Those are of two layers,
#: which of the few layers of stacked members is as much again, or more.
_MARGIN, _STACKED_MARGIN = 1.25, 2.5


def check_memory(problem: Problem) -> None:
    """Refuse a p* set, a bank and a member that memory cannot hold, before anything is made or written."""
    available = available_memory(problem.device)
    if available is None:
        return
    bank, fixed, member = _bank(problem), _fixed(problem), _member(problem)
    if bank and fixed > available:
        raise ValueError(
            f"{weighting_samples(problem)} samples of p* and the bank of {problem.size} members' outputs on them need "
            f"{gib(fixed)} ({gib(bank)} for the bank), and {gib(available)} are free on {problem.device}; "
            "use a smaller p* set: Recipe(weighting_samples=...)"
        )
    if fixed + member > available:
        raise ValueError(
            f"one member needs {gib(member)} to train ({gib(problem.footprint.state)} for weights, gradients and "
            f"optimizer, the rest for a batch of {_rows(problem)} inputs) beside {gib(fixed)} for p*, and "
            f"{gib(available)} are free on {problem.device}; use a smaller batch_size or weighting_batch_size"
        )


def members_at_once(problem: Problem) -> int:
    """Return how many members to train together: as many as memory holds, and no more than the recipe says."""
    fitting, most = fitting_members(problem), problem.recipe.members_at_once
    if most is not None and min(most, problem.size) > fitting:
        warnings.warn(
            f"members_at_once is {most}, but {fitting} fit into the memory that is free on {problem.device}; "
            f"members are trained in groups of {fitting}",
            stacklevel=2,
        )
    return min(most or fitting, fitting)


def fitting_members(problem: Problem) -> int:
    """Return how many members memory holds at once, before p* and the bank are there."""
    available = available_memory(problem.device)
    if available is None:
        return problem.size
    lanes = LANES if problem.device.type == "cuda" else problem.size if problem.stackable else 1
    activations = _activations(problem, _STACKED_MARGIN if problem.stackable else _MARGIN)
    free = available - _fixed(problem)
    fitting = (
        count
        for count in range(problem.size, 1, -1)
        if count * (problem.footprint.state + _inputs(problem)) + min(count, lanes) * activations <= free
    )
    return next(fitting, 1)


def _bank(problem: Problem) -> int:
    if problem.weighting is None:
        return 0
    return Bank.nbytes(problem.size, weighting_samples(problem), problem.classes)


def _fixed(problem: Problem) -> int:
    """Return the bytes of what all members share and is not there yet: the p* set and the bank."""
    if problem.weighting is None:
        return 0
    drawn = problem.weighting.sample(1, generator(0))
    stored = as_stored(drawn, problem.examples.dtype)
    both = problem.device.type == "cpu" and stored is not drawn  # which are there for a while
    return (stored.nbytes + both * drawn.nbytes) * weighting_samples(problem) + _bank(problem)


def _member(problem: Problem) -> int:
    return int(problem.footprint.state + _activations(problem))


def _inputs(problem: Problem) -> int:
    """Return the bytes of a member's examples, as often as the few operations have them that make a whole group's."""
    return 4 * 4 * math.prod(problem.examples.shape) * min(problem.recipe.batch_size, len(problem.train))


def _activations(problem: Problem, margin: float = _MARGIN) -> float:
    return margin * problem.footprint.row * _rows(problem)


def _rows(problem: Problem) -> int:
    recipe = problem.recipe
    samples = 0 if problem.weighting is None else recipe.weighting_batch_size or recipe.batch_size
    return min(recipe.batch_size, len(problem.train)) + samples
