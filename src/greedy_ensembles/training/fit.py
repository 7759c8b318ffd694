"""`ge.fit`: check what was asked, build what it needs, train, and collect the members."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from greedy_ensembles.checks import as_path, check_kind
from greedy_ensembles.engines.execution import (
    Execution,
    Generators,
    as_device,
    choose_threads,
    preserved_generators,
    seed_generators,
)
from greedy_ensembles.engines.member import Finished
from greedy_ensembles.engines.ranks import join
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.flags import fingerprint, read_calibration
from greedy_ensembles.forms import as_named, to_json
from greedy_ensembles.heads import Heads
from greedy_ensembles.labels import DISTANCES, label_loss
from greedy_ensembles.method import Coupling, Schedule, as_coupling
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.runs.configuration import (
    describe,
    describe_data,
    describe_method,
    describe_weighting,
    provenance,
)
from greedy_ensembles.runs.folder import RunFolder, open_run_folder
from greedy_ensembles.runs.notes import WeakMemberWarning, failed_members, training_notes, weak_members
from greedy_ensembles.training.algorithm import Algorithm, Method
from greedy_ensembles.training.events import Callback, Epoch, ProgressBars
from greedy_ensembles.training.examples import Examples, advice_on_scale, as_examples
from greedy_ensembles.training.frozen import check_heads, digest_of, on_features
from greedy_ensembles.training.loaders import LoaderExamples, WorkedExamples
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.shared import SharedAlgorithm, check_ranks
from greedy_ensembles.training.split import Data, split_off
from greedy_ensembles.training.validate import check_arguments, check_weighting, try_model


def fit(
    make_model: ModelFactory,
    data: Any,
    *,
    size: int,
    method: str | Coupling = "greedy",
    strength: float | None = 1.0,
    weighting: Weighting | str | None = None,
    distance: str = "probabilities",
    targets: str = "classes",
    recipe: Recipe | None = None,
    seed: int = 0,
    validation: Any = 0.1,
    run_dir: str | Path | None = None,
    earlier: Ensemble | None = None,
    schedule: str = "sequential",
    device: torch.device | str | None = None,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Ensemble:
    """Train an ensemble of classifiers.

    Args:
        make_model: builds a new ``nn.Module`` from inputs to logits (n, classes), or an object with ``.logits``, at
            every call. One logit z, (n, 1) or (n,), is that of class 1 of two: it trains and predicts as logits (0, z).
        data: a pair (inputs, labels), an image set of `ge.data`, a ``torch.utils.data.Dataset`` of such pairs, or a
            ``DataLoader``, of which an epoch is one iteration. Inputs are a tensor or array (n, ...), or a dict or
            tuple of them, for ``model(**x)`` or ``model(*x)``; labels are class indices. A triple (inputs, labels,
            weights) multiplies each example's loss by its weight. uint8 reaches the model as numbers in [0, 1].
        size: M, the number of members, those of `earlier` or of the run that is extended included.
        method: a name, "greedy" (the paper's), "deep" (Deep Ensembles) or one of docs/method.md, or a `ge.Coupling`.
        strength: lambda_M, how strongly members repel each other; methods without one do not look at it.
        weighting: p*, where members are asked to differ, see `ge.weighting`; by default a Gaussian about the data at
            five standard deviations, for images wrapped to 256 levels of their range. "paper": wrapped for uint8 alone.
        distance: whether members differ in their "probabilities" or in their "logits".
        targets: "classes", of which an input has one, or "labels", of which any may apply: labels are then 0 and 1,
            (n, labels), models have a logit a label, and predictions are (members, n, labels, 2).
        recipe: how a member is trained.
        seed: where all random numbers come from; repetitions need seeds at least `size` apart.
        validation: what each member's best epoch is selected on: the share of each class that is held out, or data of
            its own, given as `data` is, which a DataLoader needs; 0: keep the last epoch.
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
    check_kind("progress", progress, (bool, np.bool_), "True or False")
    place = None if run_dir is None else as_path("run_dir", run_dir)
    callbacks = list(callbacks) if isinstance(callbacks, Iterator) else callbacks
    coupling, recipe, when = check_arguments(
        make_model, size, method, strength, distance, targets, recipe, seed, earlier, schedule, callbacks
    )
    watchers: list[Callback] = list(callbacks)
    if weighting is not None and as_coupling(method).sees == "none":
        raise ValueError(f"weighting is where members meet, and those of {coupling.label!r} do not; leave it out")
    execution = Execution(as_device(device), recipe.precision, recipe.deterministic)
    ranks = join(execution.device)
    with ExitStack() as stack:
        stack.callback(Generators.current(execution.device).restore, execution.device)
        stack.callback(torch.set_grad_enabled, torch.is_grad_enabled())  # an interrupt may leave it off
        stack.enter_context(execution.settings())
        if ranks.rank > 0:  # the first process warns
            stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))
        algorithm = _build(
            make_model=make_model,
            data=data,
            size=int(size),
            coupling=coupling,
            weighting=weighting,
            distance=distance,
            targets=targets,
            recipe=recipe,
            execution=execution,
            schedule=when,
            seed=int(seed),
            validation=validation,
            earlier=earlier,
        )
        if isinstance(make_model, Heads):
            check_heads(make_model, coupling, earlier, ranks.world)
        if ranks.world > 1:
            check_ranks(ranks, algorithm, _configuration(algorithm, validation))
            algorithm = SharedAlgorithm(**vars(algorithm), ranks=ranks)
        folder = None
        if place is not None and ranks.rank == 0:
            folder = stack.enter_context(_folder(algorithm, place, data, validation))
        threads = algorithm.execution.threads if folder is None else folder.threads
        if ranks.world > 1:
            threads = ranks.share(threads)  # the first process has the folder
        if threads not in (None, torch.get_num_threads()):
            torch.set_num_threads(threads)  # which the block of settings puts back
        if ranks.rank > 0:
            watchers = []  # the first process tells of all members
        elif progress:
            watchers.append(stack.enter_context(ProgressBars()).show)
        trained = on_features(algorithm, make_model, folder) if isinstance(make_model, Heads) else algorithm
        done = _train(trained, folder, watchers, place is not None)
        algorithm.at_once = trained.at_once
        return _collect(algorithm, folder, done, data, validation)


