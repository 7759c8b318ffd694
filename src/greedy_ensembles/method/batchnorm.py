"""Keeping samples of p* out of BatchNorm's statistics (Section 4.2: freezing it helped convergence substantially).

The paper normalises them by the running statistics, which trail the weights by some ten steps. Where the learning rate
is high, the diversity term exploits that. The mean of a channel does not matter for the examples, since BatchNorm takes
it out of them. So a member can keep moving it, stay ahead of its running mean, and differ from the others on p* as long
as it moves: right in training, wrong in eval mode, and like the others again when the learning rate falls. Normalised
by the statistics of the step's examples, with gradients through these, samples have no such loophole: what BatchNorm
takes out of the examples is taken out of them, too.
"""

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from greedy_ensembles.checks import check_choice, check_count, check_kind
from greedy_ensembles.inputs import Inputs, concatenate, each, length, logits_of, take

#: What samples of p* are normalised by: the running statistics, or those of the examples they share a pass with.
Statistics = Literal["running", "batch"]


@contextmanager
def frozen_batchnorm(model: nn.Module) -> Iterator[None]:
    """Run BatchNorm layers of `model` on their running statistics, without updating them, inside the block.

    Affine parameters still receive gradients, and dropout stays as it was. For a training loop of your own::

        with ge.frozen_batchnorm(model):
            outputs = model(weighting_samples).softmax(dim=1)
        ge.diversity_term(outputs, earlier, strength, size).backward()

    Give a layer right before BatchNorm no bias. BatchNorm takes a bias out of the training examples, so the loss does
    not depend on it, and the diversity term here does. It moves the bias ahead of the running mean, and a member can
    then be right in training and wrong in eval mode, all the more with Adam.
    """
    check_kind("model", model, nn.Module, "an nn.Module")
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


@contextmanager
def split_batchnorm(model: nn.Module, count: int, statistics: Statistics = "running") -> Iterator[None]:
    """Train BatchNorm on the first `count` rows of a batch alone, so that examples and samples of p* share a pass.

    These rows are normalised by their own statistics and update the running ones. The model must keep the rows of the
    batch apart, and in their order, in front of every BatchNorm layer.

    Args:
        model: the network; layers in eval mode stay as they are.
        count: how many rows, from the first on, are training examples; the others are samples of p*.
        statistics: what normalises these others. "running": the running statistics, just updated, as in a second pass
            inside `frozen_batchnorm`. "batch": those of the first rows, with gradients.
    """
    check_kind("model", model, nn.Module, "an nn.Module")
    check_count("count", count, least=1)
    check_choice("statistics", statistics, get_args(Statistics))
    settings = {"first_rows": count, "frozen": statistics == "running"}
    layers = {layer: settings for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training}
    with _replaced(layers, "normalise", _split_forward):
        yield


class TwoPasses:
    """What `split_batchnorm` does in one pass, in two: of the examples, and of the samples of p* after them.

    >>> model, examples, samples = nn.BatchNorm1d(2), torch.randn(8, 2), torch.randn(3, 2)
    >>> passes = TwoPasses(model, "batch")
    >>> with passes.of_examples():
    ...     logits = model(examples)
    >>> with passes.of_samples():
    ...     others = model(samples)

    A layer that is called several times in a pass uses the statistics of the examples in the order of its calls.
    """

    def __init__(self, model: nn.Module, statistics: Statistics) -> None:
        self._model, self._statistics = model, statistics
        self._recorded: dict[_BatchNorm, list[tuple[Tensor, Tensor]]] = {
            layer: []
            for layer in model.modules()
            if statistics == "batch" and isinstance(layer, _BatchNorm) and layer.training
        }

    @contextmanager
    def of_examples(self) -> Iterator[None]:
        """Record the statistics of what every layer is given inside the block, where it trains as usual."""

        def record(layer: nn.Module, given: tuple[Tensor, ...]) -> None:
            self._recorded[layer].append(_moments(given[0]))  # type: ignore[index]

        hooks = [layer.register_forward_pre_hook(record) for layer in self._recorded]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def of_samples(self) -> AbstractContextManager[None]:
        """Return the block in which samples are normalised, by recorded statistics or running ones; none is updated."""
        if self._statistics == "running":
            return frozen_batchnorm(self._model)
        recorded = {layer: {"recorded": iter(found)} for layer, found in self._recorded.items()}
        return _replaced(recorded, "forward", _recorded_forward)


