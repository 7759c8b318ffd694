"""Messages for bad input: each names the argument, what was given and what would do.

And the limits on what a file may ask for, in one place: whoever reads files asks `check_limit`, and `ge.limits` raises
a limit for those who know their file.
"""

import difflib
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from numbers import Integral, Real
from pathlib import Path
from typing import Any

#: The most that a file may ask for; docs/format.md says what each means.
LIMITS = {
    "expanded": 2 << 30,
    "entries": 500_000,
    "picture": 64 << 20,
    "pixels": 100_000_000,
    "side": 1024,
    "opcodes": 1_000_000,
    "seconds": 600,
}
_VARIABLE = "GREEDY_ENSEMBLES_LIMITS"
_raised: ContextVar[Mapping[str, float]] = ContextVar("limits", default={})  # noqa: B039 (nobody changes it)


@contextmanager
def limits(**most: float) -> Iterator[None]:
    """Read files under other limits, by their names in docs/format.md, while the block lasts.

    For programs that cannot be changed, and for commands, GREEDY_ENSEMBLES_LIMITS="expanded=64e9,pixels=1e9" does it.

    >>> with limits(expanded=64e9):
    ...     pass  # images = ge.data.read("large.npz")
    """
    for name, value in most.items():
        check_choice("limit", name, LIMITS)
        check_number(name, value, least=0)
    token = _raised.set({**_raised.get(), **most})
    try:
        yield
    finally:
        _raised.reset(token)


def limit(name: str) -> int:
    """Return the limit of that name, as it is now."""
    return int(_raised.get().get(name, _from_environment().get(name, LIMITS[name])))


def _from_environment() -> dict[str, float]:
    text = os.environ.get(_VARIABLE, "")
    found: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        try:
            check_choice("limit", name.strip(), LIMITS)
            check_number(name, found.setdefault(name.strip(), float(value)), least=0)
        except ValueError as error:
            raise ValueError(f"{_VARIABLE} must be as in expanded=64e9,pixels=1e9; got {text!r}: {error}") from None
    return found


def check_limit(name: str, asked: int, what: str, own: int = 0) -> None:
    """Raise ValueError where a file asks for more than the limit of that name, and for more than its `own` size."""
    most = max(limit(name), own)
    if asked > most:
        raise ValueError(
            f"{what}: {asked:,} is beyond the limit of {most:,}. Where you trust the file, "
            f"`with ge.limits({name}={asked}):` or {_VARIABLE}={name}={asked} lets it pass"
        )


@contextmanager
def naming(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn whatever the bytes of a file lead its reader to raise into a ValueError that names the file."""
    try:
        yield
    except Exception as error:
        named = isinstance(error, ValueError) and str(path) in str(error)
        if named or (isinstance(error, OSError) and error.filename is not None):
            raise  # it says so itself: damaged, missing, or not for us
        raise ValueError(f"{path} {what}: {str(error) or type(error).__name__}") from error


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
        bound = (
            f" and above {above:g}" if above > -math.inf else f" and at least {least:g}" if least > -math.inf else ""
        )
        raise ValueError(f"{name} must be finite{bound}, got {value}")


def check_kind(name: str, value: object, kind: type | tuple[type, ...], what: str) -> None:
    """Raise TypeError unless value is of a kind; `what` says it in words, with an article."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {told(value)}")


def as_all(name: str, values: Any, kind: type, what: str) -> list[Any]:
    """Return a list of values, all of a kind, or raise TypeError."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {told(values)}")
    items = list(values)
    for item in items:
        check_kind(f"each of {name}", item, kind, what)
    return items


def check_flag(name: str, value: object) -> None:
    """Raise TypeError unless value is True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # numpy has its own, of either name
        raise TypeError(f"{name} must be True or False, got {told(value)}")


def check_unmasked(name: str, value: object) -> None:
    """Raise ValueError for an array with a mask, which would be lost without a word."""
    if hasattr(value, "mask") and hasattr(value, "filled"):  # which numpy's masked arrays alone have
        raise ValueError(f"{name} must not be a masked array, whose mask would be lost; leave masked rows out first")


def as_path(name: str, value: Any) -> Path:
    """Return a path, its home folder spelled out, or raise TypeError."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise TypeError(f"{name} must be a path, as text or a pathlib.Path; got {told(value)}")
    return Path(value).expanduser()


def check_draw(n: object, generator: object) -> None:
    """Raise unless n samples can be drawn with a torch.Generator."""
    check_count("n", n, least=0)
    if not hasattr(generator, "initial_seed"):  # told by that, since torch is slow to import
        raise TypeError(f"generator must be a torch.Generator, got {told(generator)}")


def check_factory(name: str, value: object) -> None:
    """Raise TypeError unless value can be called without arguments to build a model, and is none itself."""
    if not callable(value) or (hasattr(value, "state_dict") and not isinstance(value, type)):
        raise TypeError(
            f"{name} must be a callable without arguments that builds a new nn.Module at every call, got {told(value)}"
        )
    try:
        inspect.signature(value).bind()
    except ValueError:  # some callables of C have no signature
        return
    except TypeError as error:
        raise TypeError(f"{name} must need no arguments: {error}; functools.partial can give them") from None


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, or its type where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def reason(error: BaseException) -> str:
    """Return what went wrong, in a line.

    >>> reason(ValueError("x is 3\\nand more")), reason(KeyboardInterrupt())
    ('ValueError: x is 3', 'KeyboardInterrupt')
    """
    name, said = type(error).__name__, first_line(error)
    return name if said == name else f"{name}: {said}"


def told(value: object) -> str:
    """Return what a message says of a value that will not do: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 40 and "\n" not in text else f"a {type(value).__name__}"
