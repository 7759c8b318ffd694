"""How much memory a member needs while it trains, measured on a few inputs before it matters."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greedy_ensembles.inputs import dtype_of, to_model
from greedy_ensembles.training.examples import Examples
from greedy_ensembles.training.numerics import autocast
from greedy_ensembles.training.recipe import Recipe

_FEW = 8


@dataclass(frozen=True)
class Footprint:
    """Bytes of one member."""

    state: int  #: weights, gradients, optimizer state, and the snapshot of the best epoch
    row: float  #: what the backward pass keeps of each input of a batch


def measure_footprint(model: nn.Module, examples: Examples, recipe: Recipe, device: torch.device) -> Footprint:
    """Measure a model that is not needed afterwards: its statistics change.

    Bytes per input come from the difference of two batches, so that what does not grow with the batch drops out.
    """
    weights = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    learning = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    moments = {"adamw": 2, "sgd": 1}.get(str(recipe.optimizer), 2)
    state = 2 * weights + (1 + moments) * learning
    count = min(_FEW, len(examples))
    if count < 4:
        return Footprint(state, 0.0)  # too few to measure, and to matter
    sizes = count // 2, count
    inputs = examples.inputs(torch.arange(count, device=examples.device)).to(device)
    kept = [_kept(model, to_model(inputs[:size], recipe.normalize, dtype_of(model)), recipe, device) for size in sizes]  # type: ignore[arg-type]
    return Footprint(state, max(kept[1] - kept[0], 0) / (sizes[1] - sizes[0]))


def _kept(model: nn.Module, inputs: Tensor, recipe: Recipe, device: torch.device) -> int:
    """Return the bytes that a training pass saves for its backward pass, each storage once, without the weights."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    def same(tensor: Any) -> Any:
        return tensor

    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, same), autocast(recipe, device):
        model(inputs)
    model.eval()
    return sum(storages.values())
