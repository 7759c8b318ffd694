"""MC dropout (Gal & Ghahramani 2016) with one mask a member, for all inputs.

One network with dropout layers trains as usual. Member k is that network with masks that are drawn once, so that it is
a function: members are compared on the same input by the same masks, and mutual information is that of M networks, not
of noise. The cost: the parameters and steps of one network, M passes at prediction.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greedy_ensembles.method.coupling import swap
from greedy_ensembles.method.deep import Deep

#: Layers that set single numbers to 0, and those that do so to whole channels.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class FixedMask(nn.Module):
    """A dropout layer that drops the same units of every input, also in eval mode.

    Its buffer `key` is what the mask is drawn from: the run's seed, the member and the layer.
    """

    key: Tensor

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.p = float(layer.p)  # type: ignore[arg-type]
        self.channels = not isinstance(layer, nn.Dropout)
        self.register_buffer("key", torch.zeros(3, dtype=torch.int64))
        self._mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the mask, which is 1 / (1 - p) where it is not 0."""
        shape = (x.shape[1], *(1,) * (x.ndim - 2)) if self.channels else x.shape[1:]
        if self._mask is None or self._mask.shape != shape or self._mask.device != x.device:
            uniform = np.random.default_rng(self.key.tolist()).uniform(size=tuple(shape))
            self._mask = torch.from_numpy((uniform >= self.p) / (1 - self.p or 1)).to(x.device)
        return x * self._mask.to(x.dtype)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._mask = None  # which was drawn from another key


class Dropout(Deep):
    """M masks of one network."""

    label = "MC dropout"
    one_network = True

    def build(self, model: nn.Module, number: int, seed: int) -> nn.Module:
        """Refuse a network without dropout, whose members would all be the same."""
        if not any(isinstance(layer, DROPOUTS) and 0 < layer.p < 1 for layer in model.modules()):
            raise ValueError(
                f"{self.label} needs a network with nn.Dropout(p) or nn.Dropout2d(p), 0 < p < 1, which those of "
                "ge.models do not have; give one of yours as make_model"
            )
        return model

    def members(self, model: nn.Module, kept: Sequence[dict[str, Tensor]], seed: int) -> list[nn.Module]:
        """Return the network with masks of its own for each member; all of them share its weights."""
        shared = {id(value): value for value in (*model.parameters(), *model.buffers())}
        members = [self.as_member(copy.deepcopy(model, dict(shared))) for _ in range(self.size)]
        for number, member in enumerate(members, start=1):
            for layer, mask in enumerate(layer for layer in member.modules() if isinstance(layer, FixedMask)):
                mask.key.copy_(torch.tensor([seed, number, layer]))
        return members

    def as_member(self, model: nn.Module) -> nn.Module:
        """Put masks in the place of dropout layers."""
        return swap(model, lambda layer: FixedMask(layer) if isinstance(layer, DROPOUTS) else None, "dropout")
