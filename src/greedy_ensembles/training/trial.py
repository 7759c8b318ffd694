"""The user's model on a few inputs, before training: the ways that they will go, the loss and the optimizer.

Each message names what the model was given, and what came of it.
"""

import math
import warnings
import weakref
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, nll_loss
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import UninitializedParameter

from greedy_ensembles.checks import reason
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.forms import Form, InputForm, as_trained, describe_inputs
from greedy_ensembles.generators import generator
from greedy_ensembles.inputs import (
    SOFTMAX,
    Inputs,
    Normalize,
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
from greedy_ensembles.method import check_statistics, filled_buffer, rows_stay_rows
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.examples import Data
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
    data: Data,
    weighting: Weighting | None,
    recipe: Recipe,
    execution: Execution,
    earlier: Ensemble | None,
) -> Trial:
    """Send a few examples and samples of p* through every model that will see them, and through loss and optimizer.

    The user's factory is called once.
    """
    examples, held_out, normalize = data.examples, data.held_out, data.normalize
    form = examples.form
    channels = form.shape[:1] if isinstance(form, InputForm) else ()
    if normalize is not None and len(normalize[0]) not in (1, *channels):
        raise ValueError(
            f"normalize has {len(normalize[0])} channels, but inputs of {describe_inputs(form)} have {channels}"
        )
    model = make_model()
    parts = check_model(model, [])
    make_optimizer(recipe, model)
    check_statistics(model.train(), weighting is not None)
    model = model.to(execution.device).eval()
    x = take(next(examples.chunks(_FEW)), slice(_FEW))  # a DataLoader's are batches, of any size
    x, labels = move(x, execution.device), examples.labels[: length(x)].to(execution.device)
    outputs = _run(model, x, "x", normalize)
    classes = _check_outputs(outputs, x, labels, int(examples.labels.max()), recipe)
    if length(x) == _FEW and torch.equal(_run(model, x, "x", normalize), outputs):
        apart = (_run(model, take(x, slice(1, None)), "x", normalize) - outputs[1:]).abs().max()
        if apart > max(0.01, 10 * torch.finfo(outputs.dtype).eps ** 0.5) * outputs.abs().max():
            warnings.warn(
                "what the model says of an input depends on the others in its batch, in eval mode, too, so that "
                "predictions change with batch_size. Recurrent and attention layers need batch_first=True; BatchNorm "
                "needs track_running_stats=True",
                stacklevel=4,
            )
    one_a_label = outputs.shape[1:].numel() == 1 or labels.ndim == 2  # one logit, or one for each label
    if one_a_label and _ends_in_sigmoid(model, x, normalize, outputs):
        raise ValueError("the model ends in a sigmoid where a logit is expected; leave it out")
    if held_out is not examples and (largest := int(held_out.labels.max())) >= classes:
        raise ValueError(f"labels of validation go up to {largest}, but the model has {classes} classes")
    samples = None
    if weighting is not None:
        samples = move(as_stored(weighting.sample(2, generator(0)), form), execution.device)
        _run(model, samples, "samples of weighting", normalize)
    if recipe.augment is not None:
        targets = labels if labels.ndim == 1 else labels.to(outputs.dtype)
        if examples.weights is not None:
            rows = torch.arange(length(x))
            targets = replace(data, classes=classes, dtype=outputs.dtype).look_up(rows)[1].to(execution.device)
        _check_augment(x, targets, model, recipe, normalize)
    if weighting is not None and any(
        layer._buffers for layer in model.modules() if not isinstance(layer, _BatchNorm | _InstanceNorm)
    ):
        tried = (to_model(part, normalize, dtype_of(model)) for part in (x, samples))
        if name := filled_buffer(model, *tried):
            warnings.warn(
                f"training fills the model's buffer {name!r} from its inputs, and samples of p* are inputs as well. "
                "Where eval mode uses it, members will be wrong: take PyTorch's BatchNorm, which leaves samples out",
                stacklevel=4,
            )
    if earlier is not None:
        _check_scale(earlier, x, form)
        _check_earlier(earlier, {"x": x, "samples of weighting": samples}, normalize, classes)
    if min(recipe.batch_size, len(data.train)) == 1:  # one that is left over is left out
        _run(model.train(), take(x, slice(1)), "batches of one example (use a larger batch_size)", normalize)
        model.eval()
    dtype = dtype_of(model)
    both = (to_model(part, normalize, dtype) for part in (x, samples))
    one_pass = samples is not None and examples.one_shape and rows_stay_rows(model, *both)
    shapes = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    return Trial(shapes, parts, classes, dtype, tuple(entries(x)[0][1].shape[1:]), one_pass)


