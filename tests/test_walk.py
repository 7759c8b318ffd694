"""How far it is from `ge.fit` to the coupling: `python tests/test_walk.py` lists the functions on the way.

Counted are named functions of the package, in the second call in a process, on a small table, one member after
another, on a CPU, from the call of `ge.fit` to the first step that calls the coupling's `terms`. The aim is 45
functions in 14 files; the limits are what there is now, so that it does not grow. Hooks of methods that change how
members are made are three.
"""

import sys
from pathlib import Path
from types import FrameType

import torch
from torch import nn

import greedy_ensembles as ge

ROOM = Path(ge.__file__).parent
FUNCTIONS, FILES = 105, 18


def fit() -> None:
    x = torch.arange(120.0).reshape(60, 2).remainder(7)
    recipe = ge.Recipe(epochs=1)
    ge.fit(lambda: nn.Linear(2, 2), (x, torch.arange(60) % 2), size=2, recipe=recipe, device="cpu", progress=False)


def walk() -> list[tuple[str, str]]:
    """Return (file, function) in the order in which they are first called."""
    fit()
    passed: dict[tuple[str, str], None] = {}
    begun = arrived = False

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal begun, arrived
        code, path = frame.f_code, Path(frame.f_code.co_filename)
        begun = begun or path == ROOM / "training" / "fit.py"
        if event != "call" or not begun or arrived or not path.is_relative_to(ROOM) or code.co_name.startswith("<"):
            return
        if code.co_name == "terms":
            arrived = True
        else:
            passed[str(path.relative_to(ROOM)), code.co_qualname] = None

    sys.setprofile(note)
    try:
        fit()
    finally:
        sys.setprofile(None)
    assert arrived
    return list(passed)


def test_it_is_a_short_walk_from_fit_to_the_coupling():
    passed = walk()
    assert len(passed) <= FUNCTIONS, passed
    assert len({file for file, _ in passed}) <= FILES, passed


if __name__ == "__main__":
    for number, (file, function) in enumerate(walk(), start=1):
        print(f"{number:3d}  {file:30s} {function}")
