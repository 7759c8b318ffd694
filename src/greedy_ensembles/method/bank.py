"""The bank: what the members so far say about the p* set, stored once so that a training step only looks it up."""

import torch
from torch import Tensor


class Bank:
    """Outputs of members on the fixed p* set, one (samples, classes) row a member, in the order they were added."""

    def __init__(self, capacity: int, samples: int, classes: int, device: torch.device | str = "cpu") -> None:
        self._rows = torch.empty(capacity, samples, classes, device=device)
        self._filled = 0

    @staticmethod
    def nbytes(capacity: int, samples: int, classes: int) -> int:
        """Return the bytes that a bank of these sizes takes."""
        return 4 * capacity * samples * classes

    def __len__(self) -> int:
        return self._filled

    def append(self, row: Tensor) -> None:
        """Add the outputs of one more member, (samples, classes)."""
        self._rows[self._filled] = row
        self._filled += 1

    def at(self, indices: Tensor) -> Tensor:
        """Return the rows of all members so far at these samples: (members, len(indices), classes)."""
        return self._rows[: self._filled].index_select(1, indices)
