"""`ge.fit`: check what was asked, build what it needs, train, and collect the members."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from greedy_ensembles.checks import as_path
from greedy_ensembles.engines.execution import ALONE, Execution, Ranks, as_device, choose_threads, join
from greedy_ensembles.engines.member import Finished
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.flags import fingerprint, read_calibration
from greedy_ensembles.forms import as_named, to_json
from greedy_ensembles.generators import preserved_generators, seed_generators
from greedy_ensembles.heads import Heads
from greedy_ensembles.labels import DISTANCES, label_loss
from greedy_ensembles.method import Coupling, Schedule
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.runs.configuration import describe, describe_data, describe_method, describe_weighting, provenance
from greedy_ensembles.runs.folder import RunFolder, open_run_folder
from greedy_ensembles.runs.notes import WeakMemberWarning, exploded_members, idle_members, training_notes, weak_members
from greedy_ensembles.training.algorithm import Algorithm, Method
from greedy_ensembles.training.events import Callback, Epoch, ProgressBars
from greedy_ensembles.training.examples import advice_on_scale, as_examples
from greedy_ensembles.training.frozen import HeadedAlgorithm, check_heads, digest_of
from greedy_ensembles.training.loaders import LoaderExamples
from greedy_ensembles.training.recipe import Recipe, check_average
from greedy_ensembles.training.shared import SharedAlgorithm, check_ranks
from greedy_ensembles.training.split import Data, split_off
from greedy_ensembles.training.trial import try_model
from greedy_ensembles.training.validate import check_arguments, check_selection, check_weighting, default_weighting


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
    place = None if run_dir is None else as_path("run_dir", run_dir)
    callbacks = list(callbacks) if isinstance(callbacks, Iterator) else callbacks
    coupling, recipe, when = check_arguments(
        make_model=make_model,
        size=size,
        method=method,
        strength=strength,
        weighting=weighting,
        distance=distance,
        targets=targets,
        recipe=recipe,
        seed=seed,
        earlier=earlier,
        schedule=schedule,
        progress=progress,
        callbacks=callbacks,
    )
    execution = Execution(as_device(device), recipe.precision, recipe.deterministic)
    ranks = join(execution.device)
    first = ranks.rank == 0  # the process that warns, tells of epochs, and has the run folder
    heard = nullcontext() if first else warnings.catch_warnings(action="ignore", category=UserWarning)
    with preserved_generators(execution.device), execution.settings(), heard:
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
            ranks=ranks,
        )
        kept = _folder(algorithm, place, data, validation) if place is not None and first else nullcontext()
        bars = ProgressBars() if progress and first else nullcontext()
        with kept as folder, bars as shown:
            threads = algorithm.execution.threads if folder is None else folder.threads
            threads = threads if ranks.world == 1 else ranks.share(threads)
            if threads not in (None, torch.get_num_threads()):
                torch.set_num_threads(threads)
            watchers = [*callbacks, *([shown.show] if shown else [])] if first else []
            done = _train(algorithm, folder, watchers, place is not None)
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
    ranks: Ranks = ALONE,
) -> Algorithm:
    """Put data, method and execution together, after the model was tried on a few of the examples."""
    device = execution.device
    seed_generators(seed)  # so that a Dataset with random transforms has the same hash at every start
    examples = as_examples(data, "data", seed, targets, recipe)
    if examples.weights is not None and recipe.loss not in (None, label_loss):
        raise ValueError("weights of examples are for the recipe's own loss; leave them out, or weigh in your loss")
    if isinstance(examples, LoaderExamples):
        recipe = replace(recipe, batch_size=examples.batch_size)
        if examples.loader.persistent_workers and schedule.together:
            raise ValueError("data has persistent_workers, which members that train together would share; let them end")
    apart = validation
    if not isinstance(validation, Real | str | None.__class__):
        apart = as_examples(validation, "validation", seed, targets, recipe)
    train, held_out, chosen = split_off(examples, apart, seed)
    check_average(recipe, math.ceil(len(train) / recipe.batch_size))
    take = default_weighting if weighting is None or isinstance(weighting, str) else check_weighting
    p_star = None if coupling.sees == "none" else take(weighting, examples)
    first = coupling.recipe(recipe, 1, seed)
    trial = try_model(
        lambda: coupling.build(make_model(), 1, seed), examples, p_star, first, execution, earlier, len(train), held_out
    )
    labels = held_out.labels[chosen] if held_out.indexed else held_out.labels
    check_selection(recipe, labels, len(chosen), trial.classes)
    if device.type == "cpu":
        rows = min(recipe.batch_size, len(train))
        rows += 0 if p_star is None else recipe.weighting_batch_size or recipe.batch_size
        execution = replace(execution, threads=choose_threads(trial.parameters, trial.shape, rows))
    among = held_out is examples
    examples = examples.to(device)
    held_out = examples if among else held_out.to(device)
    algorithm = Algorithm(
        make_model=make_model,
        size=size,
        data=Data(
            examples,
            train.to(examples.labels.device),
            held_out,
            chosen.to(held_out.labels.device),
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
    if isinstance(make_model, Heads):
        check_heads(make_model, coupling, earlier, ranks.world)
        return HeadedAlgorithm(**vars(algorithm))
    if ranks.world > 1:
        check_ranks(ranks, algorithm, _configuration(algorithm, validation))
        return SharedAlgorithm(**vars(algorithm), ranks=ranks)
    return algorithm


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
    members = (algorithm.make_model, algorithm.execution.device, algorithm.earlier or ())
    return open_run_folder(path, *asked, *members, algorithm.method.coupling.one_network)


def _configuration(algorithm: Algorithm, validation: Any) -> dict[str, Any]:
    """Return all arguments that training depends on but the size, as JSON: data before what is made of it."""
    method, examples, earlier = algorithm.method, algorithm.data.examples, algorithm.earlier
    return {
        "data": examples.digest(),
        "method": describe_method(method.coupling),
        "weighting": describe_weighting(method.weighting),
        "distance": method.distance,
        **({"targets": "labels"} if algorithm.data.targets == "labels" else {}),  # runs of version 0.1 go on
        "recipe": describe(algorithm.recipe),
        "seed": algorithm.seed,
        "validation": float(validation) if isinstance(validation, Real) else algorithm.data.held_out.digest(),
        "earlier": None if earlier is None else describe(list(earlier)),
        "schedule": algorithm.schedule.name,
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
        lost = "nothing was saved. ge.fit(..., run_dir=...) would go on where it stopped."
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
    held_out, exploded, idle = len(algorithm.data.validation), "", ""
    if algorithm.recipe.loss is None:  # which that of labels is not
        labels, of_each, classes = examples.labels.cpu(), examples.weights, algorithm.data.classes
        counts = torch.bincount(labels, minlength=classes).tolist()  # on the CPU: a GPU adds weights in no fixed order
        sums = None if of_each is None else torch.bincount(labels, of_each.cpu(), minlength=classes).tolist()
        epochs = algorithm.recipe.epochs
        steps = epochs * math.ceil(len(algorithm.data.train) / algorithm.recipe.batch_size)
        asked: dict[str, Any] = {"long": steps >= 100 or epochs >= 20, "weights": sums}
        exploded = exploded_members(facts, counts, held_out, **asked)
        idle = "" if exploded else idle_members(facts, counts, held_out, **asked)
    if told := "; ".join(filter(None, (exploded, idle, weak_members(facts, held_out)))):
        warnings.warn(f"{told}. {_remedy(algorithm, bool(idle))}", WeakMemberWarning, stacklevel=3)
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


def _remedy(algorithm: Algorithm, idle: bool) -> str:
    """Return what may help weak members, and those that failed."""
    if scale := advice_on_scale(algorithm.data.examples, algorithm.recipe.normalize):
        return f"What helps: {scale}"
    coupling = algorithm.method.coupling
    remedies = ["a smaller strength (lambda_M)"] if coupling.sees != "none" else []
    if idle:
        remedies += ["another lr, larger or smaller", "more epochs"]
    else:
        remedies += ["a smaller lr", *(["more epochs"] if coupling.one_network else ["warmup_epochs"])]
    if coupling.sees != "none" and algorithm.recipe.weighting_statistics == "running":
        remedies.append("weighting_statistics='batch'")
    return f"What may help: {', or '.join(remedies)}"
