"""Which engine trains a group of members."""

from typing import Protocol

from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.stackable import why_not_stacked
from greedy_ensembles.training.stacked import StackedEngine
from greedy_ensembles.training.step import Losses
from greedy_ensembles.training.weighting_set import WeightingSet


class Engine(Protocol):
    """Trains the members it was made for, which are all at the same epoch."""

    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, and return their means of loss and coupling term."""
        ...

    def count_correct(self) -> list[int | None]:
        """Return how many held-out examples each member gets right, or None where none are held out."""
        ...


def make_engine(members: list[Member], problem: Problem, weighting: WeightingSet | None) -> Engine:
    """Return the fastest engine that can train these members."""
    if why_not_stacked(members, problem) is None:
        return StackedEngine(members, problem, weighting)
    return EagerEngine(members, problem, weighting)
