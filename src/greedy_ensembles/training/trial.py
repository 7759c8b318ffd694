"""The user's model on a few inputs, before training: the ways that they will go, the loss and the optimizer.

Each message names what the model was given, and what came of it.
"""

import warnings
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.forms import InputForm, describe_inputs
from greedy_ensembles.generators import generator
from greedy_ensembles.inputs import (
    SOFTMAX,
    Inputs,
    are_probabilities,
    as_logits,
    as_stored,
    device_of,
    dtype_of,
    entries,
    length,
    logits_of,
    move,
    take,
    to_model,
)
from greedy_ensembles.method import rows_stay_rows
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.recipe import AUGMENTATIONS, Recipe, make_optimizer, takes_targets

_FEW = 3  # examples that a model is tried on


class Trial(NamedTuple):
    """What a few inputs showed of the user's model."""

    parameters: dict[str, list[int]]  #: names and shapes
    parts: "list[weakref.ref[object]]"  #: what no other model may have in common with it
    classes: int
    dtype: torch.dtype  #: of its parameters
    shape: tuple[int, ...]  #: of the first entry of an input
    one_pass: bool  #: whether examples and samples of p* can go through it together


def try_model(
    make_model: ModelFactory,
    examples: Examples,
    weighting: Weighting | None,
    recipe: Recipe,
    execution: Execution,
    earlier: Ensemble | None,
    count: int,
    held_out: Examples,
) -> Trial:
    """Send a few examples and samples of p* through every model that will see them, and through loss and optimizer.

    Args:
        make_model: the user's factory; it is called once.
        examples: all of them.
        weighting: p*, or None where none is drawn.
        recipe: how members will be trained.
        execution: where.
        earlier: members that are there already.
        count: how many examples there are to learn from.
        held_out: where the held-out ones are, if not among them.
    """
    form = examples.form
    channels = form.shape[:1] if isinstance(form, InputForm) else ()
    if recipe.normalize is not None and len(mean := recipe.normalize[0]) not in (1, *channels):  # type: ignore[arg-type]
        raise ValueError(f"normalize has {len(mean)} channels, but inputs of {describe_inputs(form)} have {channels}")  # type: ignore[arg-type]
    model = make_model()
    made = check_model(model, [])
    make_optimizer(recipe, model)
    frozen = {
        part
        for module in model.train().modules()
        if list(module.parameters()) and not any(p.requires_grad for p in module.parameters())
        for part in module.modules()
    }
    drifting = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.training and layer.track_running_stats and layer.momentum != 0
        if layer in frozen
    ]
    if drifting:
        warnings.warn(
            f"{len(drifting)} BatchNorm layers are frozen (the first is {drifting[0]!r}), and their running statistics "
            "are not: training moves them. To keep them, use ge.models.heads, override train(mode) of the model so "
            "that it leaves the frozen part in eval mode, or set momentum=0 in these layers",
            stacklevel=4,
        )
    counting = [layer for layer in model.modules() if isinstance(layer, _InstanceNorm) and layer.track_running_stats]
    if counting and weighting is not None:
        raise ValueError(
            "the model has InstanceNorm with track_running_stats=True, which would count samples of p*; leave that out"
        )
    model = model.to(execution.device).eval()
    x = take(next(examples.chunks(_FEW)), slice(_FEW))  # a DataLoader's are batches, of any size
    x, labels = move(x, execution.device), examples.labels[: length(x)].to(execution.device)
    said = _run(model, x, "x", recipe)
    classes = _check_outputs(said, x, labels, int(examples.labels.max()), recipe)
    single = said.shape[1:].numel() == 1 or labels.ndim == 2  # one logit, or one for each label
    if single and _within_0_and_1(said) and _is_bounded(model, x, recipe):
        raise ValueError("the model ends in a sigmoid where a logit is expected; leave it out")
    if held_out is not examples and (largest := int(held_out.labels.max())) >= classes:
        raise ValueError(f"labels of validation go up to {largest}, but the model has {classes} classes")
    samples = None
    if weighting is not None:
        samples = move(as_stored(weighting.sample(2, generator(0)), form), execution.device)
        _run(model, samples, "samples of weighting", recipe)
    if recipe.augment is not None:
        _check_augment(x, labels, model, recipe)
    for number, member in enumerate(earlier or (), start=1):
        for batch, what in ((x, "x"), (samples, "samples of weighting")):
            if batch is not None:
                given = move(batch, device_of(member))
                _check_earlier_outputs(number, _run(member, given, what, recipe, f"earlier member {number}"), classes)
    if min(recipe.batch_size, count) == 1:  # one that is left over is left out
        _run(model.train(), take(x, slice(1)), "batches of one example (use a larger batch_size)", recipe)
        model.eval()
    dtype = dtype_of(model)
    both = (to_model(part, recipe.normalize, dtype) for part in (x, samples))  # type: ignore[arg-type]
    one_pass = samples is not None and examples.one_shape and rows_stay_rows(model, *both)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    return Trial(shapes, made, classes, dtype, tuple(entries(x)[0][1].shape[1:]), one_pass)