def _build(
    *,
    make_model: ModelFactory,
    data: Any,
    size: int,
    coupling: Coupling,
    weighting: Weighting | str | None,
    distance: str,
    targets: str,
    recipe: Recipe,
    execution: Execution,
    schedule: Schedule,
    seed: int,
    validation: Any,
    earlier: Ensemble | None,
) -> Algorithm:
    """Put data, method and execution together, after the model was tried on a few of the examples."""
    device = execution.device
    seed_generators(seed)  # so that a Dataset with random transforms has the same hash at every start
    examples = _read(data, "data", seed, recipe, targets)
    if examples.weights is not None and recipe.loss not in (None, label_loss):
        raise ValueError("weights of examples are for the recipe's own loss; leave them out, or weigh in your loss")
    if isinstance(examples, LoaderExamples):
        recipe = replace(recipe, batch_size=examples.batch_size)
        if examples.loader.persistent_workers and schedule.together:
            raise ValueError("data has persistent_workers, which members that train together would share; let them end")
    if not isinstance(validation, Real | str | None.__class__):
        validation = _read(validation, "validation", seed, recipe, targets)
    train, held_out, validation = split_off(examples, validation, seed)
    p_star = None if coupling.sees == "none" else check_weighting(weighting, examples)
    changes = coupling.changes(recipe, 1, seed)
    first = replace(recipe, **changes) if changes else recipe
    trial = try_model(
        lambda: coupling.build(make_model(), 1, seed), examples, p_star, first, execution, earlier, len(train), held_out
    )
    if device.type == "cpu":
        rows = min(recipe.batch_size, len(train))
        rows += 0 if p_star is None else recipe.weighting_batch_size or recipe.batch_size
        execution = replace(execution, threads=choose_threads(trial.parameters, trial.shape, rows))
    alone = held_out is examples
    examples = examples.to(device)
    held_out = examples if alone else held_out.to(device)
    return Algorithm(
        make_model=make_model,
        size=size,
        data=Data(
            examples,
            train.to(examples.labels.device),
            held_out,
            validation.to(held_out.labels.device),
            recipe.normalize,  # type: ignore[arg-type]  # Recipe brings it into this form
            device,
            trial.classes,
            trial.dtype,
        ),
        method=Method(coupling, p_star, DISTANCES[targets][distance], distance, trial.one_pass),
        recipe=recipe,
        execution=execution,
        schedule=schedule,
        seed=seed,
        earlier=earlier,
        parameters=trial.parameters,
        parts=trial.parts,
        at_once=recipe.members_at_once,
    )


def _read(data: Any, name: str, seed: int, recipe: Recipe, targets: str) -> Examples:
    """Return labelled data behind its common face: in memory, or read while it is trained on."""
    workers, steps = recipe.num_workers, recipe.steps_per_epoch if name == "data" else None
    if isinstance(data, IterableDataset):
        data, workers = DataLoader(data, batch_size=recipe.batch_size, num_workers=workers), 0
    if isinstance(data, DataLoader):
        if workers and name == "data":
            raise ValueError(f"num_workers is {workers}, and a DataLoader has its own; leave it out of the recipe")
        return LoaderExamples(data, name, seed, steps, targets)
    if steps is not None:
        raise ValueError(f"steps_per_epoch is {steps}, and is for a DataLoader or a stream; got {type(data).__name__}")
    if workers and isinstance(data, Dataset) and type(data) is not TensorDataset:
        return WorkedExamples(data, seed, workers, name, targets)
    if workers and name == "data":
        raise ValueError(f"num_workers is {workers}, and is for a Dataset; got {type(data).__name__}")
    return as_examples(data, name, seed, targets)


