"""The arguments of `ge.fit`, checked and in the form that training takes: method, data, held-out examples and p*.

Each message names the argument, what was given and what would do.
"""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from greedy_ensembles.checks import check_choice, check_count, check_factory, check_flag
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.forms import InputForm, are_alike, check_columns, columns_of, describe_inputs
from greedy_ensembles.generators import generator, own_generators
from greedy_ensembles.inputs import entries
from greedy_ensembles.labels import DISTANCES, TARGETS, label_loss
from greedy_ensembles.method import SCHEDULES, Coupling, Schedule, as_coupling, check_together
from greedy_ensembles.method.weighting import Gaussian, Mixture, Weighting, as_weighting, moments
from greedy_ensembles.training.examples import DatasetExamples, Examples, from_arrays
from greedy_ensembles.training.loaders import LoaderExamples, WorkedExamples
from greedy_ensembles.training.recipe import Recipe

#: A column's size, and how many times another's it is, from which on networks do not learn well from a table.
_LARGE, _SPREAD = 10.0, 100.0


@dataclass(frozen=True)
class Arguments:
    """Arguments of `ge.fit`, checked as far as that needs no data."""

    make_model: ModelFactory
    size: int
    coupling: Coupling
    weighting: Any
    distance: str
    targets: str
    recipe: Recipe
    seed: int
    earlier: Ensemble | None
    schedule: Schedule


def check_arguments(
    *,
    make_model: ModelFactory,
    size: int,
    method: str | Coupling,
    strength: float | None,
    weighting: Any,
    distance: str,
    targets: str,
    recipe: Recipe | None,
    seed: int,
    earlier: Ensemble | None,
    schedule: str,
    progress: bool,
    callbacks: Any,
) -> Arguments:
    """Return the arguments, the method's coupling among them, after all checks that need no data."""
    if not torch.is_grad_enabled():
        raise ValueError("training needs gradients, and torch.no_grad() or inference_mode() turned them off: leave it")
    check_factory("make_model", make_model)
    check_count("size", size, least=1)
    check_choice("schedule", schedule, SCHEDULES)
    check_choice("targets", targets, TARGETS)
    check_choice("distance", distance, DISTANCES[targets])
    check_count("seed", seed, least=0)
    if seed + size > 2**32:
        raise ValueError(f"seed must be at most 2**32 - size, got {seed}")
    check_flag("progress", progress)
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise TypeError("callbacks must be a list of callables, not one of them")
    if not all(callable(callback) for callback in callbacks):
        raise TypeError("callbacks must be callables of an Epoch")
    coupling = as_coupling(method, size, strength)
    if weighting is not None and as_coupling(method).sees == "none":
        raise ValueError(f"weighting is where members meet, and those of {coupling.label!r} do not; leave it out")
    recipe = recipe if recipe is not None else Recipe()
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a ge.Recipe, got {type(recipe).__name__}")
    if targets == "labels":
        if not coupling.labels:
            raise ValueError(f"targets must be 'classes' with {coupling.label}, which has no way to predict labels")
        recipe = replace(recipe, loss=recipe.loss or label_loss)
    when = SCHEDULES[schedule]
    coupling.check(recipe, when)
    if not when.together and (recipe.members_at_once or 1) > 1:
        warnings.warn(
            f"members_at_once={recipe.members_at_once} is for schedule='concurrent': members train one after another",
            stacklevel=3,
        )
    if earlier is not None:
        _check_earlier(earlier, size, coupling, recipe, targets)
    if coupling.sees == "all":
        check_together(coupling, when, size - len(earlier or ()), recipe.members_at_once)
    return Arguments(make_model, int(size), coupling, weighting, distance, targets, recipe, int(seed), earlier, when)


def _check_earlier(earlier: Ensemble, size: int, coupling: Coupling, recipe: Recipe, targets: str) -> None:
    if coupling.one_network:
        raise ValueError(f"earlier must be left out: {coupling.label} trains one network, which has all members")
    if not isinstance(earlier, Ensemble):
        raise TypeError(f"earlier must be a ge.Ensemble (see Ensemble.from_members), got {type(earlier).__name__}")
    if size <= len(earlier):
        raise ValueError(f"size counts the {len(earlier)} earlier members and must be larger, got {size}")
    if earlier.targets != targets:
        raise ValueError(f"earlier predicts {earlier.targets}, and targets is {targets!r}; they must be the same")
    if earlier.normalize != recipe.normalize:
        raise ValueError(
            f"earlier was made with normalize={earlier.normalize} and recipe has normalize={recipe.normalize}; "
            "one ensemble needs one of them"
        )


