"""Figures that others have published, and how a comparison asks for them; the paper's own are in `paper`."""

import dataclasses
from typing import NamedTuple, Protocol

from greedy_ensembles.benchmark.runs import RunFacts


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a published figure belongs to."""

    architecture: str
    dataset: str
    size: int
    method: str  #: a name of the registry, or more where that does not say all
    strength: float | None = None


class Cell(NamedTuple):
    """A figure as printed; the standard error is None where it was left out."""

    mean: float
    standard_error: float | None


class Published(Protocol):
    """Figures of others, to be put beside ours where they have the same cell. A module can be one."""

    def setting_of(self, facts: RunFacts, /) -> Setting | None:
        """Return the place of a run in the published tables, None if it has none."""

    def cell(self, setting: Setting | None, metric: str, ood: str = "", /) -> Cell | None:
        """Return a figure; None if there is none.

        Args:
            setting: what it belongs to; None, of which there are no figures, will do.
            metric: its name, such as "auc" or "accuracy".
            ood: the OOD set; empty: within the domain.
        """

    def image_count(self, ood: str, /) -> int | None:
        """Return how many images of a set were used there."""

    def departures(self, facts: RunFacts, /) -> str:
        """Return in what a run was trained otherwise, in words."""
