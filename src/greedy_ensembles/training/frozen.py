"""Fine-tuning (`ge.models.heads`): members under way are heads, and examples and samples of p* are features.

Heads are small networks that any engine trains. What cannot change between epochs goes through the backbone once, for
all members: samples of p*, held-out examples, and arrays that are not augmented. Other examples go through it in every
batch, behind the augmentation.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.member import Finished
from greedy_ensembles.ensemble import Ensemble
from greedy_ensembles.forms import Form, form_of
from greedy_ensembles.inputs import Inputs, as_stored, batches_of, dtype_of, move, to_model
from greedy_ensembles.method import Coupling
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.models.fine_tuning import Headed, Heads
from greedy_ensembles.runs.configuration import describe
from greedy_ensembles.runs.folder import RunFolder
from greedy_ensembles.training.algorithm import Algorithm, Notify
from greedy_ensembles.training.examples import ArrayExamples, Data, Examples
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
    """Algorithm 2 for heads: members that it returns are whole."""

    def train(self, folder: RunFolder | None, notify: Notify) -> list[Finished]:
        """Train heads on features."""
        if folder is not None and folder.finished == self.size:
            return []
        heads = _on_features(self, self.make_model)  # type: ignore[arg-type]
        done = heads.train(folder, notify)
        self.at_once = heads.at_once
        return done


def _on_features(algorithm: Algorithm, heads: Heads) -> Algorithm:
    """Return the algorithm with heads for models and features for inputs."""
    execution, raw, weighting = algorithm.execution, algorithm.data, algorithm.method.weighting
    probe = heads().to(execution.device)
    features = _Features(probe, execution)
    augment = algorithm.recipe.augment
    kept = isinstance(raw.examples, ArrayExamples) and augment is None
    examples = features.of_examples(raw, raw.examples, raw.examples.chunks()) if kept else raw.examples
    held_out, validation = examples, raw.validation
    if not kept or raw.held_out is not raw.examples:
        held_out, validation = features.of_held_out(raw), torch.arange(len(raw.validation), device=execution.device)
    changed_data = {
        "examples": examples,
        "held_out": held_out,
        "validation": validation,
        "normalize": None,
        "dtype": dtype_of(probe.head),
    }
    data = FeatureData(**{**vars(raw), **changed_data}, raw=None if kept else raw)
    if weighting is not None:
        weighting = _FeatureSamples(weighting, raw, features)
    changed: dict[str, Any] = {
        "make_model": heads.make_head,
        "data": data,
        "method": replace(algorithm.method, weighting=weighting),
        "recipe": algorithm.recipe if kept else replace(algorithm.recipe, augment=features.behind(augment)),
        "earlier": None if algorithm.earlier is None else Ensemble([one.head for one in algorithm.earlier]),  # type: ignore[misc]
        "whole": heads.join,
    }
    return Algorithm(**{**vars(algorithm), **changed})


@dataclass(frozen=True)
class FeatureData(Data):
    """Features of all examples; or of the held-out ones, and inputs that become features behind the augmentation."""

    raw: Data | None

    def look_up(self, indices: Any, held_out: bool = False) -> tuple[Inputs, Tensor]:
        """Return features, or inputs where examples are not kept as features, and what the loss is of."""
        return super().look_up(indices, held_out) if held_out or self.raw is None else self.raw.look_up(indices)


class _Features:
    """The backbone, as training runs it."""

    def __init__(self, probe: Headed, execution: Execution) -> None:
        self._probe, self._execution, self.dtype = probe, execution, dtype_of(probe)

    def __call__(self, inputs: Inputs) -> Tensor:
        """Return features of inputs as models take them."""
        return self._execution.run(self._probe.backbone, inputs, self._probe.features)  # type: ignore[no-any-return]

    def behind(self, augment: str | Augmentation | None) -> Augmentation:
        """Return what augments inputs and makes features of them."""
        if augment is None:
            return self
        change = AUGMENTATIONS[augment] if isinstance(augment, str) else augment
        if not takes_targets(change):
            return lambda inputs: self(change(inputs))

        def mixed(inputs: Inputs, targets: Tensor) -> tuple[Tensor, Tensor]:
            inputs, targets = change(inputs, targets)
            return self(inputs), targets

        return mixed

    def of_examples(self, raw: Data, examples: Examples, batches: Any) -> ArrayExamples:
        """Return examples with features in the place of inputs."""
        every = [self(to_model(move(batch, raw.device), raw.normalize, self.dtype)) for batch in batches]
        x = torch.cat(every)
        return ArrayExamples(x, examples.labels.to(x.device), form_of(x), None, examples.weights)

    def of_held_out(self, raw: Data) -> ArrayExamples:
        """Return features of the held-out examples, in order."""
        batches = [raw.look_up(batch, held_out=True) for batch in raw.held_out.ordered(raw.validation, _ROWS)]
        if not batches or len(raw.validation) == 0:
            nothing = torch.zeros(0, 1, dtype=self.dtype, device=raw.device)
            return ArrayExamples(nothing, torch.zeros(0, dtype=torch.long, device=raw.device), form_of(nothing))
        x = torch.cat([self(inputs) for inputs, _ in batches])
        return ArrayExamples(x, torch.cat([labels for _, labels in batches]), form_of(x))


class _FeatureSamples:
    """p*, seen through the backbone."""

    def __init__(self, weighting: Weighting, raw: Data, features: _Features) -> None:
        self._weighting, self._raw, self._features = weighting, raw, features
        self._form: Form = raw.examples.form

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Return features of n samples."""
        drawn = self._weighting.sample(n, generator)
        stored = as_stored(drawn, self._form)
        raw, dtype = self._raw, self._features.dtype
        batches = (to_model(move(one, raw.device), raw.normalize, dtype) for one in batches_of(stored, _ROWS))
        return torch.cat([self._features(batch) for batch in batches])
