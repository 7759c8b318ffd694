"""What a method is: how a member's outputs on samples of p* meet those of the earlier members.

Members touch each other through nothing else, so a new method is one file with one subclass of `Coupling` and one
line in `greedy_ensembles.method.METHODS`; schedules and engines need not change.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Coupling(ABC):
    """A term added to a member's loss, computed from its own and the others' outputs on the same samples of p*."""

    def __init__(self, strength: float, size: int) -> None:
        self.strength = strength
        self.size = size

    @abstractmethod
    def term(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return the scalar to add to the loss, given (n, classes) own outputs and (others, n, classes), detached."""

    def terms(self, outputs: Tensor, others: Tensor) -> Tensor:
        """Return the terms (members,) of members that train together, with outputs (members, n, classes).

        Each meets `others` and, detached, the members before it in `outputs`; 0 for one that meets no one. A method
        may compute them faster than one after another.
        """
        terms = []
        for position, own in enumerate(outputs):
            met = torch.cat([others, outputs[:position].detach()])
            terms.append(self.term(own, met) if len(met) else outputs.new_zeros(()))
        return torch.stack(terms)
