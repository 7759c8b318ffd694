"""Fine-tuning (`ge.models.heads`): members under way are heads, and examples and samples of p* are features.

Heads are small networks that any engine trains. What cannot change between epochs goes through the backbone once, for
all members: samples of p*, held-out examples, and arrays that are not augmented. Other examples go through it in every
batch, after the augmentation.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.member import Finished
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.forms import Form, form_of
from greedy_ensembles.heads import Headed, Heads
from greedy_ensembles.inputs import Inputs, as_stored, batches_of, dtype_of, move, to_model
from greedy_ensembles.method import Coupling
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.runs.configuration import describe
from greedy_ensembles.runs.folder import RunFolder
from greedy_ensembles.training.algorithm import Algorithm, Notify
from greedy_ensembles.training.examples import ArrayExamples, Data
from greedy_ensembles.training.recipe import AUGMENTATIONS, Augmentation, takes_targets

_ROWS = 1024  # inputs at once that go through the backbone outside of training steps


def check_heads(heads: Heads, coupling: Coupling, earlier: Ensemble | None, world: int) -> None:
    """Refuse what members that share a backbone cannot have."""
    if coupling.one_network or type(coupling).build is not Coupling.build:
        raise ValueError(f"method {coupling.label!r} changes networks, and ge.models.heads shares one; use another")
    if world > 1:
        raise ValueError(f"ge.models.heads as make_model trains in one process, and {world} were started")
    if not all(isinstance(member, Headed) and member.backbone is heads.backbone for member in earlier or ()):
        raise ValueError("earlier must hold heads that the same ge.models.heads made, as make_model is")


def digest_of(heads: Heads) -> str:
    """Return a hash of the backbone's weights and statistics."""
    return hashlib.sha256(json.dumps(describe(heads.backbone.state_dict())).encode()).hexdigest()


class HeadedAlgorithm(Algorithm):
    """Algorithm 2 for heads: heads are trained on features, and returned as whole members."""

    def train(self, folder: RunFolder | None, notify: Notify) -> list[Finished]:
        """Train heads on features."""
        if folder is not None and folder.finished == self.size:
            return []
        heads: Heads = self.make_model  # type: ignore[assignment]
        data, weighting, augment = self.data, self.method.weighting, self.recipe.augment
        features = _Features(heads(), data, self.execution)
        precomputed = isinstance(data.examples, ArrayExamples) and augment is None
        examples, held_out, validation = data.examples, data.held_out, data.validation
        if precomputed:
            x = features.of(examples.chunks())
            examples = ArrayExamples(x, examples.labels.to(x.device), form_of(x), None, examples.weights)
        if precomputed and data.held_out is data.examples:
            held_out = examples
        else:
            held_out, validation = features.of_held_out(), torch.arange(len(validation), device=data.device)
        changed: dict[str, Any] = {"examples": examples, "held_out": held_out, "validation": validation}
        changed |= {"normalize": None, "dtype": dtype_of(features.probe.head), "inputs": None if precomputed else data}
        trained: dict[str, Any] = {
            "make_model": heads.make_head,
            "data": FeatureData(**{**vars(data), **changed}),
            "recipe": self.recipe if precomputed else replace(self.recipe, augment=features.after(augment)),
            "earlier": None if self.earlier is None else Ensemble([one.head for one in self.earlier]),  # type: ignore[misc]
            "whole": heads.join,
        }
        if weighting is not None:
            samples = _FeatureSamples(weighting, data.examples.form, features)
            trained["method"] = replace(self.method, weighting=samples)
        of_heads = Algorithm(**{**vars(self), **trained})
        finished = of_heads.train(folder, notify)
        self.members_at_once = of_heads.members_at_once
        return finished


@dataclass(frozen=True)
class FeatureData(Data):
    """Features of all examples; or of the held-out ones alone, and `inputs`, which become features once augmented."""

    inputs: Data | None = None

    def look_up(self, batch: Any, held_out: bool = False) -> tuple[Inputs, Tensor]:
        """Return features, or inputs where features are not precomputed, and the targets of the loss."""
        return super().look_up(batch, held_out) if held_out or self.inputs is None else self.inputs.look_up(batch)


class _Features:
    """The backbone, as training runs it."""

    def __init__(self, probe: Headed, data: Data, execution: Execution) -> None:
        self.probe, self._data, self._execution = probe.to(execution.device), data, execution

    def __call__(self, inputs: Inputs) -> Tensor:
        """Return features of inputs as models take them."""
        return self._execution.run(self.probe.backbone, inputs, self.probe.features)  # type: ignore[no-any-return]

    def of(self, batches: Iterable[Inputs]) -> Tensor:
        """Return features of inputs in the space of the data."""
        placed = (move(batch, self._data.device) for batch in batches)
        return torch.cat([self(to_model(batch, self._data.normalize, self._data.dtype)) for batch in placed])

    def of_held_out(self) -> ArrayExamples:
        """Return features of the held-out examples, in order."""
        data, x, labels = self._data, [torch.zeros(0)], [torch.zeros(0, dtype=torch.long)]
        if len(data.validation) > 0:
            batches = [data.look_up(batch, held_out=True) for batch in data.held_out.ordered(data.validation, _ROWS)]
            x, labels = [self(inputs) for inputs, _ in batches], [own for _, own in batches]
        features = torch.cat(x)
        return ArrayExamples(features, torch.cat(labels), form_of(features))

    def after(self, augment: str | Augmentation | None) -> Augmentation:
        """Return what augments inputs and makes features of them."""
        change = AUGMENTATIONS[augment] if isinstance(augment, str) else augment
        if change is None:
            return self
        if not takes_targets(change):
            return lambda inputs: self(change(inputs))

        def mixed(inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
            inputs, targets = change(inputs, targets)
            return self(inputs), targets

        return mixed


class _FeatureSamples:
    """p*, seen through the backbone."""

    def __init__(self, weighting: Weighting, form: Form, features: _Features) -> None:
        self._weighting, self._form, self._features = weighting, form, features

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return features of n samples."""
        samples = as_stored(self._weighting.sample(n, generator), self._form)
        return self._features.of(batches_of(samples, _ROWS))
