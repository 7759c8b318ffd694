"""A trial of the user's model before training: that it is new at every call, and can take what it will be given."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import UninitializedParameter

from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.inputs import as_stored, device_of, dtype_of, to_model
from greedy_ensembles.method import rows_stay_rows
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.recipe import Recipe, as_augmentation, make_optimizer
from greedy_ensembles.training.seeds import generator


def check_normalize(recipe: Recipe, examples: Examples) -> None:
    """Refuse a normalisation of other channels than the inputs have."""
    if recipe.normalize is not None and len(mean := recipe.normalize[0]) not in (1, examples.shape[0]):  # type: ignore[arg-type]
        raise ValueError(
            f"normalize has {len(mean)} channels, but inputs of shape {tuple(examples.shape)} have {examples.shape[0]}"  # type: ignore[arg-type]
        )


def checked_model(make_model: ModelFactory, recipe: Recipe, device: torch.device) -> nn.Module:
    """Return a model to examine, after making sure that the factory makes a new one at every call."""
    if isinstance(make_model, nn.Module) or not callable(make_model):
        raise TypeError("make_model must be a callable without arguments that builds a new nn.Module at every call")
    model, second = make_model(), make_model()
    if not isinstance(model, nn.Module):
        raise TypeError(f"make_model must return an nn.Module, got {type(model).__name__}")
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        raise ValueError("make_model returns a model with lazy layers; run an input through it before returning it")
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    if not learning:
        raise ValueError("make_model returns a model without a parameter to train (requires_grad is False for all)")
    if model is second or learning & {id(p) for p in second.parameters()}:
        raise ValueError("make_model must build a new model at every call; two calls returned the same parameters")
    if _batchnorm(model) & _batchnorm(second):
        raise ValueError(
            "two calls of make_model returned models that share BatchNorm layers, whose statistics every member would "
            "change; give each its own with copy.deepcopy"
        )
    odd = next((name for name, value in model.state_dict().items() if not isinstance(value, Tensor)), None)
    if odd is not None:
        raise TypeError(f"the model's state_dict must hold tensors alone; {odd!r} is none")
    make_optimizer(recipe, model)
    return model.to(device).eval()


def _batchnorm(model: nn.Module) -> set[int]:
    return {id(layer) for layer in model.modules() if isinstance(layer, _BatchNorm)}


def _run(model: nn.Module, batch: Tensor, what: str, recipe: Recipe, device: torch.device) -> Any:
    """Return what a model makes of a few inputs, or say that it cannot take them."""
    inputs = to_model(batch.to(device), recipe.normalize, dtype_of(model))  # type: ignore[arg-type]
    try:
        return model(inputs)
    except Exception as error:  # of any kind: the model may be anyone's
        said = f": {str(error).splitlines()[0]}" if str(error) else ""
        raise ValueError(
            f"the model cannot take {what}: {len(batch)} inputs of shape {tuple(batch.shape[1:])} "
            f"and type {batch.dtype} ended in {type(error).__name__}{said}"
        ) from error


def check_passes(
    model: nn.Module,
    earlier: Ensemble | None,
    weighting: Weighting | None,
    examples: Examples,
    recipe: Recipe,
    device: torch.device,
    classes: int,
) -> None:
    """Send a few examples and samples of p* through every model that will see them."""
    few = examples.inputs(torch.arange(min(2, len(examples)), device=examples.device))
    samples = None if weighting is None else as_stored(weighting.sample(2, generator(0)), examples.dtype)
    if samples is not None:
        _run(model, samples, "samples of weighting", recipe, device)
    if (augment := as_augmentation(recipe)) is not None:
        try:
            augment(to_model(few.to(device), recipe.normalize, dtype_of(model)))  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ValueError(f"augment cannot take inputs of shape {tuple(examples.shape)}: {error}") from error
    for number, member in enumerate(earlier or (), start=1):
        home = device_of(member)
        for batch, what in ((few, "x"), (samples, "samples of weighting")):
            if batch is None:
                continue
            outputs = _run(member, batch, f"{what} (earlier member {number})", recipe, home)
            if not isinstance(outputs, Tensor) or outputs.shape != (len(batch), classes):
                found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
                raise ValueError(f"earlier member {number} must return {(len(batch), classes)} logits, got {found}")


def check_single_rows(model: nn.Module, examples: Examples, count: int, recipe: Recipe, device: torch.device) -> None:
    """Refuse to train on batches of one example where the model needs more to normalise by; its statistics change."""
    if min(recipe.batch_size, count) != 1:  # one that is left over is left out
        return
    first = examples.inputs(torch.arange(1, device=examples.device)).to(device)
    one = to_model(first, recipe.normalize, dtype_of(model))  # type: ignore[arg-type]
    try:
        model.train()(one)
    except Exception as error:  # of any kind: the model may be anyone's
        said = f": {str(error).splitlines()[0]}" if str(error) else ""
        raise ValueError(
            f"the model cannot train on one example at a time, and ended in {type(error).__name__}{said}; use a larger "
            "batch_size"
        ) from error
    finally:
        model.eval()


def can_share_a_pass(
    model: nn.Module, weighting: Weighting, examples: Examples, recipe: Recipe, device: torch.device
) -> bool:
    """Return whether examples and samples of p* may go through the model in one batch, with BatchNorm split; refuse
    a recipe that needs it where they may not."""
    few = examples.inputs(torch.arange(min(3, len(examples)), device=examples.device))
    samples = as_stored(weighting.sample(2, generator(0)), examples.dtype)
    first, others = (to_model(part.to(device), recipe.normalize, dtype_of(model)) for part in (few, samples))  # type: ignore[arg-type]
    shared = rows_stay_rows(model, first, others)
    if recipe.weighting_statistics == "batch" and not shared:
        raise ValueError(
            "weighting_statistics='batch' needs samples of p* to share a pass with the examples, and in this model "
            "rows of a batch do not stay apart; use 'running'"
        )
    return shared


def check_outputs(model: nn.Module, examples: Examples, recipe: Recipe, device: torch.device) -> int:
    """Return the number of classes, after one pass of a few examples through model and loss."""
    few = torch.arange(min(2, len(examples)), device=examples.device)
    logits = _run(model, examples.inputs(few), "x", recipe, device)
    if not isinstance(logits, Tensor):
        raise TypeError(f"the model must return a tensor of logits (n, classes), got {type(logits).__name__}")
    if logits.ndim != 2 or len(logits) != len(few) or logits.shape[1] < 2:
        raise ValueError(
            f"the model must return logits of shape (n, classes) with at least two classes; "
            f"{len(few)} inputs of shape {tuple(examples.shape)} gave {tuple(logits.shape)}"
        )
    classes, largest = logits.shape[1], int(examples.labels.max())
    if largest >= classes:
        raise ValueError(f"labels go up to {largest}, but the model has {classes} outputs (labels 0 to {classes - 1})")
    loss = (recipe.loss or cross_entropy)(logits, examples.labels[few].to(device))
    if not isinstance(loss, Tensor) or loss.ndim != 0 or not loss.requires_grad:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(f"loss must return a scalar tensor that depends on the logits, got {found}")
    return classes