def check_model(model: nn.Module, previous: "list[weakref.ref[object]]") -> "list[weakref.ref[object]]":
    """Refuse what cannot be trained, or is not new; return what a next model must not have in common with this one.

    That is kept by weak references: what nobody else keeps cannot be in a next model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_model must return an nn.Module, got {type(model).__name__}")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ValueError("make_model returns a model with lazy layers; run an input through it before returning it")
    learning = [p for p in model.parameters() if p.requires_grad]
    if not learning:
        raise ValueError("make_model returns a model without a parameter to train (requires_grad is False for all)")
    odd = next((name for name, value in model.state_dict().items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise TypeError(f"the model's state_dict must hold tensors alone; {odd!r} is none")
    alive = {id(part()) for part in previous}
    if any(id(p) in alive for p in learning):
        raise ValueError("make_model must build a new model at every call; two calls returned the same parameters")
    norms = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    if any(id(layer) in alive for layer in norms):
        raise ValueError(
            "two calls of make_model returned models that share BatchNorm layers, whose statistics every member would "
            "change; give each its own with copy.deepcopy"
        )
    return [weakref.ref(part) for part in (*learning, *norms)]


def _run(model: nn.Module, batch: Inputs, what: str, recipe: Recipe, who: str = "the model") -> Any:
    """Return what a model makes of a few inputs, or say that it cannot take them."""
    inputs = to_model(batch, recipe.normalize, dtype_of(model))  # type: ignore[arg-type]
    try:
        return logits_of(model, inputs)
    except Exception as error:  # of any kind: the model may be anyone's
        said = f": {str(error).splitlines()[0]}" if str(error) else ""
        raise ValueError(
            f"{who} cannot take {what}: {length(batch)} inputs, {describe_inputs(batch)}, "
            f"ended in {type(error).__name__}{said}"
        ) from error


def _check_outputs(logits: Any, x: Inputs, labels: Tensor, largest: int, recipe: Recipe) -> int:
    """Return the number of classes, after checking the model's outputs and the loss of them."""
    if not isinstance(logits, Tensor):
        raise TypeError(
            f"the model must return a tensor of logits (n, classes), or an object with them as .logits; "
            f"got {type(logits).__name__}"
        )
    if logits.ndim not in (1, 2) or len(logits) != length(x) or 0 in logits.shape:
        raise ValueError(
            f"the model must return logits of shape (n, classes), or one logit (n, 1) of two classes; "
            f"{length(x)} inputs, {describe_inputs(x)}, gave {tuple(logits.shape)}"
        )
    if labels.ndim == 2 and logits.shape[1:] != labels.shape[1:]:
        raise ValueError(f"labels have {labels.shape[1]} columns, and the model returns {tuple(logits.shape)} logits")
    logits = as_logits(logits)
    if bool(logits.min() >= 0) and are_probabilities(logits):
        raise ValueError(f"the model {SOFTMAX}")
    classes: int = logits.shape[1]
    if labels.ndim == 2:
        labels = labels.to(logits.dtype)
    elif largest >= classes:
        raise ValueError(f"labels go up to {largest}, but the model has {classes} classes (labels 0 to {classes - 1})")
    try:
        loss = (recipe.loss or cross_entropy)(logits, labels.to(logits.device))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = f"{tuple(logits.shape)} and labels {tuple(labels.shape)} of {labels.dtype}"
        raise ValueError(f"loss cannot take logits {shapes}: {error}") from error
    if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.requires_grad:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must return a scalar tensor that depends on the logits, got {found}")
    return classes


def _within_0_and_1(outputs: Tensor) -> bool:
    return bool(((outputs >= 0) & (outputs <= 1)).all())


def _is_bounded(model: nn.Module, x: Inputs, recipe: Recipe) -> bool:
    """Return whether a model's outputs stay within 0 and 1 whatever its weights are, as behind a sigmoid."""
    noise, inputs = generator(0), to_model(x, recipe.normalize, dtype_of(model))  # type: ignore[arg-type]
    with torch.no_grad():
        for _ in range(20):
            moved = {
                name: p + torch.randn(p.shape, generator=noise).to(p)
                for name, p in model.named_parameters()
                if p.requires_grad and p.is_floating_point()
            }
            said = logits_of(lambda *some, own=moved, **named: functional_call(model, own, some, named), inputs)
            if not _within_0_and_1(said):
                return False
    return True


def _check_earlier_outputs(number: int, logits: Any, classes: int) -> None:
    logits = as_logits(logits) if isinstance(logits, Tensor) and logits.ndim in (1, 2) else logits
    if not isinstance(logits, Tensor) or logits.ndim != 2 or logits.shape[1] != classes:
        found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"earlier member {number} must return (n, {classes}) logits, got {found}")
    if are_probabilities(logits):
        raise ValueError(f"earlier member {number} {SOFTMAX}")


def _check_augment(x: Inputs, labels: Tensor, model: nn.Module, recipe: Recipe) -> None:
    augment = AUGMENTATIONS[recipe.augment] if isinstance(recipe.augment, str) else recipe.augment
    assert augment is not None
    inputs = to_model(x, recipe.normalize, dtype_of(model))  # type: ignore[arg-type]
    try:
        if not takes_targets(augment):
            augment(inputs)
            return
        mixed, targets = augment(inputs, labels)
        (recipe.loss or cross_entropy)(as_logits(logits_of(model, mixed)), targets)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(f"augment cannot take {describe_inputs(x)}: {error}") from error
