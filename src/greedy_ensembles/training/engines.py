"""Which engine trains a group of members."""

from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.stackable import why_not_stacked
from greedy_ensembles.training.stacked import StackedEngine
from greedy_ensembles.training.weighting_set import WeightingSet


def make_engine(members: list[Member], problem: Problem, weighting: WeightingSet | None) -> Engine:
    """Return the fastest engine that can train these members."""
    if why_not_stacked(members, problem) is None:
        return StackedEngine(members, problem, weighting)
    return EagerEngine(members, problem, weighting)
