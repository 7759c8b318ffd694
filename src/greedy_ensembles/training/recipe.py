"""The recipe: how one member is trained, whatever the method (Appendix C.1)."""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from greedy_ensembles.checks import check_choice, check_count, check_flag, check_number
from greedy_ensembles.engines.execution import Precision
from greedy_ensembles.inputs import as_normalize
from greedy_ensembles.method import Statistics

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]
Loss = Callable[[Tensor, Tensor], Tensor]
Augmentation = Callable[..., Any]
Score = Callable[[Tensor, Tensor], float]
OptimizerName = Literal["sgd", "adamw"]
Schedule = Literal["anneal", "milestones", "constant"]
Rates = Callable[[float], float]
AugmentationName = Literal["flip_crop", "flip_crop_paper"]
ScoreName = Literal["accuracy", "nll"]


@dataclass(frozen=True)
class Recipe:
    """Epochs, batches, optimizer, learning rate, loss and inputs of a member; the defaults suit a small table.

    Attributes:
        epochs: passes over the training examples.
        batch_size: examples a step; a DataLoader has its own.
        weighting_batch_size: samples of p* a step; None: the batch size.
        weighting_statistics: what BatchNorm normalises samples of p* by: "batch", the statistics of the step's
            examples, with their gradients, or "running", the running statistics (frozen, as in the paper). Those trail
            the weights, which the diversity term can exploit at high learning rates: docs/gotchas.md shows it.
        weighting_samples: size of the p* set that steps choose from; None: as many as there are training examples; of
            data that is not in memory at most 2**26 numbers, of a DataLoader the size of the sample that was taken.
        optimizer: "sgd", "adamw", or a callable from parameters to a ``torch.optim.Optimizer``, which then has its own
            learning rate, momentum and weight decay. A callable whose argument is called ``model`` is given the model
            instead, for groups of parameters by name.
        lr: the learning rate that `schedule` multiplies.
        momentum: of SGD.
        nesterov: whether SGD's momentum is Nesterov's.
        weight_decay: as PyTorch's optimizers define it.
        schedule: "anneal" (constant to 50 % of the epochs, linear to ``lr * lr_scale`` at 90 %, constant after),
            "milestones" (times `gamma` from each of `milestones` on), "constant", or a callable from the share of the
            training that has passed, 0 to 1, to the factor.
        lr_scale: where "anneal" ends.
        lr_updates: whether the learning rate changes at every "step" or, as in the paper, once an "epoch".
        warmup_epochs: the first epochs, over which the learning rate grows linearly from a tenth to all of it; with
            updates once an epoch, five of them have .1, .3, .5, .7 and .9 of it.
        milestones: epochs, counted from 0, from which on the learning rate is multiplied by `gamma` once more.
        gamma: the factor of a milestone.
        loss: a callable from (logits, targets) to a scalar; None: cross-entropy.
        augment: "flip_crop" (flip, reflect-pad 4, crop back), "flip_crop_paper" (as the paper's code does it: pad
            2, and shifts of -2 to +1), or a callable on a batch of inputs as the model gets them; applied to training
            examples alone. A callable of two arguments is given labels, too, and returns (inputs, targets), such as
            mixup's shares of classes (n, classes). Of examples with weights it is given (n, classes): these, at labels.
        accumulate: batches whose gradients are averaged for one update. Above 1, engines take plain steps.
        normalize: (mean, std), numbers or one number a channel, taken out of the inputs of training, p* and prediction
            alike, after uint8 inputs were scaled to [0, 1].
        select_by: by what a member's best epoch is selected on the held-out examples: "accuracy", "nll" (the negative
            log-likelihood, smaller being better), or a callable from probabilities (n, classes) and labels (n,) to a
            number, larger being better. Of equals the latest is kept.
        patience: epochs without improvement after which a member stops; None: it never does.
        clip: the norm that gradients of a member are cut down to; None: they are left as they are.
        ema: decay of weights that are averaged over steps, such as 0.999; a member is then judged, and kept, with its
            average, and with BatchNorm's running statistics as they are: docs/gotchas.md. None: no average.
        precision: "float32", "tf32" (products of a GPU's tensor cores, sums in single precision) or "bf16" (autocast);
            weights and their updates are in the model's own precision always.
        deterministic: whether to use only kernels that give the same result every time; slower on a GPU.
        members_at_once: how many members the concurrent schedule trains together at most; None: all that memory holds.
        num_workers: processes that read the items of a Dataset; 0: they are read in this one. A DataLoader has its own.
        steps_per_epoch: of a DataLoader: how many batches an epoch takes, which a stream needs; None: all.
    """

    epochs: int = 100
    batch_size: int = 128
    weighting_batch_size: int | None = None
    weighting_statistics: Statistics = "batch"
    weighting_samples: int | None = None
    optimizer: OptimizerName | OptimizerFactory = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 1e-4
    schedule: Schedule | Rates = "anneal"
    lr_scale: float = 0.01
    lr_updates: Literal["step", "epoch"] = "step"
    warmup_epochs: int = 0
    milestones: Sequence[int] = ()
    gamma: float = 0.5
    loss: Loss | None = None
    augment: AugmentationName | Augmentation | None = None
    accumulate: int = 1
    normalize: Sequence[float | Sequence[float]] | None = None
    select_by: ScoreName | Score = "accuracy"
    patience: int | None = None
    clip: float | None = None
    ema: float | None = None
    precision: Precision = "float32"
    deterministic: bool = False
    members_at_once: int | None = None
    num_workers: int = 0
    steps_per_epoch: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):  # numbers of numpy become plain ones, which JSON and torch take
            value = getattr(self, field.name)
            if isinstance(value, np.generic):
                object.__setattr__(self, field.name, value.item())
        for name in ("epochs", "batch_size", "accumulate"):
            check_count(name, getattr(self, name), least=1)
        for name in ("warmup_epochs", "num_workers"):
            check_count(name, getattr(self, name), least=0)
        for name in ("weighting_batch_size", "weighting_samples", "members_at_once", "patience", "steps_per_epoch"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), least=1)
        if self.warmup_epochs > self.epochs:
            raise ValueError(f"warmup_epochs is {self.warmup_epochs}, more than the {self.epochs} epochs")
        for name in ("lr", "lr_scale", "gamma", "clip"):
            if name != "clip" or self.clip is not None:
                check_number(name, getattr(self, name), above=0.0)
        check_number("weight_decay", self.weight_decay, least=0.0)
        for name, usual in (("momentum", 0.9), ("ema", 0.999)):
            if (value := getattr(self, name)) is None and name == "ema":
                continue
            check_number(name, value, least=0.0)
            if value >= 1:
                raise ValueError(f"{name} must be below 1, such as {usual}; got {value}")
        check_flag("deterministic", self.deterministic)
        check_flag("nesterov", self.nesterov)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.schedule in ("sequential", "concurrent"):
            rates = ", ".join(map(repr, get_args(Schedule)))
            raise ValueError(
                f"a recipe's schedule is that of its learning rate ({rates}); that of members, {self.schedule!r}, is "
                "an argument of ge.fit, and --schedule on the command line"
            )
        names = {"optimizer": OptimizerName, "schedule": Schedule, "augment": AugmentationName, "select_by": ScoreName}
        for name, known in names.items():
            value = getattr(self, name)
            if not callable(value) and not (name == "augment" and value is None):
                check_choice(name, value, get_args(known))
        check_choice("lr_updates", self.lr_updates, ["step", "epoch"])
        check_choice("precision", self.precision, get_args(Precision), {"fp32": "float32", "bfloat16": "bf16"})
        check_choice("weighting_statistics", self.weighting_statistics, get_args(Statistics))
        if self.loss is not None and not callable(self.loss):
            raise TypeError(f"loss must be a callable of logits and targets, got {self.loss!r}")
        object.__setattr__(self, "normalize", as_normalize(self.normalize))
        if isinstance(self.milestones, str) or not isinstance(self.milestones, Iterable):
            raise TypeError(f"milestones must be a list of epochs, as in [30, 60]; got {self.milestones!r}")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.milestones and self.schedule != "milestones":
            raise ValueError(f"milestones need schedule='milestones', but schedule is {self.schedule!r}")
        for milestone in self.milestones:
            check_count("milestones", milestone, least=0)

    @classmethod
    def paper(cls, dataset: str, model: str, **changes: Any) -> "Recipe":
        """Return the paper's training of a model on a data set, with fields changed as asked.

        It is what the authors' code does as it runs, but for lr_scale, which is that of the paper's table. With fewer
        epochs, its warm-up is a quarter of them at the most.

        Args:
            dataset: "mnist", "cifar10", "cifar100" or "svhn".
            model: "PreResNet8" for "mnist"; for the others "PreResNet20", "PreResNet164", "VGG16BN" or
                "WideResNet28x10".
            changes: fields of the recipe that are to be others.

        >>> Recipe.paper("cifar10", "VGG16BN").lr
        0.05
        >>> Recipe.paper("mnist", "PreResNet8", epochs=2).batch_size
        256
        """
        check_choice("dataset", dataset, ["mnist", "cifar10", "cifar100", "svhn"])
        if dataset == "mnist":
            check_choice("model", model, ["PreResNet8"])
            row = _MNIST
        else:
            check_choice("model", model, _CIFAR_MODELS)
            row = {**_CIFAR, **_CIFAR_MODELS[model]}
        known = {field.name for field in fields(cls)}
        for name in changes:
            check_choice("a field of Recipe", name, known)
        epochs = changes.get("epochs")
        if "warmup_epochs" in row and isinstance(epochs, Integral):
            row = {**row, "warmup_epochs": min(row["warmup_epochs"], int(epochs) // 4)}
        return cls(**{**row, **changes})


# Table 8, and what the authors' code does where the text says otherwise or nothing. Its images of CIFAR and SVHN have
# ImageNet's mean and standard deviation taken out.
_EVERY: dict[str, Any] = {"weighting_statistics": "running", "lr_updates": "epoch"}
_CIFAR: dict[str, Any] = {
    **_EVERY,
    "warmup_epochs": 5,
    "augment": "flip_crop_paper",
    "normalize": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
_CIFAR_MODELS: dict[str, dict[str, Any]] = {
    "PreResNet164": {"lr": 0.1, "nesterov": True, "weight_decay": 1e-4, "lr_scale": 0.01},
    "VGG16BN": {"lr": 0.05, "weight_decay": 5e-4, "lr_scale": 0.01},
    "WideResNet28x10": {"lr": 0.1, "weight_decay": 5e-4, "lr_scale": 0.001},
}
_CIFAR_MODELS["PreResNet20"] = _CIFAR_MODELS["PreResNet164"]
_MNIST: dict[str, Any] = {
    **_EVERY,
    "epochs": 20,
    "batch_size": 256,
    "weight_decay": 1e-5,
    "lr_scale": 1e-4,
    "normalize": (0.1307, 0.3081),
}


def learning_rate_factor(recipe: Recipe, epoch: float) -> float:
    """Return what the learning rate is multiplied by when `epoch` epochs, a fraction included, have passed.

    >>> [learning_rate_factor(Recipe(warmup_epochs=5), t) for t in (0, 5, 50, 90, 100)]
    [0.1, 1.0, 1.0, 0.01, 0.01]
    >>> [learning_rate_factor(Recipe(warmup_epochs=5, lr_updates="epoch"), t) for t in (0, 0.9, 1, 2, 3, 4, 5)]
    [0.1, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    """
    factor = 1.0
    if recipe.lr_updates == "epoch":
        epoch = math.floor(epoch)
    if recipe.schedule == "anneal":
        decline = (epoch / recipe.epochs - 0.5) / (0.9 - 0.5)
        decline = min(max(decline, 0.0), 1.0)
        factor = (1 - decline) + decline * recipe.lr_scale
    elif recipe.schedule == "milestones":
        factor = recipe.gamma ** sum(epoch >= milestone for milestone in recipe.milestones)
    elif callable(recipe.schedule):
        factor = float(recipe.schedule(epoch / recipe.epochs))
    if epoch < recipe.warmup_epochs and recipe.lr_updates == "epoch":
        factor *= (epoch + 0.5) / recipe.warmup_epochs
    elif epoch < recipe.warmup_epochs:
        factor *= 0.1 + 0.9 * epoch / recipe.warmup_epochs
    return factor


def flip_crop(images: Tensor, padding: int = 4, offsets: int | None = None) -> Tensor:
    """Flip each of (n, channels, height, width) images with probability 1/2, and then crop it out of its padded self.

    Random numbers come from the global generator of the images' device.

    Args:
        images: one batch.
        padding: pixels on each side, filled by reflection.
        offsets: from how many of the positions a crop may start; None: all, so that images shift by up to `padding`.
    """
    n, _, height, width = images.shape
    device, offsets = images.device, offsets or 2 * padding + 1
    rows = torch.arange(height, device=device) + torch.randint(offsets, (n, 1), device=device)
    columns = torch.arange(width, device=device) + torch.randint(offsets, (n, 1), device=device)
    flipped = torch.rand(n, 1, device=device) < 0.5
    columns = torch.where(flipped, width + 2 * padding - 1 - columns, columns)  # of the padded image, mirrored
    padded = pad(images, [padding] * 4, mode="reflect")
    index = torch.arange(n, device=device)[:, None, None]
    # Advanced indices around the channel slice put channels last; move them back.
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def flip_crop_paper(images: Tensor) -> Tensor:
    """Flip and crop as the authors' code does: 2 pixels of padding, and never the last position, so -2 to +1 pixels."""
    return flip_crop(images, padding=2, offsets=4)


AUGMENTATIONS: dict[str, Augmentation] = {"flip_crop": flip_crop, "flip_crop_paper": flip_crop_paper}


def takes_targets(augment: Augmentation) -> bool:
    """Return whether an augmentation is one of inputs and targets: a callable that needs two arguments."""
    return len(_required(augment)) == 2


def _required(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the arguments without which something cannot be called; none where that is not known."""
    try:
        arguments = inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters.values()
    except (TypeError, ValueError):
        return []
    placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [one for one in arguments if one.kind in placed and one.default is inspect.Parameter.empty]


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.Optimizer:
    """Return the recipe's optimizer over the parameters that learn, its learning rates noted as the schedule's base."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    # One kernel that updates all parameters is the fastest way where it exists.
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    optimizer: torch.optim.Optimizer
    if callable(recipe.optimizer):
        of_model = [one.name for one in _required(recipe.optimizer)] == ["model"]
        optimizer = recipe.optimizer(model if of_model else parameters)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"the recipe's optimizer must make a torch.optim.Optimizer, got {type(optimizer).__name__}")
        if needed := _required(type(optimizer).step)[1:]:  # beside itself; schedulers of the user's may wrap its own
            raise ValueError(
                f"the recipe's optimizer must take steps without arguments, and {type(optimizer).__name__} needs a "
                f"{needed[0].name}"
            )
        ours = {id(p) for p in model.parameters()}
        if not all(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
            raise ValueError("the recipe's optimizer must move parameters that it is given; it has others")
    elif recipe.optimizer == "adamw":
        optimizer = torch.optim.AdamW(parameters, recipe.lr, weight_decay=recipe.weight_decay, fused=fused)
    else:
        optimizer = torch.optim.SGD(
            parameters,
            recipe.lr,
            recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=fused,
        )
    for group in optimizer.param_groups:
        group["initial_lr"] = group["lr"]
    return optimizer
