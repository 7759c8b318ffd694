"""`ge.fit`: check what was asked, build what it needs, train, and collect the members."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
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
from greedy_ensembles.inputs import move, take, to_model
from greedy_ensembles.labels import DISTANCES, label_loss
from greedy_ensembles.method import Coupling
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.runs.configuration import describe, describe_data, describe_method, describe_weighting, provenance
from greedy_ensembles.runs.folder import RunFolder, open_run_folder
from greedy_ensembles.runs.notes import WeakMemberWarning, exploded_members, idle_members, training_notes, weak_members
from greedy_ensembles.saving import check_rebuilt
from greedy_ensembles.training.algorithm import Algorithm, Method
from greedy_ensembles.training.events import Callback, Epoch, ProgressBars
from greedy_ensembles.training.examples import Data
from greedy_ensembles.training.frozen import HeadedAlgorithm, check_heads, digest_of
from greedy_ensembles.training.loaders import LoaderExamples
from greedy_ensembles.training.recipe import Recipe
from greedy_ensembles.training.shared import SharedAlgorithm, check_ranks
from greedy_ensembles.training.trial import check_recipe, try_model
from greedy_ensembles.training.validate import (
    Arguments,
    advice_on_scale,
    as_examples,
    check_arguments,
    check_weighting,
    default_weighting,
    split_off,
)


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
    path = None if run_dir is None else as_path("run_dir", run_dir)
    callbacks = list(callbacks) if isinstance(callbacks, Iterator) else callbacks
    arguments = check_arguments(
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
    execution = Execution(as_device(device), arguments.recipe.precision, arguments.recipe.deterministic)
    ranks = join(execution.device)
    first = ranks.rank == 0  # the process that warns, calls callbacks, and has the run folder
    warned = nullcontext() if first else warnings.catch_warnings(action="ignore", category=UserWarning)
    with preserved_generators(execution.device), execution.settings(), warned:
        algorithm = _build(arguments, data, validation, execution, ranks)
        opened = nullcontext() if path is None or not first else _open_folder(algorithm, path)
        with opened as folder, ProgressBars() if progress and first else nullcontext() as bars:
            threads = ranks.share(algorithm.execution.threads if folder is None else folder.threads)
            if threads not in (None, torch.get_num_threads()):
                torch.set_num_threads(threads)
            watchers = Watchers([*callbacks, *([bars.show] if bars else [])] if first else [], execution.device)
            try:
                finished = algorithm.train(folder, watchers)
            except KeyboardInterrupt as interruption:
                interruption.add_note(watchers.note_of_interruption(saved=path is not None))
                raise
            return _collect(algorithm, folder, finished)


def _build(arguments: Arguments, given: Any, validation: Any, execution: Execution, ranks: Ranks = ALONE) -> Algorithm:
    """Put data, method and execution together, after the model was tried on a few of the examples."""
    make_model, coupling, recipe, seed = arguments.make_model, arguments.coupling, arguments.recipe, arguments.seed
    targets, distance, earlier = arguments.targets, arguments.distance, arguments.earlier
    seed_generators(0)  # so that a Dataset with random transforms has the same hash at every start, whatever the seed
    examples = as_examples(given, "data", targets, recipe)
    if examples.weights is not None and recipe.loss not in (None, label_loss):
        raise ValueError("weights of examples are for the recipe's own loss; leave them out, or weigh in your loss")
    if isinstance(examples, LoaderExamples):
        recipe = replace(recipe, batch_size=examples.batch_size)
        if examples.loader.persistent_workers and arguments.schedule.together:
            raise ValueError("data has persistent_workers, which members that train together would share; let them end")
    share = float(validation) if isinstance(validation, Real) else None
    if not isinstance(validation, Real | str | None.__class__):
        validation = as_examples(validation, "validation", targets, recipe)
    data = Data(examples, *split_off(examples, validation, seed), share, given, recipe.normalize)  # type: ignore[arg-type]
    asked = arguments.weighting
    take = default_weighting if asked is None or isinstance(asked, str) else check_weighting
    weighting = None if coupling.sees == "none" else take(asked, examples)
    tried_by = coupling.recipe(recipe, 1, seed)
    trial = try_model(lambda: coupling.build(make_model(), 1, seed), data, weighting, tried_by, execution, earlier)
    check_recipe(recipe, data, trial.classes)
    if execution.device.type == "cpu":
        rows = min(recipe.batch_size, len(data.train))
        rows += 0 if weighting is None else recipe.weighting_batch_size or recipe.batch_size
        execution = replace(execution, threads=choose_threads(trial.parameters, trial.shape, rows))
    placed = examples.to(execution.device)
    held_out = placed if data.held_out is examples else data.held_out.to(execution.device)
    on_device: dict[str, Any] = {"examples": placed, "train": data.train.to(placed.labels.device)}
    on_device |= {"held_out": held_out, "validation": data.validation.to(held_out.labels.device)}
    data = replace(data, **on_device, device=execution.device, classes=trial.classes, dtype=trial.dtype)
    algorithm = Algorithm(
        make_model=make_model,
        size=arguments.size,
        data=data,
        method=Method(coupling, weighting, DISTANCES[targets][distance], distance, trial.one_pass),
        recipe=recipe,
        execution=execution,
        schedule=arguments.schedule,
        seed=seed,
        earlier=earlier,
        parameters=trial.parameters,
        parts=trial.parts,
        members_at_once=recipe.members_at_once,
    )
    if isinstance(make_model, Heads):
        check_heads(make_model, coupling, earlier, ranks.world)
        return HeadedAlgorithm(**vars(algorithm))
    if ranks.world > 1:
        check_ranks(ranks, algorithm, _configuration(algorithm))
        return SharedAlgorithm(**vars(algorithm), ranks=ranks)
    return algorithm


def _open_folder(algorithm: Algorithm, path: Path) -> AbstractContextManager[RunFolder]:
    data, device, threads = algorithm.data, algorithm.execution.device, algorithm.execution.threads
    for name, examples in (("data", data.examples), ("validation", data.held_out)):
        if isinstance(examples, LoaderExamples) and (why := examples.why_not_resumable()):
            raise ValueError(f"{name} cannot be trained on in a run_dir, where training may be resumed: {why}")
    if not (path / "run.json").exists():
        with preserved_generators(device):
            few = move(take(next(data.examples.chunks(2)), slice(2)), device)
            check_rebuilt(algorithm.make_model, to_model(few, data.normalize, data.dtype), device)
    form = as_named(data.examples.form)
    information = {
        "inputs": None if form is None else to_json(form),
        "model": describe(algorithm.make_model),
        "data": describe_data(data.given),
        "validation_examples": len(data.validation),
        "threads": threads,
        **provenance(device, threads),
    }
    return open_run_folder(
        path,
        _configuration(algorithm),
        information,
        algorithm.size,
        algorithm.make_model,
        device,
        algorithm.earlier or (),
        algorithm.method.coupling.one_network,
    )


def _configuration(algorithm: Algorithm) -> dict[str, Any]:
    """Return all arguments that training depends on but the size, as JSON: data before what is made of it."""
    method, data, earlier = algorithm.method, algorithm.data, algorithm.earlier
    return {
        "data": data.examples.digest(),
        "method": describe_method(method.coupling),
        "weighting": describe_weighting(method.weighting),
        "distance": method.distance,
        **({"targets": "labels"} if data.targets == "labels" else {}),  # runs of version 0.1 go on
        "recipe": describe(algorithm.recipe),
        "seed": algorithm.seed,
        "validation": data.held_out.digest() if data.share is None else data.share,
        "earlier": None if earlier is None else describe(list(earlier)),
        "schedule": algorithm.schedule.name,
        "model": algorithm.parameters,
        **({"backbone": digest_of(made)} if isinstance(made := algorithm.make_model, Heads) else {}),
    }


@dataclass
class Watchers:
    """The callbacks of a training, the progress bar's among them."""

    callbacks: Sequence[Callback]
    device: torch.device
    reached: str = "before another epoch was finished"  #: how far training came

    def __call__(self, events: list[Epoch]) -> None:
        """Call them with an epoch of all members that train together."""
        self.reached = f"after member {events[-1].member}, epoch {events[-1].epoch}"
        if self.callbacks:
            with preserved_generators(self.device):  # what callbacks draw must not change what is trained
                for event in events:
                    for callback in self.callbacks:
                        callback(event)

    def note_of_interruption(self, saved: bool) -> str:
        """Return how far training came, and how to go on."""
        goes_on = "started again in the same way, it goes on after the last epoch that was saved."
        lost = "nothing was saved. ge.fit(..., run_dir=...) would go on where it stopped."
        return f"Interrupted {self.reached}; {goes_on if saved else lost}"