def as_examples(data: Any, name: str = "data", targets: str = "classes", recipe: Recipe | None = None) -> Examples:
    """Return labelled data behind its common face, or refuse it, naming what is wrong.

    Args:
        data: as `ge.fit` takes it.
        name: what messages call it; "data" is what is trained on.
        targets: what inputs have, "classes" or "labels".
        recipe: how loaders and Datasets are read in training; None: a DataLoader is read once, and held in memory.
    """
    workers = 0 if recipe is None else recipe.num_workers
    steps = None if recipe is None or name != "data" else recipe.steps_per_epoch
    if isinstance(data, IterableDataset) and recipe is not None:
        data, workers = DataLoader(data, batch_size=recipe.batch_size, num_workers=workers), 0
    if isinstance(data, DataLoader):
        if workers and name == "data":
            raise ValueError(f"num_workers is {workers}, and a DataLoader has its own; leave it out of the recipe")
        loaded = LoaderExamples(data, name, steps, targets)
        return loaded.whole() if recipe is None else loaded
    kind, columns = type(data).__name__, None
    if steps is not None:
        raise ValueError(f"steps_per_epoch is {steps}, and is for a DataLoader or a stream; got {kind}")
    read_by_item = isinstance(data, Dataset) and type(data) is not TensorDataset
    if workers and name == "data" and not read_by_item:
        raise ValueError(f"num_workers is {workers}, and is for a Dataset; got {kind}")
    if isinstance(data, LabelledSet):
        if data.labels is None:
            raise ValueError(f"{data.name} has no labels; training needs one for every input")
        columns, data = columns_of(data), (data.inputs, data.labels)
    if type(data) is TensorDataset and len(data.tensors) == 2:  # a subclass may transform its items
        data = data.tensors
    if isinstance(data, list | tuple) and len(data) in (2, 3):
        try:
            return from_arrays(*data, name=name, targets=targets, columns=columns)
        except ValueError as error:
            if name == "data" or name in str(error):
                raise
            raise ValueError(f"{name}: {error}") from None
    if isinstance(data, Dataset) and hasattr(data, "__len__"):
        if read_by_item and recipe is not None and (workers or own_generators(data)):
            return WorkedExamples(data, name, targets, workers)
        return DatasetExamples(data, name, targets)
    raise TypeError(
        f"{name} must be a pair (inputs, labels) or a triple (inputs, labels, weights) of tensors or arrays, an "
        f"ImageSet or a TableSet, a Dataset with a length, or a DataLoader; got {kind}"
    )


class SplitError(ValueError):
    """The examples are too few for a stratified validation split; they can be trained on without one."""


