"""Set functions, and algorithms that maximise them over sets of exactly M elements: Algorithm 1 and its relatives.

An algorithm sees a growing set Z through two methods of a `Selection`: the gains of candidates, and accepting one. A
gain is reported as F(Z + x), the value that accepting x leads to. Its difference from F(Z) is the same shift for all
candidates and changes no choice, except where F(Z) is minus infinity: there the difference says nothing any more,
while F(Z + x) still tells the candidates apart. Of equals, all algorithms take the lowest index; every random choice
comes from the generator given. `exhaustive` alone has whole sets evaluated.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations, islice
from numbers import Real
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from greedy_ensembles.checks import check_count, check_kind
from greedy_ensembles.theory.grid import Array

Indices = NDArray[np.intp]

#: Slack for the rounding of F, relative to its size: what is this close to the best, `lazy_greedy` looks at anew.
_ROUNDING = 1e-9
_LARGEST_BATCH = 32  # of gains that `lazy_greedy` asks for at once; larger ones waste evaluations, smaller ones time
_SETS_AT_ONCE = 1 << 14
_MOST_SETS = 20_000_000
_GENERATOR = "a numpy.random.Generator, such as numpy.random.default_rng(0)"


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


def greedy(function: SetFunction) -> list[int]:
    """Return M indices, each of them the best addition to those before it."""
    _check_function(function)
    return _forward(function, lambda selection, remaining: _best(remaining, selection.gains(remaining)))


def lazy_greedy(function: SetFunction) -> list[int]:
    """Return what `greedy` does, from fewer gains, for a submodular function.

    The marginal gain of a candidate can only shrink as Z grows, so that an old one bounds it from above. Candidates
    are looked at in the order of their bounds until no bound reaches the best gain found. While F(Z) is minus infinity
    there are no bounds, and all candidates are looked at.
    """
    _check_function(function)
    bounds = np.full(len(function), math.inf)
    return _forward(function, lambda selection, remaining: _lazy_best(selection, remaining, bounds))


def random_greedy(function: SetFunction, rng: np.random.Generator, *, dummies: bool = False) -> list[int]:
    """Return M indices by Algorithm 1: each is drawn uniformly from the M best additions to those before it.

    Args:
        function: F, with M as its size.
        rng: where the draws come from.
        dummies: whether elements that change nothing compete too, so that no candidate that lowers F is ever drawn;
            those drawn are left out of the answer. The guarantee of 1/e for a non-negative F that is not monotone
            needs them. The answer may then be shorter than M: report F of it, never a divergence, because such a
            mixture is no distribution.
    """
    _check_function(function)
    check_kind("rng", rng, np.random.Generator, _GENERATOR)

    def choose(selection: Selection, remaining: Indices) -> int | None:
        gains = selection.gains(remaining)
        best = np.argsort(-gains, kind="stable")[: function.size]
        if not dummies:
            return int(remaining[rng.choice(best)])
        best = best[gains[best] >= selection.value]  # a dummy would leave F as it is
        drawn = rng.integers(function.size)
        return int(remaining[best[drawn]]) if drawn < len(best) else None

    return _forward(function, choose)


def stochastic_greedy(function: SetFunction, rng: np.random.Generator, *, epsilon: float = 0.1) -> list[int]:
    """Return M indices, each the best addition among (n / M) log(1 / epsilon) candidates drawn at random.

    About n log(1 / epsilon) gains are asked for in all, whatever M.

    Args:
        function: F, with M as its size and n elements.
        rng: where the draws come from.
        epsilon: between 0 and 1; the smaller, the more candidates are looked at, and the closer it comes to `greedy`.
    """
    _check_function(function)
    check_kind("rng", rng, np.random.Generator, _GENERATOR)
    check_kind("epsilon", epsilon, Real, "a number between 0 and 1")
    if not 0 < epsilon < 1:
        raise ValueError(f"epsilon must lie between 0 and 1, got {epsilon}")
    sample = math.ceil(len(function) / function.size * math.log(1 / epsilon))

    def choose(selection: Selection, remaining: Indices) -> int:
        drawn = np.sort(rng.choice(remaining, min(sample, len(remaining)), replace=False))
        return _best(drawn, selection.gains(drawn))

    return _forward(function, choose)


def exhaustive(function: SetFunction) -> list[int]:
    """Return the best of all sets of M indices, the first in lexicographic order among equals."""
    _check_function(function)
    count = math.comb(len(function), function.size)
    if count > _MOST_SETS:
        raise ValueError(
            f"size {function.size} of a ground set of {len(function)} makes {count} sets to try, more than "
            f"{_MOST_SETS}: use greedy or a smaller ground set"
        )
    best, best_value = list(range(function.size)), -math.inf
    for sets, values in evaluate_all(function):
        if values.max() > best_value:
            best, best_value = sets[values.argmax()].tolist(), float(values.max())
    return best


def evaluate_all(function: SetFunction) -> Iterator[tuple[Indices, Array]]:
    """Yield all sets of M indices in lexicographic order, (sets, M) at a time, with F of each."""
    sets = combinations(range(len(function)), function.size)
    while block := list(islice(sets, _SETS_AT_ONCE)):
        array = np.array(block, dtype=np.intp)
        yield array, function.values(array)


def _forward(function: SetFunction, choose: Callable[[Selection, Indices], int | None]) -> list[int]:
    """Make M choices, each from what the earlier ones left; None stands for a dummy element."""
    selection, remaining, chosen = function.start(), np.arange(len(function)), []
    for _ in range(function.size):
        index = choose(selection, remaining)
        if index is not None:
            selection.accept(index)
            chosen.append(index)
            remaining = remaining[remaining != index]
    return chosen


def _best(candidates: Indices, gains: Array) -> int:
    """Return the candidate of the largest gain; candidates are in order, so the first is that of the lowest index."""
    return int(candidates[gains.argmax()])


def _lazy_best(selection: Selection, remaining: Indices, bounds: Array) -> int:
    """Return greedy's choice, updating the bounds of the candidates that had to be looked at."""
    value = selection.value
    bounded = math.isfinite(value)
    if not bounded:
        bounds[:], value = math.inf, 0.0
    order = remaining[np.argsort(-bounds[remaining], kind="stable")]
    reach = value + bounds[order] + _rounding(value)  # what F(Z + x) is at the most
    gains = np.full(len(order), -math.inf)
    batch = max(1, int(np.isposinf(reach).sum()))  # those never looked at, all together
    seen, best = 0, -math.inf
    while seen < len(order) and reach[seen] >= best:
        part = slice(seen, min(seen + batch, int((reach >= best).sum())))
        gains[part] = selection.gains(order[part])
        best = max(best, float(gains[part].max()))
        batch = 1 if seen == 0 else min(2 * batch, _LARGEST_BATCH)
        seen = part.stop
    if bounded:
        found = gains[:seen]
        slack = _rounding(value) + _rounding(np.where(found > -math.inf, found, 0.0))
        bounds[order[:seen]] = found - value + slack
    return int(order[:seen][gains[:seen] == best].min())


def _rounding(values: ArrayLike) -> Array:
    """Return more than the rounding of these values of F can be. Those of unlucky sets may be huge, and rounded so."""
    return _ROUNDING * np.maximum(1.0, np.abs(values))


def _check_function(function: object) -> None:
    if not (hasattr(function, "start") and hasattr(function, "size")):
        raise TypeError(f"function must be a SetFunction, such as a DivergenceObjective; got {function!r}")
