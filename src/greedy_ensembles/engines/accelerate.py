"""Layers of any network, swapped for faster ones and back.

Between convolutions, small networks spend most of their time on moving activations through memory. BatchNorm followed
by ReLU, as one operation (`norm`), touches them as rarely as can be; and the bias of a convolution in front of it need
not be added in a pass of its own, nor its gradient summed in another. `accelerate` finds where a network has these:

    with accelerate(model):
        loss(model(x), y).backward()

Parameters, buffers and their names stay what they are, so optimizers and checkpoints notice nothing. The layers run
kernels of our own where these can run, on a GPU and on images that lie channels last; elsewhere they do what they did.

Which layer follows which is read off symbolic traces (`torch.fx`). A network that cannot be traced is left as it is. A
trace sees one way through the network: where a later call goes another way, and an activated output reaches something
other than its ReLU, that is a RuntimeError.
"""

import copy
import random
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from greedy_ensembles.engines import norm
from greedy_ensembles.engines.norm import can_fuse, can_predict, norm_relu, norm_relu_prediction

_RELU_FUNCTIONS = {functional.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_}
_RELU_METHODS = {"relu", "relu_"}


@contextmanager
def accelerate(*models: nn.Module) -> Iterator[None]:
    """Swap layers of the models for faster ones inside the block.

    Calls of PyTorch's functions cost the host a little more there: it is meant for what is recorded or large.
    """
    with ExitStack() as stack:
        found = [swap for model in models for swap in swaps(model)]
        for layer, kind in found:
            stack.callback(setattr, layer, "__class__", type(layer))
            layer.__class__ = kind
        if found:
            stack.enter_context(_Marks())
        yield


class BatchNormReLU(nn.BatchNorm2d):
    """BatchNorm2d in front of ReLU: where the kernels run, its output is already activated, and marked so.

    Inside `split_batchnorm` it trains on the `first_rows` of the batch, and `frozen` says whether the other rows are
    normalised by the running statistics.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised input, activated where the kernels run."""
        shift: Tensor | None = vars(x).pop("lacks", None)
        if self.training and can_fuse(self, x):
            y = norm_relu(x, self, getattr(self, "first_rows", len(x)), getattr(self, "frozen", True), shift)
        elif not (self.training or torch.is_grad_enabled()) and can_predict(self, x):
            y = norm_relu_prediction(x, self, shift)
        else:
            return self.normalise(x if shift is None else x + shift.to(x.dtype)[:, None, None])
        y.is_activated = True  # type: ignore[attr-defined]
        return y

    def normalise(self, x: Tensor) -> Tensor:
        """Return the normalised input; `split_batchnorm` puts its own method here."""
        return super().forward(x)


class ConvolutionBeforeNorm(nn.Conv2d):
    """Conv2d in front of `BatchNormReLU`, which adds the bias where kernels run; outputs without it are marked."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution, with or without the bias."""
        if not norm.can_launch(x):
            return super().forward(x)
        y: Tensor = self._conv_forward(x, self.weight, None)
        y.lacks = self.bias  # type: ignore[attr-defined]
        return y


class _Marks(TorchFunctionMode):
    """Makes ReLU return marked outputs as they are, however it is called, and refuses them to any other function.

    Where a function other than `BatchNormReLU` gets an output that lacks its bias, the bias is added first.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # The arguments of a copy hold all copies before it; to look through them every time would be slow.
        for value in args[:1] if func is Tensor.__deepcopy__ else tree_leaves((args, kwargs)):
            if type(value) is not Tensor:
                continue
            if (bias := vars(value).pop("lacks", None)) is not None:
                with torch.set_grad_enabled(torch.is_grad_enabled() or value.requires_grad):
                    value.add_(bias.to(value.dtype)[:, None, None])
            if hasattr(value, "is_activated"):
                if func not in _RELU_FUNCTIONS:
                    raise RuntimeError("this network cannot be accelerated: not every call activates the same layers")
                del value.is_activated  # changed in place, it may need another ReLU
                return value
        return func(*args, **(kwargs or {}))


def swaps(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    """Return the layers of a network that can be swapped, and the class that each gets."""
    if _has_any_global_hook() or not any(type(layer) is nn.BatchNorm2d for layer in model.modules()):
        return []
    try:
        traces = [_trace(model, training) for training in (True, False)]
    except Exception:  # of any kind: networks may be anyone's
        return []
    norms = _always(traces, nn.BatchNorm2d, _is_relu)
    convolutions = _always(traces, nn.Conv2d, lambda user, _: user.op == "call_module" and user.target in norms)
    biased = [name for name in convolutions if model.get_submodule(name).bias is not None]
    kinds = [(name, BatchNormReLU) for name in norms] + [(name, ConvolutionBeforeNorm) for name in biased]
    return [(model.get_submodule(name), kind) for name, kind in kinds]


def has_hooks(layer: nn.Module) -> bool:
    """Return whether a layer has hooks of its own."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks)


def is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a layer is exactly of a class, without hooks and without a `forward` of its own."""
    return type(layer) is kind and "forward" not in vars(layer) and not has_hooks(layer)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is not traced into: PyTorch's layers, and modules with hooks."""
        return has_hooks(m) or super().is_leaf_module(m, module_qualified_name)


class _Trace(NamedTuple):
    model: nn.Module  #: a copy
    calls: dict[str, list[fx.Node]]  #: of its layers, by name
    remembered: set[fx.Node]  #: results that modules keep as attributes


def _trace(model: nn.Module, training: bool) -> _Trace:
    # A copy, which shares the parameters, since a forward pass may change a module.
    traced = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()}).train(training)
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers()) if tensor.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(sorted(device.index for device in devices)), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = _Tracer().trace(traced)
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
    calls: dict[str, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target].append(node)
    kept = tree_leaves([vars(module) for module in traced.modules()])
    return _Trace(traced, calls, {value.node for value in kept if type(value) is fx.Proxy})


def _always(traces: list[_Trace], kind: type[nn.Module], follows: Callable[[fx.Node, nn.Module], bool]) -> list[str]:
    """Return the names of plain layers of a class whose every result has one user, for which `follows` is true."""
    verdicts: dict[str, bool] = {}
    for traced, calls, remembered in traces:
        leaves = {name: traced.get_submodule(name) for name in calls}
        # Layers inside a leaf of the trace may be called there, which the trace does not show.
        inside = {id(part) for leaf in leaves.values() for part in leaf.modules() if part is not leaf}
        for name, layer in leaves.items():
            single = all(len(node.users) == 1 and follows(next(iter(node.users)), traced) for node in calls[name])
            proper = is_plain(layer, kind) and id(layer) not in inside and remembered.isdisjoint(calls[name])
            verdicts[name] = verdicts.get(name, True) and proper and single
    return [name for name, verdict in verdicts.items() if verdict]


def _is_relu(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        return is_plain(model.get_submodule(str(node.target)), nn.ReLU)
    if node.op == "call_method":
        return node.target in _RELU_METHODS
    return node.op == "call_function" and node.target in _RELU_FUNCTIONS