def split_off(examples: Examples, validation: Any, seed: int) -> tuple[Tensor, Examples, Tensor]:
    """Return the indices to train on, and what is held out: the examples it is part of, and their indices.

    `validation` is a share, or examples of its own.
    """
    if not isinstance(validation, Examples):
        if examples.indexed:
            train, held_out = split(examples.labels, validation, seed)
            return train, examples, held_out
        if validation == 0:
            return torch.arange(examples.count), examples, torch.arange(0)
        raise ValueError(
            f"validation={validation!r} is a share, and a DataLoader cannot be split; give validation data of its own, "
            "or 0 to keep each member's last epoch"
        )
    if validation.weights is not None:
        raise ValueError("validation has weights, and held-out examples count alike; leave the weights out")
    if not are_alike(validation.form, examples.form):
        raise ValueError(
            f"validation holds {describe_inputs(validation.form)}, and data {describe_inputs(examples.form)}: give "
            "both the same type and shape"
        )
    check_columns(validation.form, examples.form, "validation")
    for name, own in entries(examples.form):
        one = dict(entries(validation.form))[name]
        if one.range is not None and (remedy := own.other_scale(*one.range)):
            raise ValueError(
                f"{name} of validation is within {one.range}, and that of data within {own.range}: {remedy}"
            )
    if validation.labels.shape[1:] != examples.labels.shape[1:]:
        widths = validation.labels.shape[1], examples.labels.shape[1]
        raise ValueError(f"validation has {widths[0]} labels an example, and data {widths[1]}; give it the same ones")
    return torch.arange(examples.count), validation, torch.arange(validation.count)


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to train on and those held out, a share of every class, drawn from the seed alone.

    Of independent labels, (n, labels), it is a share of all examples.
    """
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
        raise ValueError(
            f"validation must be a share of the data, at least 0 and below 1, or data of its own; got {share!r}"
        )
    share, everything = float(share), np.arange(len(labels))
    if share == 0:
        return torch.from_numpy(everything), torch.empty(0, dtype=torch.long)
    strata = labels.numpy() if labels.ndim == 1 else np.zeros(len(labels), np.int64)
    kinds, counts = np.unique(strata, return_counts=True)
    remedy = "use validation=0 to train on everything and keep each member's last epoch"
    if counts.min() < 2:
        raise SplitError(
            f"class {kinds[counts.argmin()]} has one example, and a stratified validation split needs two of each; "
            f"add examples, or {remedy}"
        )
    held_out = math.ceil(share * len(labels))
    if min(held_out, len(labels) - held_out) < len(kinds):
        raise SplitError(
            f"validation={share} holds out {held_out} of {len(labels)} examples, and both parts need at least one of "
            f"each of {len(kinds)} classes; change validation, or {remedy}"
        )
    from sklearn.model_selection import train_test_split  # as slow to import as torch, and not always needed

    train, held = train_test_split(everything, test_size=share, stratify=strata, random_state=seed)
    return torch.from_numpy(train), torch.from_numpy(held)


def check_weighting(weighting: Any, examples: Examples) -> Weighting:
    """Return the user's p*, after a check of two samples."""
    weighting = as_weighting(weighting)
    for part in weighting.parts if isinstance(weighting, Mixture) else ():
        check_weighting(part, examples)  # whose samples a few of the mixture may not show
    samples = weighting.sample(2, generator(0))
    tensors, forms = dict(entries(samples)), dict(entries(examples.form))
    if tensors.keys() != forms.keys() or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise ValueError(
            f"samples of weighting should be {describe_inputs(examples.form)}, as the data; got {', '.join(tensors)}"
        )
    for name, sample in tensors.items():
        form, which = forms[name], "" if name == "x" else f" for {name}"
        if not form.fits(sample.shape[1:]) or len(sample) != 2:
            raise ValueError(
                f"two samples of weighting{which} should have shape {(2, *form.shape)} as the data, "
                f"got {tuple(sample.shape)}"
            )
        bytes_for_floats = sample.dtype == torch.uint8 and form.dtype != torch.uint8
        if bytes_for_floats or sample.is_floating_point() < form.dtype.is_floating_point:
            raise ValueError(
                f"samples of weighting are {sample.dtype} while {name} is {form.dtype}; use one space for both"
            )
        if sample.is_floating_point() and (remedy := form.other_scale(*map(float, sample.aminmax()))):
            low, high = form.range or (0, 255)
            raise ValueError(
                f"samples of weighting{which} are from {sample.min():g} to {sample.max():g}, and {name} holds {form}, "
                f"from {low:g} to {high:g}: {remedy}"
            )
    return weighting  # type: ignore[no-any-return]


def default_weighting(asked: Any, examples: Examples) -> Gaussian:
    """Return the p* that members meet on where none is asked for: a Gaussian, wrapped for images of any type.

    "paper": that of the paper, which wraps bytes alone.
    """
    if asked not in (None, "paper"):
        raise TypeError(
            f"weighting must have sample(n, generator), as ge.weighting.PhaseScrambled(images) has it, or be 'paper'; "
            f"got {asked!r}"
        )
    form = examples.form
    if not isinstance(form, InputForm):
        raise ValueError(
            "x is a dict or tuple, for which there is no default p*; pass weighting, such as ge.weighting.Shuffled(x)"
        )
    if form.dtype != torch.uint8 and not form.dtype.is_floating_point:
        raise ValueError(
            f"x holds {form.dtype}, for which there is no default p*; give floats if these are quantities, or pass "
            "weighting, see ge.weighting"
        )
    mean, std = moments(examples.chunks())  # type: ignore[arg-type]
    low, high = form.range or (0.0, 0.0)
    if form.dtype == torch.uint8:
        low, high = 0.0, 255.0
    elif asked or len(form.shape) != 3 or low == high:
        return Gaussian(mean, std)
    elif low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    return Gaussian(mean, std, overflow="wrap", low=low, high=high)


def advice_on_scale(examples: Examples, normalize: object) -> str:
    """Return what to do about a table whose columns are of very different size, or all very large; or nothing."""
    form = examples.form
    table = isinstance(form, InputForm) and len(form.shape) == 1 and form.dtype.is_floating_point
    if not table or normalize is not None:
        return ""
    mean, std = moments(examples.chunks())  # type: ignore[arg-type]
    sizes = torch.maximum(mean.abs(), std)
    sizes = sizes[sizes > 0]
    if not len(sizes) or sizes.max() < _LARGE or sizes.max() < _SPREAD * min(1.0, float(sizes.min())):
        return ""
    scale = "x.std(0)" if bool((std > 0).all()) else "x.std(0) + (x.std(0) == 0)"
    return (
        f"to standardise the columns of x, which are of the size of {sizes.min():.2g} to {sizes.max():.2g}: "
        f"Recipe(normalize=(x.mean(0), {scale})), or ge.GreedyEnsembleClassifier, which does it"
    )
