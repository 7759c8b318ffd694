"""Whether members can train as one: their weights stacked, layer by layer, into leaves with one more dimension.

The answer is strict. A layer that is not known to do the same in every run, one row at a time, or anything that a
member's own objects do beside it (hooks, losses, augmentations of one's own) means a plain loop over the members.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import nn

from greedy_ensembles.engines.accelerate import has_hooks
from greedy_ensembles.inputs import dtype_of
from greedy_ensembles.training.examples import ArrayExamples, Examples
from greedy_ensembles.training.recipe import Recipe

if TYPE_CHECKING:
    from greedy_ensembles.training.member import Member
    from greedy_ensembles.training.problem import Problem

#: Numbers in, numbers out, one by one: what they do to a stack is what they do to each member.
POINTWISE: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Tanh,
)
_LAYERS = {nn.Linear, nn.LayerNorm, nn.Flatten, *POINTWISE}

#: Parameters a member. Measured with MLPs of two equal hidden layers, 3 and 11 members, batches of 32 and 128, one and
#: two threads: stacked, an epoch is 1.9 to 7 times as fast with 2,000 parameters, 1.2 to 3.3 with 74,000, 1.0 to 1.6
#: with 280,000, and with a million it is slower.
LARGEST = 250_000


def why_not_stacked(members: "list[Member]", problem: "Problem") -> str | None:
    """Return the first reason why these members cannot, or should not, train as one, or None."""
    if len(members) < 2:
        return "one member has no others to be stacked with"
    share = problem.weighting is None or problem.one_pass
    models = [member.model for member in members]
    for model in models:
        if (why := why_not_stackable(model, problem.recipe, problem.device, problem.examples, share)) is not None:
            return why
    return _of_group(models)


def why_not_stackable(
    model: nn.Module, recipe: Recipe, device: torch.device, examples: Examples, share_a_pass: bool
) -> str | None:
    """Return the first reason why models like this one cannot, or should not, train as one, or None."""
    reasons = {
        f"the device is {device}, not the CPU": device.type != "cpu",
        f"precision is {recipe.precision}": recipe.precision != "float32",
        "the recipe's optimizer is a callable": callable(recipe.optimizer),
        "the recipe's loss is a callable": recipe.loss is not None,
        "the recipe augments": recipe.augment is not None,
        "the data is a Dataset": not isinstance(examples, ArrayExamples),
        "examples and samples of p* cannot share a pass": not share_a_pass,
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    return _of_model(model, dtype_of(model))


def layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return the layers inside nested `nn.Sequential`s, by name, in the order in which inputs go through them."""
    if not _is_container(model):
        yield "", model
        return
    for name, part in model._modules.items():  # not named_children, which leaves out what comes a second time
        assert part is not None
        for inner, layer in layers(part):
            yield f"{name}.{inner}" if inner else name, layer


def _is_container(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _of_model(model: nn.Module, dtype: torch.dtype) -> str | None:
    parts = list(layers(model))
    for name, layer in parts:
        if type(layer) not in _LAYERS:
            return f"{name or 'the model'} is a {type(layer).__name__}"
    if any(_is_watched(module) for module in model.modules()):
        return "the model has hooks"
    used = [id(p) for _, layer in parts for p in layer.parameters()]
    if len(used) != len(set(used)):
        return "layers share parameters"
    if set(used) != {id(p) for p in model.parameters()}:
        return "the model has parameters outside its layers"
    if dtype not in (torch.float32, torch.float64) or any(p.dtype != dtype for p in model.parameters()):
        return "parameters are not all float32, or all float64"
    count = sum(p.numel() for p in model.parameters())
    if count > LARGEST:
        return f"{count} parameters a member keep the CPU busy as they are, from {LARGEST} on"
    return None


def _of_group(models: list[nn.Module]) -> str | None:
    if len({_structure(model) for model in models}) > 1:
        return "members differ in structure"
    parameters = [id(p) for model in models for p in model.parameters()]
    if len(parameters) != len(set(parameters)):
        return "members share parameters"
    return None


def _structure(model: nn.Module) -> tuple[object, ...]:
    """Return what has to be the same in all members; a layer's representation names its settings."""
    parameters = ((name, p.shape, p.requires_grad) for name, p in model.named_parameters())
    return (*((name, repr(layer)) for name, layer in layers(model)), *parameters)


def _is_watched(module: nn.Module) -> bool:
    """Return whether a layer, or one of its parameters, has hooks."""
    of_gradients = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return has_hooks(module) or any(getattr(p, name) for p in module.parameters(recurse=False) for name in of_gradients)
