"""Which engine trains a group of members."""

import warnings
from typing import Protocol

from greedy_ensembles.training.captured import CannotCapture, CapturedEngine, why_not
from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import Losses
from greedy_ensembles.training.weighting_set import WeightingSet


class Engine(Protocol):
    """Trains the members it was made for, which are all at the same epoch."""

    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, and return their means of loss and coupling term."""
        ...


def make_engine(members: list[Member], problem: Problem, weighting: WeightingSet | None) -> Engine:
    """Return the fastest engine that can train these members; on a GPU, say in one line why it is not the fast one."""
    if problem.device.type == "cuda":
        why = why_not(problem)
        if why is None:
            try:
                return CapturedEngine(members, problem, weighting)
            except CannotCapture as error:
                why = str(error)
        warnings.warn(f"trained step by step, since steps cannot be captured: {why}", stacklevel=2)
    return EagerEngine(members, problem, weighting)
