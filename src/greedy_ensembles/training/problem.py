"""From the arguments of `ge.fit` to a problem that is known to be well posed, before any training starts."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from greedy_ensembles.checks import check_choice, check_count, check_number
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.inputs import InputForm, Normalize, dtype_of, to_model
from greedy_ensembles.method import METHODS, Coupling
from greedy_ensembles.method.weighting import Gaussian, Weighting, moments
from greedy_ensembles.training.configuration import describe, describe_model, describe_weighting
from greedy_ensembles.training.examples import Examples, as_examples
from greedy_ensembles.training.footprint import Footprint, measure_footprint
from greedy_ensembles.training.free_memory import check_examples
from greedy_ensembles.training.numerics import allow_deterministic, memory_format, placed
from greedy_ensembles.training.recipe import Augmentation, Loss, Recipe, as_augmentation
from greedy_ensembles.training.seeds import generator, preserved_generators, seed_global_generators
from greedy_ensembles.training.stackable import why_not_stackable
from greedy_ensembles.training.trial import (
    can_share_a_pass,
    check_normalize,
    check_outputs,
    check_passes,
    check_single_rows,
    checked_model,
)

#: How the distance between members sees their logits. The paper's figures belong to probabilities.
DISTANCES: dict[str, Callable[[Tensor], Tensor]] = {
    "probabilities": lambda logits: logits.softmax(dim=1),
    "logits": lambda logits: logits,
}


class SplitError(ValueError):
    """The examples are too few for a stratified validation split; they can be trained on without one."""


@dataclass(frozen=True)
class Problem:
    """What is to be trained, checked and ready."""

    make_model: ModelFactory
    size: int
    examples: Examples
    train: Tensor  #: indices of the examples to learn from, on the examples' device
    validation: Tensor  #: indices of those held out; empty where none are
    classes: int
    dtype: torch.dtype  #: of the models' parameters
    coupling: Coupling | None
    weighting: Weighting | None
    outputs: Callable[[Tensor], Tensor]  #: from logits to what distances are measured between
    one_pass: bool  #: whether examples and samples of p* can go through a model together
    memory_format: torch.memory_format  #: of the models' inputs
    footprint: Footprint  #: what one member needs of memory
    stackable: bool  #: whether several members would train as one, on the CPU
    recipe: Recipe
    seed: int
    earlier: Ensemble | None
    device: torch.device
    configuration: dict[str, Any]
    evaluation_rows: int = 1024  #: how many inputs a member sees at once outside of training steps

    @property
    def loss(self) -> Loss:
        """The loss of a batch."""
        return self.recipe.loss or cross_entropy

    @property
    def normalize(self) -> Normalize | None:
        """What is taken out of the inputs."""
        return self.recipe.normalize  # type: ignore[return-value]  # Recipe brings it into this form

    @property
    def augment(self) -> Augmentation | None:
        """What training inputs go through."""
        return as_augmentation(self.recipe)

    @property
    def input_form(self) -> InputForm | None:
        """What one input looks like, before it is brought into the form of the models."""
        return InputForm.of(self.examples.shape, self.examples.dtype)

    def inputs(self, batch: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return a batch as the models take it; those that came from elsewhere may be of another type."""
        return to_model(batch.to(self.device), self.normalize, dtype or self.dtype)


def pose(
    make_model: ModelFactory,
    data: Any,
    *,
    size: int,
    method: str,
    strength: float | None,
    weighting: Weighting | None,
    distance: str,
    recipe: Recipe | None,
    seed: int,
    validation: float,
    earlier: Ensemble | None,
    schedule: str,
    device: torch.device | str | None,
) -> Problem:
    """Check all arguments and put them together."""
    check_count("size", size, least=1)
    size = int(size)  # a number of numpy's would not go into JSON
    coupling = _coupling(method, strength, size)
    check_choice("distance", distance, DISTANCES)
    recipe = _checked_recipe(recipe, schedule)
    check_count("seed", seed, least=0)
    seed = int(seed)
    if seed + size > 2**32:
        raise ValueError(f"seed must be at most 2**32 - size, got {seed}")
    device = as_device(device)
    _check_earlier(earlier, size, recipe)
    with preserved_generators(device):
        seed_global_generators(seed)  # so that a Dataset with random transforms has the same hash at every start
        examples = as_examples(data)
        train, held_out = split(examples.labels, validation, seed)
        check_normalize(recipe, examples)
        model = checked_model(make_model, recipe, device)
        classes = check_outputs(model, examples, recipe, device)
        weighting = _checked_weighting(weighting, examples) if coupling is not None else None
        check_passes(model, earlier, weighting, examples, recipe, device, classes)
        check_single_rows(model, examples, len(train), recipe, device)
        one_pass = weighting is not None and can_share_a_pass(model, weighting, examples, recipe, device)
        layout = memory_format(recipe, device, model)
        footprint = measure_footprint(placed(model, device, layout), examples, recipe, device)
        configuration = {
            "method": method,
            "strength": None if strength is None else float(strength),
            "weighting": describe_weighting(weighting),
            "distance": distance,
            "recipe": describe(recipe),
            "seed": seed,
            "validation": float(validation),
            "earlier": None if earlier is None else describe(list(earlier)),
            "schedule": schedule,
            "data": examples.digest(),
            "model": describe_model(model),
        }
    check_examples(examples, device)
    examples = examples.to(device)
    return Problem(
        make_model=make_model,
        size=size,
        examples=examples,
        train=train.to(examples.device),
        validation=held_out.to(examples.device),
        classes=classes,
        dtype=dtype_of(model),
        coupling=coupling,
        weighting=weighting,
        outputs=DISTANCES[distance],
        one_pass=one_pass,
        memory_format=layout,
        footprint=footprint,
        stackable=why_not_stackable(model, recipe, device, examples, weighting is None or one_pass) is None,
        recipe=recipe,
        seed=seed,
        earlier=earlier,
        device=device,
        configuration=configuration,
    )


