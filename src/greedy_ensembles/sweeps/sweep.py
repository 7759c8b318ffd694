"""`ge.sweep`: many trainings that differ in some arguments of `ge.fit`, in processes or on a cluster."""

import hashlib
import inspect
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles.checks import as_path, check_flag, reason
from greedy_ensembles.engines.execution import as_device
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.method import Coupling
from greedy_ensembles.runs import load_run
from greedy_ensembles.runs.configuration import describe
from greedy_ensembles.runs.folder import FolderInUseError
from greedy_ensembles.sweeps.executor import Executor, Fail, Here, Job, open_executor
from greedy_ensembles.training.events import Epoch, ProgressBars
from greedy_ensembles.training.fit import fit
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.validate import check_arguments

_SECONDS_BETWEEN_LOOKS = 0.2  # at a folder in other hands
_OURS = ("make_model", "data", "run_dir", "progress")  # what a sweep gives `ge.fit` itself
_NAMELESS = ("callbacks", "device")  # what makes no other run


@dataclass(frozen=True)
class Sweep:
    """What came of a sweep, by the names of its runs, which are those of their folders."""

    arguments: dict[str, dict[str, Any]]  #: what was asked of each run, beside what was asked of all
    ensembles: dict[str, Ensemble] = field(repr=False)  #: of the runs that are finished
    failures: dict[str, Exception]  #: of those that are not, why; the same call tries them again
    storage: Path | None  #: where the folders are; ``ge.load_run(storage / name)`` has a run's history

    def __str__(self) -> str:
        """Say how many runs are finished, and why the others are not."""
        lines = [f"{len(self.ensembles)} of {len(self.arguments)} runs are finished"]
        return "\n".join(lines + [f"{name} failed: {reason(error)}" for name, error in self.failures.items()])


def sweep(
    make_model: ModelFactory,
    data: Any,
    runs: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    storage: str | Path,
    on: str | None = "processes",
    cpus: int = 1,
    gpus: float | None = None,
    progress: bool = True,
    **options: Any,
) -> Sweep:
    """Train many ensembles side by side, in processes or on a Ray cluster; the same call goes on where it stopped.

    A run that fails does not end the others. One that is killed with its worker or its machine is started again on
    another, and goes on after its last saved epoch. In a script, call it under ``if __name__ == "__main__":``.

    Args:
        make_model: builds a new ``nn.Module`` at every call, as in `ge.fit`.
        data: as in `ge.fit`; every run gets a copy.
        runs: a grid, which maps arguments of `ge.fit` to the values that each takes, or a list of runs, each of which
            maps arguments to their values: ``{"seed": [0, 5, 10], "strength": [1.0, 3.0]}`` is six runs.
        storage: a folder in which each run has its own. All machines must see it, under this path.
        on: "processes" (of this machine), "ray" (the cluster that Ray finds, or else one of its own on this machine),
            the address of a cluster, "ray://HOST:PORT" or "HOST:PORT", or None: here, one after another.
        cpus: how many cores a run needs, and threads it has.
        gpus: how many GPUs a run needs, or what share of one: 0.25 puts four on each. None: one where there are any.
        progress: whether to show progress bars.
        options: other arguments of `ge.fit`, the same for all runs. Callbacks are called where a run is trained.

    Returns:
        ``.ensembles``, ``.failures`` and ``.arguments``, by the names of the runs, such as "seed-0-strength-1.0".

    Raises:
        ValueError, TypeError: an argument will not do, there is no ray, the address does not answer, or a node does not
            see the storage; nothing was trained.

    >>> import greedy_ensembles as ge, tempfile, torch
    >>> x, y = torch.randn(200, 2), torch.arange(200) % 2
    >>> done = ge.sweep(lambda: ge.models.MLP(2, (8,)), (x, y), {"seed": [0, 2], "method": ["deep", "greedy"]}, size=2,
    ...     recipe=ge.Recipe(epochs=1), storage=tempfile.mkdtemp(), on=None, progress=False, device="cpu")
    >>> list(done.ensembles)
    ['seed-0-method-deep', 'seed-0-method-greedy', 'seed-2-method-deep', 'seed-2-method-greedy']
    """
    check_flag("progress", progress)
    asked = _named(_listed(runs))
    every = {name: {**options, **own} for name, own in asked.items()}
    for own in every.values():
        _check(make_model, data, own)
    _check_seeds(every, asked)
    folder = as_path("storage", storage).absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"storage must be a folder, but {folder} is a file")
    failures: dict[str, Exception] = {}
    with open_executor(on, storage=folder, cpus=cpus, gpus=gpus, device=options.get("device")) as executor:
        ensembles = train_all(make_model, data, every, folder, executor, failures.__setitem__, progress)
    ordered = {name: ensembles[name] for name in asked if name in ensembles}
    return Sweep(asked, ordered, {name: failures[name] for name in asked if name in failures}, folder)


