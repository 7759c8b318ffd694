"""`ge.fit`: train an ensemble, in memory or in a run folder."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from greedy_ensembles.checks import check_choice
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.configuration import describe, describe_data, provenance
from greedy_ensembles.training.events import Callback, Epoch
from greedy_ensembles.training.memory import check_memory
from greedy_ensembles.training.notes import idle_members, training_notes
from greedy_ensembles.training.numerics import numerics
from greedy_ensembles.training.problem import Problem, pose
from greedy_ensembles.training.progress import ProgressBars
from greedy_ensembles.training.recipe import SCHEDULES, Recipe
from greedy_ensembles.training.run_folder import open_run_folder
from greedy_ensembles.training.schedule import train
from greedy_ensembles.training.seeds import preserved_generators
from greedy_ensembles.training.store import MemoryStore, Store


def fit(
    make_model: ModelFactory,
    data: Any,
    *,
    size: int,
    method: str = "greedy",
    strength: float | None = None,
    weighting: Weighting | None = None,
    distance: str = "probabilities",
    recipe: Recipe | None = None,
    seed: int = 0,
    validation: float = 0.1,
    run_dir: str | Path | None = None,
    earlier: Ensemble | None = None,
    schedule: str = "sequential",
    device: torch.device | str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Ensemble:
    """Train an ensemble of classifiers.

    Args:
        make_model: builds a new ``nn.Module`` from inputs (n, ...) to logits (n, classes) at every call.
        data: a pair (x, y) of tensors or arrays, an image set of `ge.data`, or a ``torch.utils.data.Dataset`` of
            such pairs; y are class indices. Inputs of type uint8 reach the model as numbers in [0, 1].
        size: M, the number of members, those of `earlier` or of the run that is extended included.
        method: "greedy" (the paper's) or "deep" (Deep Ensembles).
        strength: lambda_M, how strongly members repel each other; methods that have one require it.
        weighting: p*, where members are asked to differ, see `ge.weighting`; by default a Gaussian about the data at
            five standard deviations, wrapped to 8 bits where x is uint8.
        distance: whether members differ in their "probabilities" or in their "logits".
        recipe: how a member is trained.
        seed: where all random numbers come from; repetitions need seeds at least `size` apart.
        validation: the share of each class that is held out to select each member's best epoch; 0: keep the last one.
        run_dir: a folder for checkpoints and members. A run found there is resumed, or extended to a larger size.
        earlier: an ensemble whose members count as already there.
        schedule: "sequential", one member after another (the paper's), or "concurrent", all at once, each repelled
            from the current outputs of those before it; `recipe.members_at_once` bounds how many.
        device: where to train; by default CUDA where there is one.
        progress: whether to show a progress bar.
        callbacks: called with an `Epoch` after every epoch.

    Returns:
        The ensemble, in the order of training.

    Raises:
        ValueError, TypeError: an argument will not do; nothing was trained.
        FolderError: the run folder is damaged, in use, or of another configuration; nothing was changed.
        NonFiniteLossError: a loss became NaN or infinite; what was saved before is kept.
    """
    check_choice("schedule", schedule, SCHEDULES)
    if callable(callbacks):
        raise TypeError("callbacks must be a list of callables, not one of them")
    watchers: list[Callback] = list(callbacks)
    if not all(callable(watcher) for watcher in watchers):
        raise TypeError("callbacks must be callables of an Epoch")
    problem = pose(
        make_model,
        data,
        size=size,
        method=method,
        strength=strength,
        weighting=weighting,
        distance=distance,
        recipe=recipe,
        seed=seed,
        validation=validation,
        earlier=earlier,
        schedule=schedule,
        device=device,
    )
    check_memory(problem)
    with ExitStack() as stack:
        stack.enter_context(preserved_generators(problem.device))
        stack.enter_context(numerics(problem.recipe, problem.device))
        store = stack.enter_context(_store(problem, run_dir, data))
        if progress:
            watchers.append(stack.enter_context(ProgressBars()).show)
        last: list[int] = []

        def notify(events: list[Epoch]) -> None:
            last[:] = [events[-1].member, events[-1].epoch]  # not the event, whose model would be kept alive
            if not watchers:
                return
            with preserved_generators(problem.device):  # what watchers draw must not change what is trained
                for event in events:
                    for watcher in watchers:
                        watcher(event)

        try:
            train(problem, store, notify)
        except KeyboardInterrupt as interruption:
            interruption.add_note(_how_to_go_on(last, run_dir))
            raise
        if idle := idle_members(store.facts(), problem.classes, len(problem.validation)):
            warnings.warn(f"{idle}. {_what_may_help(problem)}", stacklevel=2)
        ensemble = store.ensemble(problem.normalize)
        ensemble.inputs = problem.input_form
        told = training_notes(problem.configuration, describe_data(data), store.facts(), store.members_at_once)
        ensemble.notes.update(told)
        return ensemble


@contextmanager
def _store(problem: Problem, run_dir: str | Path | None, data: Any) -> Iterator[Store]:
    if run_dir is None:
        yield MemoryStore()
        return
    information = {
        "inputs": None if problem.input_form is None else problem.input_form.to_json(),
        "model": describe(problem.make_model),
        "data": describe_data(data),
        **provenance(problem.device),
    }
    arguments = (problem.configuration, information, problem.size, problem.make_model, problem.device)
    with open_run_folder(Path(run_dir).expanduser(), *arguments, problem.earlier or ()) as folder:
        yield folder


def _what_may_help(problem: Problem) -> str:
    less = "strength (lambda_M) or lr" if problem.configuration["strength"] else "lr"
    return f"A smaller {less}, or warmup_epochs, may help"


def _how_to_go_on(last: list[int], run_dir: str | Path | None) -> str:
    where = f"after member {last[0]}, epoch {last[1]}" if last else "before another epoch was finished"
    if run_dir is None:
        return f"Interrupted {where}; nothing was saved. With run_dir=..., the same call goes on where it stopped."
    return f"Interrupted {where}; started again in the same way, it goes on after the last epoch that was saved."
