"""Where set functions and the algorithms that maximise them meet, so that either can be replaced.

An algorithm sees a growing set Z through two methods of a `Selection`: the gains of candidates, and accepting one. A
gain is reported as F(Z + x), the value that accepting x leads to. Its difference from F(Z) is the same shift for all
candidates and changes no choice, except where F(Z) is minus infinity: there the difference says nothing any more,
while F(Z + x) still tells the candidates apart.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from greedy_ensembles.checks import check_count, check_kind
from greedy_ensembles.theory.arrays import Array

Indices = NDArray[np.intp]


class Selection(Protocol):
    """A set Z, empty at first, that grows one element at a time."""

    @property
    def value(self) -> float:
        """F(Z); NaN where it is unknown, which costs `lazy_greedy` some of its savings and nothing else."""

    def gains(self, candidates: Indices) -> Array:
        """Return F(Z + x) for each candidate x, none of which is in Z."""

    def accept(self, candidate: int) -> None:
        """Put a candidate into Z."""


class SetFunction(ABC):
    """A function F of subsets of {0, ..., len(F) - 1}, larger is better, of which M = size elements are wanted.

    A subclass needs `__call__`; one that can reuse work as a set grows overrides `start`, and one that can evaluate
    many sets at once `values`.

    >>> class Coverage(SetFunction):
    ...     def __call__(self, indices):
    ...         return float(len({letter for i in indices for letter in ["abc", "cd", "ab"][i]}))
    >>> from greedy_ensembles.theory import greedy
    >>> greedy(Coverage(count=3, size=2))
    [0, 1]
    """

    def __init__(self, count: int, size: int) -> None:
        size = int(size) if isinstance(size, np.integer) else size
        check_count("size", size, 1)
        if size > count:
            raise ValueError(f"size must not exceed the ground set, got {size} of {count} elements")
        self._count = count
        self.size = size

    def __len__(self) -> int:
        """Return the number of elements of the ground set."""
        return self._count

    @abstractmethod
    def __call__(self, indices: Sequence[int]) -> float:
        """Return F of the set of these indices."""

    def values(self, sets: NDArray[np.intp]) -> Array:
        """Return F of each row of a (sets, elements) array."""
        return np.array([self([int(i) for i in row]) for row in sets], dtype=np.float64)

    def start(self) -> Selection:
        """Return an empty selection."""
        return _Called(self)

    def checked(self, indices: Sequence[int]) -> Indices:
        """Return indices as an array, or raise unless they are distinct elements of the ground set."""
        check_kind("indices", indices, Iterable, "a list of whole numbers")
        array = np.asarray(list(indices))
        if array.size == 0:
            return np.zeros(0, dtype=np.intp)
        if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
            raise TypeError(f"indices must be a list of whole numbers, got {indices!r}")
        if array.min() < 0 or array.max() >= len(self):
            raise ValueError(f"indices must lie in 0..{len(self) - 1}, got {array.tolist()}")
        if len(np.unique(array)) < len(array):
            raise ValueError(f"indices must be distinct, got {array.tolist()}")
        return array.astype(np.intp)


class _Called:
    """The selection of a set function that is evaluated anew for every set."""

    def __init__(self, function: SetFunction) -> None:
        self._function = function
        self._chosen: list[int] = []

    @property
    def value(self) -> float:
        return self._function(self._chosen)

    def gains(self, candidates: Indices) -> Array:
        return np.array([self._function([*self._chosen, int(i)]) for i in candidates], dtype=np.float64)

    def accept(self, candidate: int) -> None:
        self._chosen.append(candidate)


class Counted(SetFunction):
    """Another set function, counting the gains that are asked of it."""

    def __init__(self, function: SetFunction) -> None:
        super().__init__(len(function), function.size)
        self.function = function
        self.evaluations = 0

    def __call__(self, indices: Sequence[int]) -> float:
        """Return F of the set of these indices."""
        return self.function(indices)

    def start(self) -> Selection:
        """Return an empty selection whose gains are counted."""
        return _CountedSelection(self, self.function.start())


class _CountedSelection:
    def __init__(self, counter: Counted, selection: Selection) -> None:
        self._counter = counter
        self._selection = selection

    @property
    def value(self) -> float:
        return self._selection.value

    def gains(self, candidates: Indices) -> Array:
        self._counter.evaluations += len(candidates)
        return self._selection.gains(candidates)

    def accept(self, candidate: int) -> None:
        self._selection.accept(candidate)