def _checked_recipe(recipe: Recipe | None, schedule: str) -> Recipe:
    """Return the recipe, that of small tables where none is given, or refuse it, before anything is computed."""
    recipe = recipe if recipe is not None else Recipe()
    if not isinstance(recipe, Recipe):
        raise TypeError(f"recipe must be a ge.Recipe, got {type(recipe).__name__}")
    if schedule == "sequential" and (recipe.members_at_once or 1) > 1:
        warnings.warn(
            f"members_at_once={recipe.members_at_once} is for schedule='concurrent': members train one after another",
            stacklevel=4,
        )
    allow_deterministic(recipe)
    return recipe


def as_device(device: torch.device | str | None) -> torch.device:
    """Return the device to train on; None: CUDA where there is one, otherwise the CPU."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = str(device)
    if name.partition(":")[0].lower() == "gpu":
        raise ValueError(f"device must be one of 'cpu', 'cuda'; got {name!r}; did you mean 'cuda'?")
    check_choice("device", name.partition(":")[0], ["cpu", "cuda"])
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def split(labels: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the indices to learn from and those held out, a share of every class, drawn from the seed alone."""
    if isinstance(share, bool) or not isinstance(share, Real) or not 0 <= share < 1:
        raise ValueError(f"validation must be a share of the data, at least 0 and below 1; got {share!r}")
    share, everything = float(share), np.arange(len(labels))
    if share == 0:
        return torch.from_numpy(everything), torch.empty(0, dtype=torch.long)
    kinds, counts = np.unique(labels.numpy(), return_counts=True)
    remedy = "use validation=0 to train on everything and keep each member's last epoch"
    if counts.min() < 2:
        raise SplitError(
            f"class {kinds[counts.argmin()]} has one example, and a stratified validation split needs two of each; "
            f"add examples, or {remedy}"
        )
    held_out = math.ceil(share * len(labels))
    if min(held_out, len(labels) - held_out) < len(kinds):
        raise SplitError(
            f"validation={share} holds out {held_out} of {len(labels)} examples, and both parts need at least one of "
            f"each of {len(kinds)} classes; change validation, or {remedy}"
        )
    from sklearn.model_selection import train_test_split  # as slow to import as torch, and not always needed

    train, held = train_test_split(everything, test_size=share, stratify=labels.numpy(), random_state=seed)
    return torch.from_numpy(train), torch.from_numpy(held)


def _coupling(method: str, strength: float | None, size: int) -> Coupling | None:
    check_choice("method", method, METHODS)
    kind = METHODS[method]
    if kind is None:
        if strength is not None:
            raise ValueError(f"method {method!r} has no strength (lambda_M); got {strength!r}, leave it out")
        return None
    if strength is None:
        raise ValueError(f"method {method!r} needs strength (lambda_M), for example strength=1.0")
    check_number("strength (lambda_M)", strength, least=0.0)
    if strength == 0:  # a constant is left of the term: Deep Ensembles
        return None
    return kind(float(strength), size)


def _check_earlier(earlier: Ensemble | None, size: int, recipe: Recipe) -> None:
    if earlier is None:
        return
    if not isinstance(earlier, Ensemble):
        raise TypeError(f"earlier must be a ge.Ensemble (see Ensemble.from_members), got {type(earlier).__name__}")
    if size <= len(earlier):
        raise ValueError(f"size counts the {len(earlier)} earlier members and must be larger, got {size}")
    if earlier.normalize != recipe.normalize:
        raise ValueError(
            f"earlier was made with normalize={earlier.normalize} and recipe has normalize={recipe.normalize}; "
            "one ensemble needs one of them"
        )


def _checked_weighting(weighting: Weighting | None, examples: Examples) -> Weighting:
    if weighting is None:
        weighting = _default_weighting(examples)
    if not callable(getattr(weighting, "sample", None)):
        raise TypeError(f"weighting must have sample(n, generator), as those of ge.weighting; got {weighting!r}")
    samples = weighting.sample(2, generator(0))
    if not isinstance(samples, Tensor) or samples.shape[1:] != examples.shape or len(samples) != 2:
        found = tuple(samples.shape) if isinstance(samples, Tensor) else type(samples).__name__
        raise ValueError(f"two samples of weighting should have shape {(2, *examples.shape)} as the data, got {found}")
    bytes_for_floats = samples.dtype == torch.uint8 and examples.dtype != torch.uint8
    if bytes_for_floats or samples.is_floating_point() < (examples.dtype.is_floating_point):
        raise ValueError(
            f"samples of weighting are {samples.dtype} while x is {examples.dtype}; use one space for both"
        )
    return weighting


def _default_weighting(examples: Examples) -> Gaussian:
    """Return the paper's p*: a Gaussian at five standard deviations of the data."""
    as_bytes = examples.dtype == torch.uint8
    if not (as_bytes or examples.dtype.is_floating_point):
        raise ValueError(
            f"x holds {examples.dtype}, for which there is no default p*; pass weighting, see ge.weighting"
        )
    if not as_bytes and len(examples.shape) == 3:
        warnings.warn(
            "x looks like images of floating-point type, so p* is an unclipped Gaussian. The published image results "
            "come from samples wrapped to 8 bits and are not reached without: pass uint8 images, or "
            "weighting=ge.weighting.Gaussian.from_data(x, overflow='wrap', low=0, high=1) for a range of [0, 1]",
            stacklevel=5,
        )
    mean, std = moments(examples.chunks())
    return Gaussian(mean, std, overflow="wrap", low=0, high=255) if as_bytes else Gaussian(mean, std)
