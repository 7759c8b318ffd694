"""Snapshot Ensembles (Huang et al. 2017, "Train 1, get M for free"): a member at the end of every cycle.

One network trains for the recipe's `epochs`, in M cycles of equal length; the first ones are an epoch longer where M
does not divide them. Within a cycle of T epochs the learning rate falls as ``lr / 2 * (cos(pi * t / T) + 1)``, and the
next one starts from `lr` again, from the weights and the momentum that are there. Its weights at the end of a cycle
are a member. The cost: the parameters of M networks, the steps of one.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from torch import Tensor, nn

from greedy_ensembles.method.coupling import Schedule
from greedy_ensembles.method.deep import Deep


class Cycles:
    """The factor of the learning rate, a function of the share of the training that has passed."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = list(ends)

    def __call__(self, share: float) -> float:
        """Return (cos(pi * t / T) + 1) / 2 at t epochs of a cycle of T.

        >>> cycles = Cycles([2, 4])
        >>> [round(cycles(epoch / 4), 3) for epoch in (0, 1, 1.5, 2, 3, 4)]
        [1.0, 0.5, 0.146, 1.0, 0.5, 0.0]
        """
        epoch = share * self.ends[-1]
        cycle = next((i for i, end in enumerate(self.ends) if epoch < end - 1e-9), len(self.ends) - 1)
        start = self.ends[cycle - 1] if cycle else 0
        return (math.cos(math.pi * (epoch - start) / (self.ends[cycle] - start)) + 1) / 2


class Snapshot(Deep):
    """Weights of one training, taken at the end of every cycle of its learning rate."""

    label = "Snapshot Ensembles"
    one_network = True

    def check(self, recipe: Any, schedule: Schedule) -> None:
        """Refuse fewer epochs than members, and settings that cycles take the place of."""
        super().check(recipe, schedule)
        if recipe.epochs < self.size:
            raise ValueError(
                f"{self.label} needs an epoch a member: size is {self.size}, and the recipe has epochs={recipe.epochs}"
            )
        if recipe.patience is not None or recipe.warmup_epochs or recipe.schedule != "anneal":
            raise ValueError(
                f"{self.label} has a learning rate of its own and trains all {recipe.epochs} epochs; leave out "
                "patience, warmup_epochs and the recipe's schedule"
            )

    def recipe(self, recipe: Any, number: int, seed: int) -> Any:
        """Return the recipe with the cyclic learning rate."""
        return replace(recipe, schedule=Cycles(self.kept_epochs(recipe.epochs)), milestones=(), lr_updates="step")

    def kept_epochs(self, epochs: int) -> Sequence[int]:
        """Return the last epoch of every cycle."""
        shorter, longer = divmod(epochs, self.size)
        return list(accumulate(shorter + (cycle < longer) for cycle in range(self.size)))

    def members(self, model: nn.Module, kept: Sequence[dict[str, Tensor]], seed: int) -> list[nn.Module]:
        """Return a network for each of the snapshots."""
        members = [copy.deepcopy(model) for _ in kept]
        for member, weights in zip(members, kept, strict=True):
            member.load_state_dict(weights)
        return members