def _folder(algorithm: Algorithm, path: Path, data: Any, validation: Any) -> AbstractContextManager[RunFolder]:
    """Open the run folder."""
    for name, one in (("data", algorithm.data.examples), ("validation", algorithm.data.held_out)):
        if isinstance(one, LoaderExamples) and (why := one.why_not_put_back()):
            raise ValueError(f"{name} cannot be trained on in a run_dir, where training may be resumed: {why}")
    form = as_named(algorithm.data.examples.form)
    information = {
        "inputs": None if form is None else to_json(form),
        "model": describe(algorithm.make_model),
        "data": describe_data(data),
        "validation_examples": len(algorithm.data.validation),
        "threads": algorithm.execution.threads,
        **provenance(algorithm.execution.device, algorithm.execution.threads),
    }
    asked = (_configuration(algorithm, validation), information, algorithm.size)
    return open_run_folder(path, *asked, algorithm.make_model, algorithm.execution.device, algorithm.earlier or ())


def _configuration(algorithm: Algorithm, validation: Any) -> dict[str, Any]:
    """Return all arguments that training depends on but the size, as JSON."""
    method, examples, earlier = algorithm.method, algorithm.data.examples, algorithm.earlier
    return {
        "method": describe_method(method.coupling),
        "weighting": describe_weighting(method.weighting),
        "distance": method.distance,
        **({"targets": "labels"} if algorithm.data.targets == "labels" else {}),  # runs of version 0.1 go on
        "recipe": describe(algorithm.recipe),
        "seed": algorithm.seed,
        "validation": float(validation) if isinstance(validation, Real) else algorithm.data.held_out.digest(),
        "earlier": None if earlier is None else describe(list(earlier)),
        "schedule": algorithm.schedule.name,
        "data": examples.digest(),
        "model": algorithm.parameters,
        **({"backbone": digest_of(made)} if isinstance(made := algorithm.make_model, Heads) else {}),
    }


def _train(algorithm: Algorithm, folder: RunFolder | None, watchers: list[Callback], saved: bool) -> list[Finished]:
    """Train, telling watchers of every epoch, and what to do about an interruption."""
    where = "before another epoch was finished"

    def notify(events: list[Epoch]) -> None:
        nonlocal where
        where = f"after member {events[-1].member}, epoch {events[-1].epoch}"
        if not watchers:
            return
        with preserved_generators(algorithm.execution.device):  # what watchers draw must not change what is trained
            for event in events:
                for watcher in watchers:
                    watcher(event)

    try:
        return algorithm.train(folder, notify)
    except KeyboardInterrupt as interruption:
        goes_on = "started again in the same way, it goes on after the last epoch that was saved."
        lost = "nothing was saved. With run_dir=..., the same call goes on where it stopped."
        interruption.add_note(f"Interrupted {where}; {goes_on if saved else lost}")
        raise


def _collect(
    algorithm: Algorithm, folder: RunFolder | None, done: list[Finished], data: Any, validation: Any
) -> Ensemble:
    """Return the members as an ensemble that knows how it was trained; warn of those that are clearly weak."""
    coupling, examples = algorithm.method.coupling, algorithm.data.examples
    facts = [member.facts for member in done] if folder is None else folder.facts()
    members = [member.model for member in done] if folder is None else folder.members()
    at_once = algorithm.at_once if folder is None else folder.members_at_once
    held_out, failed = len(algorithm.data.validation), ""
    if algorithm.recipe.loss is None and examples.weights is None:  # which that of labels is not
        counts = torch.bincount(examples.labels, minlength=algorithm.data.classes).tolist()
        steps = algorithm.recipe.epochs * math.ceil(len(algorithm.data.train) / algorithm.recipe.batch_size)
        failed = failed_members(facts, counts, held_out, steps)
    if told := "; ".join(filter(None, (failed, weak_members(facts, held_out)))):
        warnings.warn(f"{told}. {_remedy(algorithm)}", WeakMemberWarning, stacklevel=3)
    together = algorithm.schedule.together and coupling.sees != "none"
    share = float(validation) if isinstance(validation, Real) else None
    how = (coupling.title(), algorithm.schedule.name, algorithm.seed, share)
    notes = training_notes(*how, describe_data(data), facts, at_once if together else None)
    known = {"inputs": as_named(examples.form), "notes": notes, "targets": algorithm.data.targets}
    ensemble = Ensemble(members, algorithm.data.normalize, **known)  # type: ignore[arg-type]
    if folder is not None:
        weights = fingerprint([one["files"]["weights"] for one in facts])
        ensemble.calibration = read_calibration(folder.path, weights)
    return ensemble


def _remedy(algorithm: Algorithm) -> str:
    """Return what may help a weak member, or one that failed."""
    if scale := advice_on_scale(algorithm.data.examples, algorithm.recipe.normalize):
        return f"What helps: {scale}"
    coupled = algorithm.method.coupling.sees != "none"
    remedies = ["a smaller strength (lambda_M)"] if coupled else []
    remedies += ["a smaller lr", "warmup_epochs"]
    if coupled and algorithm.recipe.weighting_statistics == "running":
        remedies.append("weighting_statistics='batch'")
    return f"What may help: {', or '.join(remedies)}"
