"""Coupling, bank and schedule: who meets whom on samples of p*, what finished members said there, when members train.

Members touch each other through nothing else. A new method is one file with a subclass of `Coupling` and one line in
`greedy_ensembles.method.METHODS`; every engine and schedule calls only `terms`. Methods that also change how members
are made (snapshots of one training, masks of one network) have hooks for that, which training calls.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from greedy_ensembles.generators import WEIGHTING_SET, generator
from greedy_ensembles.inputs import Inputs, entries, length, move
from greedy_ensembles.method.weighting import Weighting

#: Where a network has the name of the method that swapped its layers, which files have to say.
BUILT_BY = "built_by"
#: Whom a member meets beside the finished ones.
Sees = Literal["earlier", "all", "none"]


@dataclass(frozen=True)
class Schedule:
    """When members train: one after another, or together."""

    name: str
    together: bool


SCHEDULES = {one.name: one for one in (Schedule("sequential", together=False), Schedule("concurrent", together=True))}


class Coupling(ABC):
    """A term in every member's loss, computed from members' outputs on the same samples of p*.

    Attributes:
        label: what tables, cards and the command line call the method.
        sees: whom a member meets beside the finished ones: those "earlier" than itself, or "all" that train with it.
            "none": members do not touch, no p* is drawn, and `strength` has no meaning.
        one_network: whether all members come out of one training; they are then neither trained together nor added to.
        labels: whether members may predict independent labels. Their outputs, (n, labels), are then the probabilities
            that labels apply, times the root of 2 / labels: squared distances are means over labels (docs/method.md).
        strength: lambda_M; `ge.fit` sets it on a copy.
        size: M, the size that the ensemble will have; likewise.
    """

    label: str
    sees: Sees = "earlier"
    one_network: bool = False
    labels: bool = True
    strength: float = 1.0
    size: int = 1

    @abstractmethod
    def terms(self, live: Tensor, bank: Tensor) -> Tensor:
        """Return what each member adds to its loss, (members,).

        Args:
            live: (members, n, classes), outputs of all members that train together, in order, with gradients.
            bank: (finished, n, classes), outputs of the finished members on the same samples.

        Ask `met` for what a member may meet. It is detached, so that no member depends on a later one by mistake. A
        member that meets no one is asked about as well, where members train together; its term must be a number.
        """

    def met(self, live: Tensor, bank: Tensor, i: int) -> Tensor:
        """Return the outputs that live row i may meet, (others, n, classes), without gradients.

        Args:
            live: as `terms` is given it.
            bank: likewise.
            i: which row of `live` asks, counted from 0; it never meets itself.
        """
        others = live[:i] if self.sees == "earlier" else torch.cat([live[:i], live[i + 1 :]])
        return torch.cat([bank, others]).detach()

    def title(self) -> str:
        """Return what tables call the method with its strength."""
        return f"{self.label}, lambda_M = {self.strength:g}" if "strength" in vars(self) else self.label

    # Hooks, for methods that change how members are made. Most have none of them.

    def check(self, recipe: Any, schedule: Schedule) -> None:
        """Refuse a `ge.Recipe` or a schedule that the method cannot have."""
        own_recipes = type(self).recipe is not Coupling.recipe
        if schedule.together and (self.one_network or own_recipes):
            does = "trains one network for all of them" if self.one_network else "gives each a recipe of its own"
            raise ValueError(
                f"schedule={schedule.name!r} trains members at the same time, and {self.label} {does}; use "
                "schedule='sequential'"
            )

    def recipe(self, recipe: Any, number: int, seed: int) -> Any:
        """Return the `ge.Recipe` that one member is trained by.

        Args:
            recipe: that of the whole run; `dataclasses.replace` gives one with other fields.
            number: which member, counted from 1.
            seed: that of the run; what is drawn must come from it and `number` alone, so that runs can be resumed.
        """
        return recipe

    def build(self, model: nn.Module, number: int, seed: int) -> nn.Module:
        """Return the network to train for one member.

        Args:
            model: a new one, as ``make_model`` returned it; it may be changed.
            number: which member, counted from 1.
            seed: that of the run.
        """
        return model

    def kept_epochs(self, epochs: int) -> Sequence[int]:
        """Return the epochs, counted from 1, after which weights are kept beside those of the best epoch."""
        return ()

    def members(self, model: nn.Module, kept: Sequence[dict[str, Tensor]], seed: int) -> list[nn.Module]:
        """Return the members that came of one training.

        Args:
            model: the network that was trained.
            kept: its weights after each of `kept_epochs`, in that order.
            seed: that of the run.
        """
        return [model]

    def as_member(self, model: nn.Module) -> nn.Module:
        """Return a network of ``make_model`` in the form that `members` have, to be given their weights."""
        return model


def draw_samples(weighting: Weighting, count: int, seed: int) -> Inputs:
    """Draw the p* set of a run, or refuse samples that are fewer or not finite."""
    samples: Inputs = weighting.sample(count, generator(WEIGHTING_SET, seed))
    for _, one in entries(samples):
        if len(one) != count or not all(bool(torch.isfinite(part).all()) for part in one.split(1024)):
            raise ValueError(f"weighting must draw {count} finite samples; NaN, inf or fewer came")
    return samples


class Bank:
    """Samples of p*, drawn once, and what finished members say of them: a row (samples, classes) each, in their order.

    A step takes some samples by index, and looks up the outputs of finished members instead of computing them again.
    """

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


def swap(model: nn.Module, replace: Callable[[nn.Module], nn.Module | None], method: str) -> nn.Module:
    """Return a network with other layers in the place of some, and note which method did it.

    Args:
        model: the network; it is changed.
        replace: returns the layer that takes the place of one, or None. It sees every layer once.
        method: a name of the registry.
    """
    found = {layer: replace(layer) for layer in list(model.modules())}
    swapped = {layer: other for layer, other in found.items() if other is not None}
    for parent in found:
        for name, part in parent._modules.items():  # not named_children, which leaves out a layer's second name
            if part in swapped:
                parent._modules[name] = swapped[part]
    for layer in model.modules():  # PyTorch's fast paths in eval mode take weights out of layers, and do not call them
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
    model = swapped.get(model, model)
    setattr(model, BUILT_BY, method)
    return model