def train_all(
    make_model: ModelFactory,
    data: Any,
    runs: Mapping[str, Mapping[str, Any]],
    storage: Path | None,
    executor: Executor,
    fail: Fail,
    progress: bool = True,
) -> dict[str, Ensemble]:
    """Train an ensemble for each set of arguments of `ge.fit`, in a folder of its own; return those that did not fail.

    Without `storage`, which only an executor in this process can do, there are no folders.
    """
    here = isinstance(executor, Here)
    folders = {name: None if storage is None else storage / name for name in runs}
    jobs: dict[str, Job] = {
        name: partial(_train, make_model, data, dict(asked), folders[name], here) for name, asked in runs.items()
    }
    with ProgressBars(runs=len(runs)) if progress else nullcontext() as bars:
        done = executor.run(jobs, (lambda *event: None) if bars is None else bars.hear, fail)
    if here:
        return done
    devices = {name: as_device(runs[name].get("device")) for name in done}
    return {name: load_run(folders[name] or "", make_model, devices[name]).ensemble for name in done}


def _train(
    make_model: ModelFactory,
    data: Any,
    asked: dict[str, Any],
    folder: Path | None,
    here: bool,
    tell: Callable[[Epoch | None], None],
) -> Ensemble | None:
    """Train one run, once nobody else does; elsewhere than here its folder is all that is left of it."""
    callbacks = [*asked.pop("callbacks", ()), lambda epoch: tell(replace(epoch, model=None))]
    while True:
        try:
            trained = fit(make_model, data, **asked, run_dir=folder, progress=False, callbacks=callbacks)
            break
        except FolderInUseError:  # by a worker that was given up and has not ended yet, or by another sweep
            if here:
                raise
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    tell(None)
    return trained if here else None


def _listed(runs: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(runs, Mapping):
        for name, values in runs.items():
            if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
                raise TypeError(f"runs must map {name} to a list of values, such as [{values!r}]; got {values!r}")
        listed = [dict(zip(runs, values, strict=True)) for values in itertools.product(*runs.values())]
    elif isinstance(runs, Sequence) and all(isinstance(own, Mapping) for own in runs):
        listed = [dict(own) for own in runs]
    else:
        raise TypeError(f"runs must be a grid (a dict of lists) or a list of dicts, got {runs!r}")
    if not listed or not runs:
        raise ValueError(f"runs must hold a run at least, got {runs!r}")
    return listed


def _named(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    named: dict[str, dict[str, Any]] = {}
    for own in runs:
        name = "-".join(f"{key}-{_label(value)}" for key, value in own.items() if key not in _NAMELESS) or "run"
        if name in named:
            raise ValueError(f"runs must differ, but {name} is there twice")
        named[name] = own
    return named


def _label(value: Any) -> str:
    """Return what a value is called in the name of a folder: itself, or where it is no number or word, its hash.

    A method is called by its label, with a hash where it has settings of its own.
    """
    if isinstance(value, np.generic):
        value = value.item()
    called = [value.label] if isinstance(value, Coupling) else []
    if value is None or isinstance(value, bool | int | float | str):
        called = [str(value)]
    elif not called or vars(value):
        called.append(hashlib.sha256(json.dumps(describe(value)).encode()).hexdigest()[:8])
    return re.sub(r"[^\w.+-]+", "_", "-".join(called))


def _check(make_model: ModelFactory, data: Any, asked: Mapping[str, Any]) -> None:
    """Raise what `ge.fit` would raise of these arguments before it looks at the data."""
    for name in _OURS:
        if name in asked:
            raise TypeError(f"runs have no argument {name}; sweep gives ge.fit its own")
    taken = inspect.signature(fit).parameters
    for name in asked:
        if name not in taken:
            of_recipe = name in inspect.signature(Recipe).parameters
            hint = f"give recipes: ge.Recipe({name}=...)" if of_recipe else f"it takes {', '.join(taken)}"
            raise TypeError(f"ge.fit has no argument {name}, which runs name; {hint}")
    bound = inspect.signature(fit).bind(make_model, data, **asked)
    bound.apply_defaults()
    names = inspect.signature(check_arguments).parameters
    check_arguments(**{name: bound.arguments[name] for name in names})


def _check_seeds(every: Mapping[str, Mapping[str, Any]], asked: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError where runs that differ in their seed alone would share members."""
    alike: dict[str, list[tuple[int, int]]] = {}
    for name, own in every.items():
        rest = {key: describe(value) for key, value in asked[name].items() if key not in ("seed", *_NAMELESS)}
        alike.setdefault(json.dumps(rest, sort_keys=True), []).append((int(own.get("seed", 0)), int(own["size"])))
    for seeds in alike.values():
        for (one, size), (other, _) in pairwise(sorted(seeds)):
            if other - one < size:
                raise ValueError(f"seeds must be at least {size} apart, or runs share members; got {one} and {other}")
