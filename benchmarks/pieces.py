"""The pieces that make training and predicting fast, and how to do without each: names replaced while a block runs.

Nothing in the package knows of this. `ablation.py` measures with it.
"""

import functools
import importlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from greedy_ensembles.training.group_step import GroupStep
from speed_page import MODELS
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from greedy_ensembles.engines import prediction
from greedy_ensembles.method import batchnorm
from greedy_ensembles.training import captured, working_copies

#: An object, the name of an attribute, and what stands there instead.
Change = tuple[Any, str, Any]


@contextmanager
def replaced(changes: Sequence[Change]) -> Iterator[None]:
    """Put other things in the place of names inside the block; afterwards the originals are back."""
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


def _never(*_: object) -> bool:
    return False


def _as_they_are(*_: object) -> AbstractContextManager[None]:
    return nullcontext()


def _without_copies(*arguments: Any) -> GroupStep:
    return GroupStep(*arguments[:-1])


class OneLane:
    """Stands in for `Lanes`: members one after the other on one stream."""

    def __init__(self, members: int, device: torch.device, coupled: bool) -> None:
        pass

    def run(self, step: GroupStep) -> None:
        """Take a step."""
        step.run()


def normalised_once(layer: _BatchNorm, x: Tensor) -> Tensor:
    """Do what BatchNorm does inside `split_batchnorm` with "batch", written for a compiler.

    The statistics of the first rows are computed once, and all rows are normalised by one expression.
    """
    count: int = layer.first_rows  # type: ignore[assignment]
    first = x.split([count, len(x) - count])[0]
    variance, mean = torch.var_mean(first.float(), (0, 2, 3), correction=0)
    number = first.numel() // first.shape[1]
    momentum = batchnorm._momentum(layer)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    with torch.no_grad():
        layer.running_mean.lerp_(mean.detach(), momentum)
        layer.running_var.lerp_(variance.detach() * (number / (number - 1)), momentum)
    scale = torch.rsqrt(variance + layer.eps) * layer.weight
    offset = layer.bias - mean * scale
    return (x * scale[:, None, None] + offset[:, None, None]).to(x.dtype)


@functools.cache
def _kind_normalised_once(kind: type[nn.Module]) -> type[nn.Module]:
    method = "normalise" if hasattr(kind, "normalise") else "forward"
    return type(f"Once{kind.__name__}", (kind,), {method: normalised_once})


NORMS: tuple[Change, ...] = tuple((module, "accelerate", _as_they_are) for module in (captured, prediction))
SGD: tuple[Change, ...] = ((working_copies, "can_update", _never),)
COPIES: tuple[Change, ...] = (
    (captured, "WorkingCopies", lambda *_: None),
    (captured, "GroupStep", _without_copies),
)
LANES: tuple[Change, ...] = ((captured, "Lanes", OneLane),)
ONCE: tuple[Change, ...] = ((batchnorm, "_split_kind", _kind_normalised_once),)
#: `greedy_ensembles.ensemble` by its name, since the package gives its own names out lazily.
CAPTURED_PREDICTION: tuple[Change, ...] = (
    (importlib.import_module("greedy_ensembles.ensemble"), "can_capture", _never),
)

#: Cells of a table: schedule, and samples of p* a step.
Cell = tuple[str, int]
CELLS: tuple[Cell, ...] = (("sequential", 128), ("concurrent", 128), ("sequential", 32), ("concurrent", 32))


@dataclass(frozen=True)
class Variant:
    """A way to train: everything, or all of it but some changes.

    Attributes:
        name: as tables have it.
        changes: what is replaced.
        compiled: whether networks are compiled; None: as a training of 100 epochs on CIFAR-10 decides.
        eager: whether steps are taken one operation after another.
        urgency: 1 is measured first. Of those of 2 and more, p* batches of 32 come last.
        models: the networks that it makes a difference to.
        cells: those to measure.
    """

    name: str
    changes: tuple[Change, ...] = ()
    compiled: bool | None = None
    eager: bool = False
    urgency: int = 2
    models: tuple[str, ...] = MODELS
    cells: tuple[Cell, ...] = CELLS

    def stage(self, cell: Cell) -> int:
        """Return when a cell has its turn: what decides most comes first."""
        late = cell[1] != 128 and (self.urgency > 1 or bool(self.compiled))
        return self.urgency + (2 if late else 0)


EVERYTHING = "everything"
PLAIN, COMPILED, ONCE_COMPILED = "plain", "plain, compiled", "plain, compiled, normalised once"
_AT_128 = CELLS[:2]
VARIANTS = (
    Variant(EVERYTHING, urgency=1),
    Variant(PLAIN, NORMS, compiled=False, urgency=1),
    Variant(COMPILED, NORMS, compiled=True, urgency=1),
    Variant("less norm kernels", NORMS, urgency=1),
    Variant(ONCE_COMPILED, (*NORMS, *ONCE), compiled=True, cells=_AT_128),
    Variant("less captured steps", eager=True, cells=CELLS[:3]),
    Variant("less working copies", COPIES),
    Variant("less SGD kernel", SGD),
    Variant("less lanes", LANES, cells=(CELLS[1], CELLS[3])),
    Variant(f"{EVERYTHING}, again", cells=_AT_128),
)


@dataclass(frozen=True)
class Prediction:
    """A way to predict, as `Variant` is one to train."""

    name: str
    changes: tuple[Change, ...] = ()
    models: tuple[str, ...] = ("PreResNet20", "VGG16BN")


PREDICTIONS = (
    Prediction(EVERYTHING),
    Prediction("less captured predictions", CAPTURED_PREDICTION),
    Prediction("less norm kernels", NORMS),
    Prediction(f"{EVERYTHING}, again"),
)