def _collect(algorithm: Algorithm, folder: RunFolder | None, finished: list[Finished]) -> Ensemble:
    """Return the members as an ensemble that knows how it was trained; warn of those that are clearly weak."""
    coupling, data = algorithm.method.coupling, algorithm.data
    facts = [member.facts for member in finished] if folder is None else folder.facts()
    members = [member.model for member in finished] if folder is None else folder.members()
    if why := _weaknesses(algorithm, facts):
        warnings.warn(why, WeakMemberWarning, stacklevel=3)
    together = algorithm.schedule.together and coupling.sees != "none"
    at_once = algorithm.members_at_once if folder is None else folder.members_at_once
    how = (coupling.title(), algorithm.schedule.name, algorithm.seed, data.share)
    notes = training_notes(*how, describe_data(data.given), facts, at_once if together else None)
    known = {"inputs": as_named(data.examples.form), "notes": notes, "targets": data.targets}
    ensemble = Ensemble(members, data.normalize, **known)  # type: ignore[arg-type]
    if folder is not None:
        weights = fingerprint([one["files"]["weights"] for one in facts])
        ensemble.calibration = read_calibration(folder.path, weights)
    return ensemble


def _weaknesses(algorithm: Algorithm, facts: list[dict[str, Any]]) -> str:
    coupling, data, recipe = algorithm.method.coupling, algorithm.data, algorithm.recipe
    held_out, exploded, idle = len(data.validation), "", ""
    if recipe.loss is None:  # which that of labels is not
        labels, weights = data.examples.labels.cpu(), data.examples.weights
        counts = torch.bincount(labels, minlength=data.classes).tolist()
        # On the CPU: a GPU adds weights in no fixed order.
        sums = None if weights is None else torch.bincount(labels, weights.cpu(), minlength=data.classes).tolist()
        long = recipe.epochs * math.ceil(len(data.train) / recipe.batch_size) >= 100 or recipe.epochs >= 20
        exploded = exploded_members(facts, counts, held_out, long=long, weights=sums)
        idle = "" if exploded else idle_members(facts, counts, held_out, long=long, weights=sums)
    weak = "; ".join(filter(None, (exploded, idle, weak_members(facts, held_out))))
    if not weak:
        return ""
    if scale := advice_on_scale(data.examples, data.normalize):
        return f"{weak}. What helps: {scale}"
    remedies = ["a smaller strength (lambda_M)"] if coupling.sees != "none" else []
    if idle:
        remedies += ["another lr, larger or smaller", "more epochs"]
    else:
        remedies += ["a smaller lr", *(["more epochs"] if coupling.one_network else ["warmup_epochs"])]
    if coupling.sees != "none" and recipe.weighting_statistics == "running":
        remedies.append("weighting_statistics='batch'")
    return f"{weak}. What may help: {', or '.join(remedies)}"
