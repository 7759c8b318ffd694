"""BatchEnsemble (Wen et al. 2020): one network, and for each member two vectors a layer.

The weight of member k in a Linear or Conv2d layer is the shared W times the rank-one matrix s_k r_k^T, element by
element: its inputs are multiplied by r_k, its outputs by s_k, and a bias of its own is added. r and s begin as random
signs. A step repeats the batch M times, once a member, and takes all rows through the network in one pass; the loss is
the mean over all of them. Other layers, BatchNorm and its statistics among them, are shared. The recipe's weight decay
holds for r, s and biases, too. The cost: the parameters of one network, M rows for every example.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from greedy_ensembles.inputs import SOFTMAX, are_probabilities, as_logits, each, length, logits_of
from greedy_ensembles.method.coupling import swap
from greedy_ensembles.method.deep import Deep


class RankOne(nn.Module):
    """A layer of several members: the first rows of its input are those of the first member, and so on.

    Args:
        layer: the Linear or Conv2d layer whose weight they share; it loses its bias.
        members: how many.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, members: int) -> None:
        super().__init__()
        self._batch = members  # rows of the batch under way, of all members
        self._name = ""  # by which the network has it
        if isinstance(layer, nn.Conv2d):
            sizes, self._after = (layer.in_channels, layer.out_channels), 2  # dimensions behind that of channels
        else:
            sizes, self._after = (layer.in_features, layer.out_features), 0
        signs = (torch.randint(2, (members, size)).mul(2).sub(1).to(layer.weight) for size in sizes)
        self.r, self.s = map(nn.Parameter, signs)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().repeat(members, 1))
        layer.register_parameter("bias", None)
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        """Return what the shared layer has, such as its `in_features`, but for its weight, which is no member's."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "weight":
                raise AttributeError(
                    f"the weight of layer {self._name!r} is another one for each member of a {Batch.label}, so the "
                    "model must call the layer, and not read its weight; change that, or use another method"
                ) from None
            if name == "layer" or not hasattr(self.layer, name):
                raise
            return getattr(self.layer, name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the members' products with their rows, or refuse a layer that gets something else first."""
        if len(self.r) > 1 and len(x) % self._batch:
            raise ValueError(
                f"a layer got {tuple(x.shape)} of a batch of {self._batch} rows; {Batch.label} needs rows first in "
                "front of every nn.Linear and nn.Conv2d, as batch_first=True has them"
            )
        x = self.layer(x * self._rows(self.r, x))
        x = x * self._rows(self.s, x)
        return x if self.bias is None else x + self._rows(self.bias, x)

    def _rows(self, vectors: Tensor, x: Tensor) -> Tensor:
        """Return every row's vector, in a form that broadcasts over x."""
        between = (1,) * (x.ndim - 2 - self._after)
        # One vector serves batches of any length, as exported graphs must.
        rows = vectors if len(vectors) == 1 else vectors.repeat_interleave(len(x) // len(vectors), dim=0)
        return rows.view(len(rows), *between, vectors.shape[1], *(1,) * self._after)


class Tiled(nn.Module):
    """A network of several members; in eval mode its logits are those of their mean probabilities."""

    def __init__(self, network: nn.Module, members: int) -> None:
        super().__init__()
        self.network, self.members = network, members

    def forward(self, *several: Any, **named: Any) -> Tensor:
        """Return logits (members * n, classes) in training, and (n, classes) otherwise."""
        x: Any = named or (several[0] if len(several) == 1 else several)
        for layer in self.network.modules():
            if isinstance(layer, RankOne):
                layer._batch = self.members * length(x)
        logits: Tensor = logits_of(
            self.network, each(lambda part: part.repeat(self.members, *(1,) * (part.ndim - 1)), x)
        )
        if self.training:
            return logits
        if logits.ndim == 2 and are_probabilities(logits):  # which no one could tell from what is returned
            raise ValueError(f"the model {SOFTMAX}")
        every = as_logits(logits).log_softmax(dim=1).reshape(self.members, length(x), -1)
        mean = every.logsumexp(dim=0) - math.log(self.members)
        return mean if logits.shape[1:].numel() > 1 else mean[:, 1:] - mean[:, :1]


def _of_all(loss: Any, logits: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of all members' rows."""
    return loss(logits, targets.repeat(len(logits) // len(targets), *(1,) * (targets.ndim - 1)))  # type: ignore[no-any-return]


class Batch(Deep):
    """M members that share the weights of one network."""

    label = "BatchEnsemble"
    one_network = True
    labels = False  # in eval mode, `Tiled` returns the logits of mean probabilities of classes

    def recipe(self, recipe: Any, number: int, seed: int) -> Any:
        """Return the recipe with the loss of the repeated batch."""
        return replace(recipe, loss=partial(_of_all, recipe.loss or cross_entropy))

    def build(self, model: nn.Module, number: int, seed: int) -> nn.Module:
        """Return the network of all members."""
        return Tiled(self._swapped(model, self.size), self.size)

    def members(self, model: nn.Module, kept: Sequence[dict[str, Tensor]], seed: int) -> list[nn.Module]:
        """Return each member with its own vectors; all else is the same in all of them."""
        network = model.network
        assert isinstance(network, nn.Module)
        own = {
            id(v) for layer in network.modules() if isinstance(layer, RankOne) for v in layer.parameters(recurse=False)
        }
        shared = {id(v): v for v in (*network.parameters(), *network.buffers()) if id(v) not in own}
        members = [copy.deepcopy(network, dict(shared)) for _ in range(self.size)]
        for k, member in enumerate(members):
            for layer in member.modules():
                if isinstance(layer, RankOne):
                    for name, value in layer.named_parameters(recurse=False):
                        setattr(layer, name, nn.Parameter(value.detach()[k : k + 1].clone()))
        return members

    def as_member(self, model: nn.Module) -> nn.Module:
        """Return a network with the vectors of one member."""
        return self._swapped(model, 1)

    def _swapped(self, model: nn.Module, members: int) -> nn.Module:
        # Of exactly these kinds: layers that inherit from them may not be called at all, as in attention.
        known = (nn.Linear, nn.Conv2d)
        if not any(type(layer) in known for layer in model.modules()):
            raise ValueError(
                f"{self.label} needs a network with nn.Linear or nn.Conv2d layers; make_model returns none"
            )
        model = swap(model, lambda layer: RankOne(layer, members) if type(layer) in known else None, "batch")  # type: ignore[arg-type]
        for name, layer in model.named_modules():
            if isinstance(layer, RankOne):
                layer._name = name
        return model
