"""`ge.select`: which lambda_M to take for any data, from training to the choice."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from greedy_ensembles.benchmark.evaluation import InDomain, judge
from greedy_ensembles.benchmark.predictions import Predictions
from greedy_ensembles.benchmark.runs import BASELINE
from greedy_ensembles.benchmark.selection import CRITERIA, Selection, Trial, choose
from greedy_ensembles.checks import as_path, check_choice, check_count, check_kind, check_number
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.method import Coupling, as_coupling
from greedy_ensembles.runs.notes import WeakMemberWarning
from greedy_ensembles.sweeps.executor import open_executor
from greedy_ensembles.sweeps.sweep import train_all
from greedy_ensembles.training.algorithm import NonFiniteLossError
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.validate import as_examples, split_off

_DEEP = "deep"


def select(
    make_model: ModelFactory,
    data: Any,
    *,
    size: int,
    strengths: Sequence[float] = (0.3, 1.0, 3.0, 10.0),
    seeds: int | Sequence[int] = 3,
    by: str = "accuracy",
    validation: Any = 0.1,
    run_dir: str | Path | None = None,
    on: str | None = None,
    cpus: int = 1,
    gpus: float | None = None,
    progress: bool = True,
    **options: Any,
) -> Selection:
    """Train Deep Ensembles and ensembles of several strengths, and choose the largest strength that does no harm.

    A strength does harm where its mean over the seeds, on the held-out examples, does not reach that of Deep
    Ensembles, each given one standard error, or where a member is clearly below those of Deep Ensembles. OOD data
    have no say. It takes ``(len(strengths) + 1) * seeds`` trainings.

    Args:
        make_model: builds a new ``nn.Module`` at every call, as in `ge.fit`.
        data: as in `ge.fit`.
        size: M, the number of members, two at least.
        strengths: the values of lambda_M to try.
        seeds: how many repetitions, or their seeds, which must be at least `size` apart.
        by: what must not be harmed: "accuracy", "nll" or "ace".
        validation: the share of the examples that is held out, another one for each seed, or data of its own.
        run_dir: a folder in which each training has its own; what is found there is resumed.
        on: None: here, one training after another; or "processes", "ray" or an address, as in `ge.sweep`.
        cpus: how many cores a training needs, as in `ge.sweep`.
        gpus: how many GPUs, or what share of one, as in `ge.sweep`.
        progress: whether to show a progress bar for each training.
        options: other arguments of `ge.fit`, such as `recipe`, `weighting` or `schedule`, the same for all.

    Returns:
        What was chosen: ``.strength`` (None where all do harm), ``.trials`` with the figures of each strength,
        ``.verdict``, and ``.ensembles``, a list over seeds for each strength and, under None, for Deep Ensembles.
        Printed, it is a table.

    Raises:
        ValueError, TypeError: an argument will not do; nothing was trained.

    >>> import greedy_ensembles as ge, torch
    >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    >>> recipe = ge.Recipe(epochs=5, batch_size=32)
    >>> found = ge.select(lambda: ge.models.MLP(2, (16,)), (x, (x[:, 0] > 0).long()), size=2, strengths=[1.0],
    ...                   seeds=2, recipe=recipe, progress=False, device="cpu")
    >>> found.strength, len(found.ensembles[1.0])
    (1.0, 2)
    """
    check_choice("by", by, CRITERIA)
    method = _checked_method(options.pop("method", "greedy"), size)
    tried, repeated = _checked_strengths(strengths), _checked_seeds(seeds, size)
    for name in ("seed", "strength", "earlier"):
        if name in options:
            raise TypeError(f"select has no argument {name}; it gives ge.fit its own, or none")
    check_choice("targets", options.get("targets", "classes"), ["classes"])  # what members are judged by is for these
    recipe = options.get("recipe") or Recipe()
    check_kind("recipe", recipe, Recipe, "a ge.Recipe")
    examples = as_examples(data, recipe=recipe)
    share = isinstance(validation, Real | str | None.__class__)
    apart = validation if share else as_examples(validation, "validation")
    held_out = {seed: split_off(examples, apart, seed)[1:] for seed in repeated}
    if not all(len(indices) for _, indices in held_out.values()):
        raise ValueError(f"validation={validation!r} holds out nothing, and lambda_M is chosen on held-out examples")
    labels = [among.labels[indices].numpy() for among, indices in held_out.values()]
    methods = {None: _DEEP} | dict.fromkeys(tried, method)
    shared = {**options, "size": size, "validation": validation}
    runs = {
        _name(strength, seed): {**shared, "method": method, "strength": strength, "seed": seed}
        for strength, method in methods.items()
        for seed in repeated
    }
    for seed in repeated:  # whose members meet nowhere
        runs[_name(None, seed)].pop("weighting", None)
    where = {"on": on, "cpus": cpus, "gpus": gpus, "device": options.get("device")}
    trained, diverged = _train(make_model, data, runs, run_dir, where, progress)
    ensembles: dict[float | None, list[Ensemble]] = {}
    trials, harms = [], {}
    for strength in methods:
        names = [_name(strength, seed) for seed in repeated]
        if strength is not None and diverged & set(names):
            harms[strength] = "its training left the range of numbers"
            continue
        ensembles[strength] = [trained[name] for name in names]
        judged = zip(ensembles[strength], held_out.values(), strict=True)
        trials.append(Trial.of(strength, [_judge(own, *where) for own, where in judged], labels))
    found = choose(trials, by) if len(trials) > 1 else Selection(by, trials[0], (), {})
    return replace(found, harms={**found.harms, **harms}, ensembles=ensembles)


def _checked_method(method: str | Coupling, size: int) -> str | Coupling:
    """Return the method, or refuse one whose members meet no other: whatever lambda_M is, they are the same."""
    if as_coupling(method).sees == "none":
        raise ValueError(f"method={method!r} has no lambda_M to choose, since members do not meet; ge.fit trains it")
    check_count("size", size, least=1)
    if size == 1:
        raise ValueError("size must be at least 2, got 1: one member meets no other, so there is no lambda_M to choose")
    return method


def _checked_strengths(strengths: Sequence[float]) -> list[float]:
    if isinstance(strengths, str) or not isinstance(strengths, Sequence | np.ndarray):
        raise TypeError(f"strengths must be a list of values of lambda_M, such as [1, 3, 10]; got {strengths!r}")
    for strength in strengths:
        check_number("strengths", strength, above=0)
    tried = sorted({float(strength) for strength in strengths})
    if not tried:
        raise ValueError(f"strengths must hold a value of lambda_M at least; {BASELINE} are trained in any case")
    if len(tried) < len(strengths):
        raise ValueError(f"strengths must differ, each is tried with every seed; got {list(strengths)}")
    return tried


def _checked_seeds(seeds: int | Sequence[int], size: int) -> list[int]:
    if isinstance(seeds, Sequence | np.ndarray):
        for seed in seeds:
            check_count("seeds", seed, least=0)
        repeated = sorted(map(int, seeds))
    else:
        check_count("seeds", seeds, least=1)
        repeated = [size * number for number in range(seeds)]
    if len(repeated) < 2:
        raise ValueError(f"seeds must be two or more, since a standard error needs them; got {seeds!r}")
    for one, other in pairwise(repeated):
        if other - one < size:
            raise ValueError(f"seeds must be at least {size} apart, or runs share members; got {one} and {other}")
    return repeated


def _name(strength: float | None, seed: int) -> str:
    return f"{_DEEP if strength is None else f'lambda-{strength}'}-seed-{seed}"


def _train(
    make_model: ModelFactory,
    data: Any,
    runs: dict[str, dict[str, Any]],
    run_dir: str | Path | None,
    where: dict[str, Any],
    progress: bool,
) -> tuple[dict[str, Ensemble], set[str]]:
    """Train all ensembles; return those of a lambda_M that diverged by name alone, and raise any other error."""
    if where["on"] is not None and run_dir is None:
        raise ValueError(f"on={where['on']!r} needs run_dir, a folder for runs that all machines see")
    storage = None if run_dir is None else as_path("run_dir", run_dir).absolute()
    diverged: set[str] = set()

    def fail(name: str, error: Exception) -> None:
        if not isinstance(error, NonFiniteLossError) or runs[name]["strength"] is None:
            raise error
        diverged.add(name)

    with open_executor(**where, storage=storage) as executor, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "lambda-", WeakMemberWarning)  # what is chosen will have no weak member
        return train_all(make_model, data, runs, storage, executor, fail, progress), diverged


def _judge(ensemble: Ensemble, among: Examples, indices: Any) -> InDomain:
    log_probs = ensemble.predict_log_proba(among.inputs(indices)).cpu().numpy()
    return judge(Predictions("held-out examples", log_probs, among.labels[indices].numpy()), []).in_domain
