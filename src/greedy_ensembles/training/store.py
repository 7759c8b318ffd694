"""Where finished members and the epoch under way are kept: in memory here, in a folder in `run_folder`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.inputs import Normalize

History = list[dict[str, Any]]


@dataclass
class Finished:
    """A member that is done: its model with the selected weights, what became of it, and its row of the bank."""

    number: int  #: from 1
    model: nn.Module
    facts: dict[str, Any]
    history: History
    row: Tensor | None


class Store(Protocol):
    """What a schedule needs of the place where a run is kept."""

    @property
    def members_at_once(self) -> int | None:
        """How many members train together, if that was decided before."""
        ...

    def keep_members_at_once(self, count: int) -> None:
        """Keep how many members train together."""
        ...

    @property
    def finished(self) -> int:
        """How many members are done."""
        ...

    def rows(self) -> Iterable[Tensor]:
        """Return the bank rows of the finished members."""
        ...

    def checkpoint(self) -> dict[str, Any] | None:
        """Return the state of the members under way, if one was saved."""
        ...

    def save_checkpoint(self, state: Callable[[], dict[str, Any]], last: bool) -> None:
        """Keep the state of the members under way: {"members": [...]}, each with its "number"; made when asked for.

        A state that takes long to write may be left out, but not the last one of these members.
        """
        ...

    def drop_checkpoint(self) -> None:
        """Forget the state of the members under way, which are all finished."""
        ...

    def add(self, member: Finished) -> None:
        """Keep a finished member."""
        ...

    def facts(self) -> list[dict[str, Any]]:
        """Return what became of the finished members."""
        ...

    def ensemble(self, normalize: Normalize | None) -> Ensemble:
        """Return all finished members."""
        ...


class MemoryStore:
    """A run that is kept nowhere else: an interruption loses it."""

    members_at_once: int | None = None

    def __init__(self) -> None:
        self._members: list[nn.Module] = []
        self._facts: list[dict[str, Any]] = []

    @property
    def finished(self) -> int:
        """How many members are done."""
        return len(self._members)

    def keep_members_at_once(self, count: int) -> None:
        """Keep how many members train together."""
        self.members_at_once = count

    def rows(self) -> Iterable[Tensor]:
        """Return nothing: a run in memory starts without members."""
        return ()

    def checkpoint(self) -> dict[str, Any] | None:
        """Return nothing: there is never anything to go on from."""
        return None

    def save_checkpoint(self, state: Callable[[], dict[str, Any]], last: bool) -> None:
        """Do nothing."""

    def drop_checkpoint(self) -> None:
        """Do nothing."""

    def add(self, member: Finished) -> None:
        """Keep the model of a finished member, and what became of it."""
        self._members.append(member.model)
        self._facts.append(member.facts)

    def facts(self) -> list[dict[str, Any]]:
        """Return what became of the finished members."""
        return self._facts

    def ensemble(self, normalize: Normalize | None) -> Ensemble:
        """Return all finished members."""
        return Ensemble(self._members, normalize)
