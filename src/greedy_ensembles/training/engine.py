"""What an engine is: it trains a group of members, and says after an epoch where they stand."""

from abc import ABC, abstractmethod
from contextlib import nullcontext

from greedy_ensembles.training.member import Member
from greedy_ensembles.training.outputs import count_correct
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import Losses


class Engine(ABC):
    """Trains the members it was made for, which are all at the same epoch."""

    _members: list[Member]
    _problem: Problem

    @abstractmethod
    def train_epoch(self) -> list[Losses]:
        """Train every member for one epoch, and return their means of loss and coupling term."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Let go of the members, which are trained."""

    def are_finite(self) -> list[bool]:
        """Return for each member whether its weights and statistics are still numbers."""
        return [member.is_finite() for member in self._members]

    def count_correct(self) -> list[int | None]:
        """Return how many held-out examples each member gets right, or None where none are held out."""
        correct = []
        for member in self._members:
            with nullcontext() if len(self._members) == 1 else member.at_work():
                correct.append(count_correct(member.model, self._problem))
        return correct
