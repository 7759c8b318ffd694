"""The checks before training: every argument of `ge.fit`.

Each message names the argument, what was given and what would do.
"""

import warnings
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss

from greedy_ensembles.checks import check_choice, check_count, check_factory, check_flag
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.forms import InputForm, describe_inputs
from greedy_ensembles.generators import generator
from greedy_ensembles.inputs import entries
from greedy_ensembles.labels import DISTANCES, TARGETS, label_loss
from greedy_ensembles.method import SCHEDULES, Coupling, Schedule, as_coupling, check_together
from greedy_ensembles.method.weighting import Gaussian, Weighting, as_weighting, moments
from greedy_ensembles.metrics import (
    adaptive_calibration_error,
    brier_score,
    expected_calibration_error,
    negative_log_likelihood,
)
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.recipe import Recipe

#: Smaller where predictions are better.
_ERRORS: tuple[object, ...] = (
    *(adaptive_calibration_error, brier_score, expected_calibration_error, negative_log_likelihood),
    *(cross_entropy, nll_loss),
)


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
) -> tuple[Coupling, Recipe, Schedule]:
    """Return the coupling, the recipe and the schedule, after all checks that need no data."""
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
        if coupling.one_network:
            raise ValueError(f"earlier must be left out: {coupling.label} trains one network, which has all members")
        _check_earlier(earlier, size, recipe, targets)
    if coupling.sees == "all":
        check_together(coupling, when, size - len(earlier or ()), recipe.members_at_once)
    return coupling, recipe, when


def _check_earlier(earlier: Ensemble, size: int, recipe: Recipe, targets: str) -> None:
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


def check_weighting(weighting: Any, examples: Examples) -> Weighting:
    """Return a p* of one's own, after drawing two samples."""
    weighting = as_weighting(weighting)
    samples = weighting.sample(2, generator(0))
    tensors, forms = dict(entries(samples)), dict(entries(examples.form))
    if tensors.keys() != forms.keys() or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise ValueError(
            f"samples of weighting should be {describe_inputs(examples.form)}, as the data; got {', '.join(tensors)}"
        )
    for name, one in tensors.items():
        own, which = forms[name], "" if name == "x" else f" for {name}"
        if not own.fits(one.shape[1:]) or len(one) != 2:
            raise ValueError(
                f"two samples of weighting{which} should have shape {(2, *own.shape)} as the data, "
                f"got {tuple(one.shape)}"
            )
        bytes_for_floats = one.dtype == torch.uint8 and own.dtype != torch.uint8
        if bytes_for_floats or one.is_floating_point() < own.dtype.is_floating_point:
            raise ValueError(
                f"samples of weighting are {one.dtype} while {name} is {own.dtype}; use one space for both"
            )
        if one.is_floating_point() and (remedy := own.other_scale(*map(float, one.aminmax()))):
            low, high = own.range or (0, 255)
            raise ValueError(
                f"samples of weighting{which} are from {one.min():g} to {one.max():g}, and {name} holds {own}, from "
                f"{low:g} to {high:g}: {remedy}"
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


def check_selection(recipe: Recipe, labels: Tensor, held_out: int, classes: int) -> None:
    """Refuse what selects epochs where nothing is held out, and a `select_by` of one's own that gives no number.

    What only made-up probabilities lead it to raise is no reason.

    Args:
        recipe: how members will be trained.
        labels: of the held-out examples, or some of them.
        held_out: how many there are.
        classes: how many outputs the model has.
    """
    if held_out == 0 and (recipe.patience is not None or recipe.select_by != "accuracy"):
        what = "select_by" if recipe.patience is None else "patience"
        raise ValueError(f"{what} needs held-out examples, and there are none; give validation, such as 0.1")
    if held_out == 0 or not callable(recipe.select_by):
        return
    if recipe.select_by in _ERRORS:
        name = recipe.select_by.__name__
        raise ValueError(
            f"select_by must be larger where predictions are better, and {name} is smaller; give "
            f"lambda probs, labels: -{name}(probs, labels), or 'nll' for the negative log-likelihood"
        )
    shape = (len(labels), classes) if labels.ndim == 1 else (*labels.shape, 2)  # independent labels are 0 or 1
    probs = torch.rand(shape, generator=generator(0)).add_(0.1)
    found: Any = None
    try:
        found = recipe.select_by(probs / probs.sum(dim=-1, keepdim=True), labels.cpu())
        float(found)
    except Exception as error:  # of any kind: it may be anyone's
        if found is None and not isinstance(error, TypeError):
            return
        raise ValueError(
            f"select_by must return a number for probabilities {shape} and labels {tuple(labels.shape)}; it ended in "
            f"{type(error).__name__}: {error}"
        ) from error