def check_model(model: nn.Module, previous: "list[weakref.ref[object]]") -> "list[weakref.ref[object]]":
    """Refuse a model that cannot be trained, or shares parts with `previous`; return the parts of this one.

    Those are weak references: what is deleted cannot be in the next model.
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


def _run(model: nn.Module, batch: Inputs, what: str, normalize: Normalize | None, who: str = "the model") -> Any:
    """Return what a model makes of a few inputs, or say that it cannot take them."""
    inputs = to_model(batch, normalize, dtype_of(model))
    try:
        return logits_of(model, inputs)
    except Exception as error:  # of any kind: the model may be anyone's
        raise ValueError(
            f"{who} cannot take {what}: {length(batch)} inputs, {describe_inputs(batch)}, ended in {reason(error)}"
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
    takes_logs = isinstance(recipe.loss, nn.NLLLoss) or recipe.loss is nll_loss
    if takes_logs and bool((logits.logsumexp(dim=1).abs() > 1e-3).any()):
        raise ValueError(
            "loss takes log-probabilities, and the model returns logits, of which it would have no lower bound; leave "
            "loss out, or use nn.CrossEntropyLoss"
        )
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


def _ends_in_sigmoid(model: nn.Module, x: Inputs, normalize: Normalize | None, outputs: Tensor) -> bool:
    """Return whether outputs are within 0 and 1, and stay there whatever the weights are."""
    noise, inputs = generator(0), to_model(x, normalize, dtype_of(model))
    with torch.no_grad():
        for _ in range(21):
            if not bool(((outputs >= 0) & (outputs <= 1)).all()):
                return False
            moved = {
                name: p + torch.randn(p.shape, generator=noise).to(p)
                for name, p in model.named_parameters()
                if p.requires_grad and p.is_floating_point()
            }
            outputs = logits_of(lambda *some, own=moved, **named: functional_call(model, own, some, named), inputs)
    return True


def _check_scale(earlier: Ensemble, x: Inputs, form: Form) -> None:
    """Refuse earlier members that were trained on inputs of another type, shape or scale than the examples."""
    if earlier.inputs is None:
        return
    try:
        as_trained(x, earlier.inputs)
        for name, known in entries(earlier.inputs):
            own = dict(entries(form))[name]
            if own.range is None or (known.dtype == torch.uint8 and own.range[1] <= 1):  # models see bytes in [0, 1]
                continue
            if remedy := known.other_scale(*own.range):
                raise ValueError(f"{name} is within {own.range}, and {known} was trained on: {remedy}")
    except ValueError as error:
        raise ValueError(f"earlier was trained on other inputs than data holds: {error}") from None


def _check_earlier(
    earlier: Iterable[nn.Module], batches: dict[str, Inputs | None], normalize: Normalize | None, classes: int
) -> None:
    """Refuse earlier members that do not take the examples or samples of p*, or return no logits of these classes."""
    for number, member in enumerate(earlier, start=1):
        for what, batch in batches.items():
            if batch is None:
                continue
            found = _run(member, move(batch, device_of(member)), what, normalize, f"earlier member {number}")
            is_tensor = isinstance(found, Tensor)
            logits = as_logits(found) if is_tensor and found.ndim in (1, 2) else None
            if logits is None or logits.shape[1:] != (classes,):
                shape = tuple(found.shape) if is_tensor else type(found).__name__
                raise ValueError(f"earlier member {number} must return (n, {classes}) logits, got {shape}")
            if are_probabilities(logits):
                raise ValueError(f"earlier member {number} {SOFTMAX}")


def _check_augment(x: Inputs, targets: Tensor, model: nn.Module, recipe: Recipe, normalize: Normalize | None) -> None:
    augment = AUGMENTATIONS[recipe.augment] if isinstance(recipe.augment, str) else recipe.augment
    assert augment is not None
    inputs = to_model(x, normalize, dtype_of(model))
    try:
        if not takes_targets(augment):
            changed = augment(inputs)
            if not isinstance(changed, Tensor | dict | tuple):
                raise TypeError(f"it returned a {type(changed).__name__}")
            if (count := len(logits_of(model, changed))) != length(x):
                raise ValueError(f"it returned {count} inputs of {length(x)}")
            return
        mixed, mixed_targets = augment(inputs, targets)
        (recipe.loss or cross_entropy)(as_logits(logits_of(model, mixed)), mixed_targets)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ValueError(
            f"augment must return what the model takes, and did not for {describe_inputs(x)}"
            f"{f', targets {tuple(targets.shape)} of {targets.dtype}' if takes_targets(augment) else ''}: {error}"
        ) from error


def check_recipe(recipe: Recipe, data: Data, classes: int) -> None:
    """Hold a recipe against the data: warn of averages that hardly move, refuse scores that select no epoch."""
    batches = math.ceil(len(data.train) / recipe.batch_size)
    steps = recipe.epochs * math.ceil(batches / recipe.accumulate)
    share = 0.0 if recipe.ema is None else recipe.ema**steps
    if share > 0.1 and (steps >= 100 or recipe.epochs >= 20):  # shorter trainings are tries
        warnings.warn(
            f"ema={recipe.ema} leaves {share:.0%} of a member's initial weights in its average: there are {steps} "
            f"steps. Use {1 - 5 / steps:g} or less, or more epochs",
            stacklevel=4,
        )
    if len(data.validation) == 0 and (recipe.patience is not None or recipe.select_by != "accuracy"):
        what = "select_by" if recipe.patience is None else "patience"
        raise ValueError(f"{what} needs held-out examples, and there are none; give validation, such as 0.1")
    if len(data.validation) == 0 or not callable(recipe.select_by):
        return
    labels = data.held_out.labels[data.validation] if data.held_out.indexed else data.held_out.labels
    shape = (len(labels), classes) if labels.ndim == 1 else (*labels.shape, 2)  # independent labels are 0 or 1
    probs = torch.rand(shape, generator=generator(0)).add_(0.1)
    right = torch.full(shape, 0.2 / shape[-1]).scatter_(-1, labels.cpu().unsqueeze(-1), 0.8 + 0.2 / shape[-1])
    found: Any = None
    try:
        found = recipe.select_by(probs / probs.sum(dim=-1, keepdim=True), labels.cpu())
        float(found)
    except Exception as error:  # of any kind: it may be anyone's
        if found is None and not isinstance(error, TypeError):  # made-up probabilities alone may have led to it
            return
        raise ValueError(
            f"select_by must return a number for probabilities {shape} and labels {tuple(labels.shape)}; it ended in "
            f"{type(error).__name__}: {error}"
        ) from error
    try:
        of_right, of_wrong = (float(recipe.select_by(one, labels.cpu())) for one in (right, right.roll(1, dims=-1)))
    except Exception:  # as above
        return
    if of_wrong - of_right > 1e-3 * max(abs(of_wrong), abs(of_right)):
        name = getattr(recipe.select_by, "__name__", "score")
        raise ValueError(
            f"select_by must be larger where predictions are better, and {name} is {of_right:.3g} for right ones and "
            f"{of_wrong:.3g} for wrong ones; give lambda probs, labels: -{name.replace('<lambda>', 'score')}(probs, "
            "labels), or 'nll' for the negative log-likelihood"
        )