@contextmanager
def _replaced(layers: dict[_BatchNorm, dict[str, Any]], method: str, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Give layers attributes and another forward pass inside the block.

    Where a layer has no `method` of that name, its `forward` is replaced: one that does more than normalise has its
    normalisation in a method `normalise`.
    """
    kinds = [type(layer) for layer in layers]
    for (layer, attributes), kind in zip(layers.items(), kinds, strict=True):
        vars(layer).update(attributes)
        layer.__class__ = _kind_with(kind, method if hasattr(kind, method) else "forward", forward)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for (layer, attributes), kind in zip(layers.items(), kinds, strict=True):
            layer.__class__ = kind
            for name in attributes:
                delattr(layer, name)


@functools.cache  # a class, and always the same one, since compilers look there for the method
def _kind_with(kind: type[_BatchNorm], method: str, forward: Callable[..., Tensor]) -> type:
    return type(kind.__name__, (kind,), {method: forward})


def _recorded_forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    return _normalised(x, layer, *next(layer.recorded))  # type: ignore[call-overload]


def _split_forward(layer: _BatchNorm, x: Tensor) -> Tensor:
    count: int = layer.first_rows  # type: ignore[assignment]
    weight, bias, mean, variance = layer.weight, layer.bias, layer.running_mean, layer.running_var
    momentum = _momentum(layer)
    if len(x) == count:  # PyTorch's backward pass of no rows at all ends the process
        return batch_norm(x, mean, variance, weight, bias, True, momentum, layer.eps)
    if not layer.frozen and x.device.type == "cpu" and not is_traced():
        return _SplitBatchNorm.apply(x, weight, bias, mean, variance, count, momentum, layer.eps)  # type: ignore[no-any-return, no-untyped-call]
    first, others = x.split([count, len(x) - count])  # not slices, whose gradients would be padded to all of x
    trained = batch_norm(first, mean, variance, weight, bias, True, momentum, layer.eps)
    if not layer.frozen:
        return torch.cat([trained, _normalised(others, layer, *_moments(first))])
    if torch.compiler.is_compiling() and mean is not None and variance is not None:
        mean, variance = _copied(mean), _copied(variance)
    # Without running statistics a frozen layer uses those of the batch it gets, as PyTorch's own does in eval mode.
    return torch.cat([trained, batch_norm(others, mean, variance, weight, bias, mean is None, momentum, layer.eps)])


class _SplitBatchNorm(torch.autograd.Function):
    """What autograd makes of `_moments` and `_normalised`, in PyTorch's own passes over the batch: four times as fast.

    With g the gradients and h = (x - mean)/std of the other rows, and n how many values of a channel the first rows
    have, the mean and variance pass on to the first rows, beside their own gradient,

        -w/(n std) (sum g + h_first sum g h).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_variance: Tensor | None,
        count: int,
        momentum: float,
        eps: float,
    ) -> Tensor:
        first, others = x[:count], x[count:]
        running = running_mean, running_variance
        trained, mean, rstd = torch.native_batch_norm(first, weight, bias, *running, True, momentum, eps)
        variance = rstd.square().reciprocal() - eps
        ctx.save_for_backward(x, weight, mean, rstd, variance)
        ctx.count, ctx.eps = count, eps
        return torch.cat([trained, batch_norm(others, mean, variance, weight, bias, False, 0.0, eps)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, given, mean, rstd, variance = ctx.saved_tensors
        count, eps, weight = ctx.count, ctx.eps, torch.ones_like(mean) if given is None else given
        (first, others), (g, h) = ((one[:count], one[count:]) for one in (x, gradient))
        backward = torch.ops.aten.native_batch_norm_backward
        trained = backward(g, first, weight, None, None, mean, rstd, True, eps, [True] * 3)
        stayed = backward(h, others, weight, mean, variance, None, None, False, eps, [True] * 3)
        share = -weight * rstd * (x.shape[1] / first.numel())
        by_statistics = batch_norm(first, mean, variance, share * stayed[1], share * stayed[2], False, 0.0, eps)
        affine = (None, None) if given is None else (trained[1] + stayed[1], trained[2] + stayed[2])
        return torch.cat([trained[0].add_(by_statistics), stayed[0]]), *affine, None, None, None, None, None


def is_traced() -> bool:
    """Return whether tensors stand for others: for compilers, inside torch.vmap and torch.func, or torch.jit.trace."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._is_tracing()


@torch.library.custom_op("greedy_ensembles::copied", mutates_args=())
def _copied(x: Tensor) -> Tensor:
    """Return a copy that compilers must keep for the backward pass.

    Left to themselves they compute the updated running statistics there once more, from buffers updated by then.
    """
    return x.clone()


@_copied.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of every channel, in at least single precision, with gradients."""
    dims = [d for d in range(x.ndim) if d != 1]
    variance, mean = torch.var_mean(x.to(torch.promote_types(x.dtype, torch.float32)), dims, correction=0)
    return mean, variance


def _normalised(x: Tensor, layer: _BatchNorm, mean: Tensor, variance: Tensor) -> Tensor:
    """Return x normalised by these statistics; gradients flow through them, too."""
    scale = torch.rsqrt(variance + layer.eps)
    if layer.affine:
        scale = scale * layer.weight
    shape = (-1, *(1,) * (x.ndim - 2))
    normalised = (x - mean.view(shape)) * scale.view(shape)
    return (normalised + layer.bias.view(shape) if layer.affine else normalised).to(x.dtype)


def _momentum(layer: _BatchNorm) -> float:
    """Return the weight of this batch in the running statistics, counting the batch as BatchNorm's own forward does."""
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.add_(1)
    if layer.momentum is not None:
        return layer.momentum
    return 0.0 if layer.num_batches_tracked is None else 1.0 / float(layer.num_batches_tracked)


def check_statistics(model: nn.Module, samples: bool) -> None:
    """Warn of frozen BatchNorm whose statistics move in training; refuse InstanceNorm that counts samples of p*."""
    frozen = {
        part
        for module in model.modules()
        if list(module.parameters()) and not any(p.requires_grad for p in module.parameters())
        for part in module.modules()
    }
    moving = [
        name
        for name, layer in model.named_modules()
        if isinstance(layer, _BatchNorm) and layer.training and layer.track_running_stats and layer.momentum != 0
        if layer in frozen
    ]
    if moving:
        warnings.warn(
            f"{len(moving)} BatchNorm layers are frozen (the first is {moving[0]!r}), and their running statistics "
            "are not: training moves them. To keep them, use ge.models.heads, override train(mode) of the model so "
            "that it leaves the frozen part in eval mode, or set momentum=0 in these layers",
            stacklevel=5,
        )
    if samples and any(isinstance(layer, _InstanceNorm) and layer.track_running_stats for layer in model.modules()):
        raise ValueError(
            "the model has InstanceNorm with track_running_stats=True, which would count samples of p*; leave that out"
        )


def filled_buffer(model: nn.Module, first: Inputs, others: Inputs) -> str | None:
    """Return a buffer, but for BatchNorm's, that training fills from its inputs; None where there is none.

    Two copies of the model are given other inputs, and the same random numbers. What both leave the same, such as the
    vectors of a spectral norm, depends on the weights alone.
    """
    rows, filled = slice(min(length(first), length(others))), []
    try:
        for x in (first, others):
            tried = copy.deepcopy(model).train()
            torch.manual_seed(0)
            with torch.no_grad(), frozen_batchnorm(tried):
                logits_of(tried, take(x, rows))
            filled.append(dict(tried.named_buffers()))
    except Exception:  # a model may refuse to be copied, or these batches
        return None
    one, other = filled
    pairs = ((name, own, other.get(name, own)) for name, own in one.items())
    return next((name for name, own, its in pairs if not torch.equal(own.nan_to_num(), its.nan_to_num())), None)


def rows_stay_rows(model: nn.Module, first: Inputs, others: Inputs) -> bool:
    """Return whether `split_batchnorm` gives this model what two passes would, tried on a few inputs.

    A copy of the model is tried, in double precision, so that rounding is no difference, with layers other than
    BatchNorm in eval mode, so that nothing random is one. The model may change these inputs.
    """
    try:
        model = copy.deepcopy(model).double()
        first, others = (each(lambda one: one.double() if one.is_floating_point() else one, x) for x in (first, others))
        for layer in model.modules():
            layer.training = isinstance(layer, _BatchNorm)
        statistics = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            with split_batchnorm(model, length(first)):
                together = logits_of(model, concatenate([first, others]))
            updated = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(statistics)
            separate = torch.cat([logits_of(model, first), logits_of(model.eval(), others)])
        pairs = [(updated[name], value) for name, value in model.state_dict().items()]
        pairs.append((together, separate))
        return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9, equal_nan=True) for a, b in pairs)
    except Exception:  # a model may refuse to be copied, double precision or the batch in ways of its own
        return False
