"""The bank: samples of p*, drawn once, and what the finished members say of them.

A step takes some samples by index, and looks up the outputs of finished members instead of computing them again.
"""

import torch
from torch import Tensor

from greedy_ensembles.inputs import Inputs, entries, length, move


class Bank:
    """The p* set (samples, ...), and one (samples, classes) row of outputs a member, in the order of training."""

    def __init__(self, samples: Inputs, capacity: int, classes: int) -> None:
        self.samples = samples
        self.device = entries(samples)[0][1].device
        self.count = length(samples)
        self._rows = torch.empty(capacity, self.count, classes, device=self.device)
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def row_shape(self) -> torch.Size:
        """(samples, classes): what `append` takes."""
        return self._rows.shape[1:]

    def to(self, device: torch.device) -> "Bank":
        """Return the bank on a device: itself where it is there."""
        if device == self.device:
            return self
        moved = Bank(move(self.samples, device), len(self._rows), self._rows.shape[2])
        for row in self._rows[: self._filled]:
            moved.append(row)
        return moved

    def append(self, row: Tensor) -> None:
        """Add the outputs of one more member, (samples, classes)."""
        self._rows[self._filled] = row
        self._filled += 1

    def at(self, indices: Tensor) -> Tensor:
        """Return what all finished members say of these samples, (finished, len(indices), classes)."""
        return self._rows[: self._filled].index_select(1, indices)
