"""Section 4: couplings (one file a method), weighting distributions p*, the bank, and BatchNorm on samples of p*."""

import copy
from typing import get_args

import torch
from torch import Tensor

from greedy_ensembles.checks import check_choice, check_number
from greedy_ensembles.method.batch import Batch
from greedy_ensembles.method.batchnorm import (
    Statistics,
    TwoPasses,
    check_statistics,
    filled_buffer,
    frozen_batchnorm,
    rows_stay_rows,
    split_batchnorm,
)
from greedy_ensembles.method.coupling import SCHEDULES, Bank, Coupling, Schedule, Sees, draw_samples
from greedy_ensembles.method.deep import Deep
from greedy_ensembles.method.dropout import Dropout
from greedy_ensembles.method.greedy import Greedy, diversity_term
from greedy_ensembles.method.hyper import Hyper
from greedy_ensembles.method.pairwise import Pairwise
from greedy_ensembles.method.pointwise import Pointwise
from greedy_ensembles.method.repulsive import Repulsive
from greedy_ensembles.method.snapshot import Snapshot

#: Every method by the name that `ge.fit` and the command line take.
METHODS: dict[str, type[Coupling]] = {
    "greedy": Greedy,
    "deep": Deep,
    "pairwise": Pairwise,
    "repulsive": Repulsive,
    "pointwise": Pointwise,
    "snapshot": Snapshot,
    "hyper": Hyper,
    "batch": Batch,
    "dropout": Dropout,
}


def as_coupling(method: str | Coupling, size: int | None = None, strength: float | None = None) -> Coupling:
    """Return the method of a name, or the one that is given; where a size is, a copy for so many members.

    Args:
        method: a name of `METHODS`, or an object.
        size: M, how many members the ensemble will have.
        strength: lambda_M; methods whose members do not meet do not look at it.
    """
    if isinstance(method, type) and issubclass(method, Coupling):
        raise TypeError(f"method must be a name or an object; {method.__name__} is a class, use {method.__name__}()")
    if isinstance(method, Coupling):
        kind = type(method).__name__
        if not isinstance(getattr(method, "label", None), str):
            raise TypeError(f"{kind} needs a label: what tables call the method, as in label = {kind.lower()!r}")
        check_choice(f"{kind}.sees", method.sees, get_args(Sees))
    else:
        check_choice("method", method, METHODS)
    coupling = method if isinstance(method, Coupling) else METHODS[method]()
    if size is None:
        return coupling
    coupling = copy.copy(coupling)
    coupling.size = int(size)
    if coupling.sees != "none":
        check_number("strength (lambda_M)", strength, least=0.0)
        coupling.strength = float(strength or 0)
        if type(coupling) not in METHODS.values():
            _check_terms(coupling)
        elif not strength:  # what is left of these terms is a constant
            coupling.sees = "none"
    return coupling


def _check_terms(coupling: Coupling) -> None:
    """Refuse a method whose terms are not one number a member: tried on two members, three samples and a full bank."""
    outputs = torch.arange(18.0).reshape(3, 3, 2).sin().softmax(dim=2)
    terms = coupling.terms(outputs[:2].clone().requires_grad_(), outputs[2:])
    if not isinstance(terms, Tensor) or terms.shape != (2,):
        found = f"shape {tuple(terms.shape)}" if isinstance(terms, Tensor) else type(terms).__name__
        name = type(coupling).__name__
        raise ValueError(f"{name}.terms must return one number a member, for two of them shape (2,); got {found}")


def check_together(coupling: Coupling, schedule: Schedule, count: int, at_once: int | None) -> None:
    """Refuse a method whose members all see each other where they do not all train together."""
    if count == 1:
        return
    why = "" if schedule.together else f"schedule={schedule.name!r} trains them one after another"
    if at_once is not None and at_once < count:
        why = why or f"members_at_once={at_once} trains {count} of them in groups"
    if why:
        raise ValueError(
            f"every member of {coupling.label!r} meets all others, so they must train together, and {why}; use "
            "schedule='concurrent' with room for all"
        )


__all__ = [
    "METHODS",
    "SCHEDULES",
    "Bank",
    "Batch",
    "Coupling",
    "Deep",
    "Dropout",
    "Greedy",
    "Hyper",
    "Pairwise",
    "Pointwise",
    "Repulsive",
    "Schedule",
    "Snapshot",
    "Statistics",
    "TwoPasses",
    "as_coupling",
    "check_statistics",
    "check_together",
    "diversity_term",
    "draw_samples",
    "filled_buffer",
    "frozen_batchnorm",
    "rows_stay_rows",
    "split_batchnorm",
]
