"""Messages for bad input: each names the argument, what was given and what would do."""

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real


def check_choice(name: str, value: object, choices: Iterable[str], synonyms: Mapping[str, str] | None = None) -> None:
    """Raise ValueError unless value is one of the choices, suggesting what a synonym stands for or the nearest."""
    choices = list(choices)
    if value in choices:
        return
    spelled = {**{choice.lower(): choice for choice in choices}, **(synonyms or {})}
    nearest = difflib.get_close_matches(str(value).lower(), spelled, n=1, cutoff=0.5)
    hint = f"; did you mean {spelled[nearest[0]]!r}?" if nearest else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {value!r}{hint}")


def check_count(name: str, value: object, least: int) -> None:
    """Raise unless value is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def check_number(name: str, value: object, *, above: float = -math.inf, least: float = -math.inf) -> None:
    """Raise unless value is a finite number above, or of at least, a bound."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not (math.isfinite(value) and float(value) > above and float(value) >= least):
        bound = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        raise ValueError(f"{name} must be finite and {bound}, got {value}")
