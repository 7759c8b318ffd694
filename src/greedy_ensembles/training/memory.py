"""Whether a training fits into memory, and how many members at once, known before it starts."""

import dataclasses
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


def members_at_once(problem: Problem, left: int) -> int:
    """Return how many of those that are left to train together: as memory holds, and no more than the recipe says.

    In groups, members that see each other become others, which is to be known; those of Deep Ensembles do not.
    """
    fitting, most = fitting_members(problem), problem.recipe.members_at_once
    if fitting < min(most or left, left) and (most is not None or problem.coupling is not None):
        asked = f"{left} members are to train together" if most is None else f"members_at_once is {most}"
        against = "" if problem.coupling is None else ", each against those before it as they were at their best"
        warnings.warn(
            f"{asked}, but {fitting} fit into the memory that is free on {problem.device}; members are trained in "
            f"groups of {fitting}{against}",
            stacklevel=2,
        )
    return min(most or fitting, fitting)


def with_evaluation_rows(problem: Problem, at_once: int) -> Problem:
    """Return a problem whose members are evaluated on as many inputs at once as memory holds beside so many members.

    They need no more for an input than training keeps of it, so those of a training step fit in any case.
    """
    available = available_memory(problem.device)
    if available is None or not problem.footprint.row:
        return problem
    together = at_once if problem.stackable else 1  # who evaluate at once
    margin = _STACKED_MARGIN if problem.stackable else _MARGIN
    taken: float = _fixed(problem) + at_once * (problem.footprint.state + _inputs(problem))
    if problem.device.type == "cuda":  # where recordings keep what they need
        taken += min(at_once, LANES) * _activations(problem)
    fitting = int((available - taken) / (together * margin * problem.footprint.row))
    rows = min(problem.evaluation_rows, max(fitting, _rows(problem)))
    return dataclasses.replace(problem, evaluation_rows=rows)


def fitting_members(problem: Problem) -> int:
    """Return how many members memory holds at once, before p* and the bank are there."""
    available = available_memory(problem.device)
    if available is None:
        return problem.size
    lanes = LANES if problem.device.type == "cuda" else problem.size if problem.stackable else 1
    activations = _activations(problem, _STACKED_MARGIN if problem.stackable else _MARGIN)
    free = available - _fixed(problem) - _evaluation(problem)
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
    return int(problem.footprint.state + _activations(problem) + _evaluation(problem))


def _evaluation(problem: Problem) -> float:
    """Return the bytes that an evaluation needs beside training: a recorded step does not lend it its own."""
    evaluated = len(problem.validation) > 0 or problem.weighting is not None
    return _activations(problem) if evaluated and problem.device.type == "cuda" else 0.0


def _inputs(problem: Problem) -> int:
    """Return the bytes of a member's examples, as often as the few operations have them that make a whole group's."""
    return 4 * 4 * math.prod(problem.examples.shape) * min(problem.recipe.batch_size, len(problem.train))


def _activations(problem: Problem, margin: float = _MARGIN) -> float:
    return margin * problem.footprint.row * _rows(problem)


def _rows(problem: Problem) -> int:
    recipe = problem.recipe
    samples = 0 if problem.weighting is None else recipe.weighting_batch_size or recipe.batch_size
    return min(recipe.batch_size, len(problem.train)) + samples
