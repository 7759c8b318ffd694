"""Which engine trains a group of members."""

import warnings

from greedy_ensembles.training.captured import CannotCapture, CapturedEngine, why_not_captured
from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.stackable import why_not_stacked
from greedy_ensembles.training.stacked import StackedEngine
from greedy_ensembles.training.weighting_set import WeightingSet


def make_engine(members: list[Member], problem: Problem, weighting: WeightingSet | None) -> Engine:
    """Return the fastest engine that can train these members; on a GPU, say in one line why it is not the fast one."""
    if why_not_stacked(members, problem) is None:
        return StackedEngine(members, problem, weighting)
    if problem.device.type == "cuda":
        why = why_not_captured(problem)
        if why is None:
            try:
                return CapturedEngine(members, problem, weighting)
            except CannotCapture as error:
                why = str(error)
        warnings.warn(f"trained step by step, since steps cannot be captured: {why}", stacklevel=2)
    return EagerEngine(members, problem, weighting)
