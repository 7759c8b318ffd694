"""A table of wrong calls: one argument of a right call is wrong, and the message must name it."""

import re

import pytest

NAN, INF = float("nan"), float("inf")


def wrong(call, right, named=None, **arguments):
    """Return the cases of a call: each of the values of an argument in place of the right one.

    Args:
        call: what is called, with keywords.
        right: keywords with which it would work.
        named: what messages call an argument, where that is not its own name: a pattern.
        arguments: lists of wrong values.
    """
    label = getattr(call, "__qualname__", type(call).__name__).removesuffix(".<lambda>")
    return [
        pytest.param(call, {**right, name: value}, (named or {}).get(name, name), id=f"{label}-{name}-{_short(value)}")
        for name, values in arguments.items()
        for value in values
    ]


def _short(value):
    text = re.sub(r" at 0x\w+", "", repr(value))  # which differs from process to process, and so from worker to worker
    return re.sub(r"\s+", " ", text)[:30]


def assert_refused(call, arguments, name):
    """Make a wrong call; the error must be one of two, and name the argument."""
    with pytest.raises((ValueError, TypeError)) as refused:
        call(**arguments)
    assert re.search(rf"\b{name}\b", str(refused.value)), f"{name} is not named in: {refused.value}"
