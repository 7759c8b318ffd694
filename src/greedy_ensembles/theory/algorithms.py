"""Maximising a set function over sets of exactly M elements: Algorithm 1 and its relatives.

All of them compare F(Z + x), never differences of it, and take the lowest index among equals; every random choice
comes from the generator given. None looks inside the set function: `set_function.Selection` is all they use, except
that `exhaustive` has whole sets evaluated.
"""

import math
from collections.abc import Callable, Iterator
from itertools import combinations, islice
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike

from greedy_ensembles.checks import check_kind
from greedy_ensembles.theory.arrays import Array
from greedy_ensembles.theory.set_function import Indices, Selection, SetFunction

#: Slack for the rounding of F, relative to its size: what is this close to the best, `lazy_greedy` looks at anew.
_ROUNDING = 1e-9
_LARGEST_BATCH = 32  # of gains that `lazy_greedy` asks for at once; larger ones waste evaluations, smaller ones time
_SETS_AT_ONCE = 1 << 14
_MOST_SETS = 20_000_000


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

    With `dummies`, elements that change nothing compete too, so that no candidate that lowers F is ever drawn, and
    those drawn are left out of the answer. The guarantee of 1/e for a non-negative F that is not monotone needs them.
    The answer may then be shorter than M: report F of it, never a divergence, because such a mixture is no
    distribution.
    """
    _check_function(function)
    _check_generator(rng)

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
    """
    _check_function(function)
    _check_generator(rng)
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


def _check_generator(rng: object) -> None:
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, such as numpy.random.default_rng(0), got {rng!r}")
