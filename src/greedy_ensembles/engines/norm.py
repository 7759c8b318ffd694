"""BatchNorm in training followed by ReLU, with a gradient of its own: the mathematics, and where kernels can run.

Of a batch x, the first n rows are normalised by their own mean and variance, which update the running statistics; other
rows, if there are any, are normalised by the running ones, just updated (`frozen`), or by those of the first rows. With
a = w/std,

    y = relu(a (x - center) + b),    center = mean, or running mean - s for frozen rows,

where s is what x lacks, if anything: the bias of a convolution. The running mean counts it, as if it had been added.
For the gradient g of what ReLU let through and h = (x - center)/std,

    dw = sum g h,  db = sum g  (over all rows),    ds = a sum g  (over frozen rows),
    dx = a (g - G/n - h H/n)  for the first rows,    a g  for the others,

where G and H are the sums of g and of g h over all rows that are not frozen: those that the mean and variance of the
first rows act on.

The four passes over the activations (moments, output, sums of the gradient, gradient) are kernels (`norm_kernels`) in
Triton, which is installed with PyTorch on Linux and compiles them when they are first needed. A fifth pass is all that
predictions need, where every row is normalised by the running statistics.
"""

import functools
import importlib.util
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from greedy_ensembles.checks import first_line
from greedy_ensembles.method.batchnorm import is_traced


class Coefficients(NamedTuple):
    """What both groups of rows are normalised by, each (2, channels): first rows, others."""

    scale: Tensor
    center: Tensor
    rstd: Tensor


class Sums(NamedTuple):
    """Sums of the gradient over rows, each (channels,)."""

    mean: Tensor  #: of g, over rows that are not frozen: what the mean passes on
    variance: Tensor  #: of g h, over rows that are not frozen: what the variance passes on
    weight: Tensor  #: of g h over all rows: the gradient of the weight
    bias: Tensor  #: of g over all rows: the gradient of the bias


class Given(NamedTuple):
    """What predictions normalise by; tensors are (channels,)."""

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    eps: float

    @classmethod
    def by(cls, layer: nn.BatchNorm2d, shift: Tensor | None = None) -> "Given":
        """Return what a layer learned and counted, for inputs that lack a shift."""
        assert layer.running_mean is not None
        assert layer.running_var is not None
        mean = layer.running_mean if shift is None else layer.running_mean - shift
        return cls(layer.weight, layer.bias, mean, layer.running_var, layer.eps)


def can_fuse(layer: nn.BatchNorm2d, x: Tensor) -> bool:
    """Return whether the kernels train this layer on this input."""
    return can_predict(layer, x) and layer.momentum is not None and layer.weight.dtype == torch.float32


def can_predict(layer: nn.BatchNorm2d, x: Tensor) -> bool:
    """Return whether the kernels take this layer and input: channels last on a GPU, as tensor cores have them."""
    return (
        can_launch(x)
        and x.dtype in (torch.bfloat16, torch.float32)
        and x.ndim == 4
        and x.shape[1] == layer.num_features
        and x.is_contiguous(memory_format=torch.channels_last)
        and layer.running_mean is not None
        and layer.weight is not None
    )


def norm_relu(
    x: Tensor,
    layer: nn.BatchNorm2d,
    first_rows: int,
    frozen: bool = True,
    shift: Tensor | None = None,
    passes: Any = None,
) -> Tensor:
    """Normalise and activate a batch (n, channels, height, width) and update the layer's running statistics.

    It trains on `first_rows`. `shift` is what x lacks in every channel; `passes` may stand in for the kernels.
    """
    buffers = layer.running_mean, layer.running_var, layer.num_batches_tracked
    settings = first_rows, frozen, layer.momentum, layer.eps, passes or _kernels()
    return _NormReLU.apply(x, layer.weight, layer.bias, shift, buffers, *settings)  # type: ignore[no-any-return, no-untyped-call]


def norm_relu_prediction(x: Tensor, layer: nn.BatchNorm2d, shift: Tensor | None = None, passes: Any = None) -> Tensor:
    """Normalise a batch (n, channels, height, width) by the running statistics, and activate it; without gradients."""
    with on_device_of(x):
        return _unflat((passes or _kernels()).prediction(_flat(x), Given.by(layer, shift)), x)


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        shift: Tensor | None,
        buffers: tuple[Tensor, Tensor, Tensor],
        first_rows: int,
        frozen: bool,
        momentum: float,
        eps: float,
        passes: Any,
    ) -> Tensor:
        flat = _flat(x)
        count = first_rows * x.shape[2] * x.shape[3]
        with on_device_of(x):
            if shift is None:
                coefficients = passes.moments(flat, count, frozen, weight, buffers, momentum, eps)
            else:
                mean = buffers[0] - shift
                coefficients = passes.moments(flat, count, frozen, weight, (mean, *buffers[1:]), momentum, eps)
                torch.add(mean, shift, out=buffers[0])
            # Not a view of what the pass makes: autograd lets nobody change a view in place that a function returned.
            y = torch.empty_like(x, memory_format=torch.channels_last)
            passes.output(flat, count, coefficients, bias, _flat(y))
        ctx.save_for_backward(x, bias, *coefficients)
        ctx.count, ctx.frozen, ctx.has_shift, ctx.passes = count, frozen, shift is not None, passes
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, bias, *rest = ctx.saved_tensors
        refuse_second_derivatives(x)
        coefficients, passes = Coefficients(*rest), ctx.passes
        flat, gradient = _flat(x), _flat(gradients[0].to(x.dtype))
        with on_device_of(x):
            sums = passes.gradient_sums(flat, gradient, ctx.count, ctx.frozen, coefficients, bias)
            dx = passes.gradient(flat, gradient, ctx.count, coefficients, bias, sums)
        shift = coefficients.scale[1] * (sums.bias - sums.mean) if ctx.has_shift else None
        return _unflat(dx, x), sums.weight, sums.bias, shift, None, None, None, None, None, None


def _flat(x: Tensor) -> Tensor:
    """Return (rows, channels), a view of a batch that lies channels last."""
    return x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).view(-1, x.shape[1])


def _unflat(flat: Tensor, x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    return flat.view(n, height, width, channels).permute(0, 3, 1, 2)


def _kernels() -> Any:
    from greedy_ensembles.engines.norm_kernels import TritonPasses  # where there is a GPU, there is Triton

    return TritonPasses


def can_launch(x: Tensor) -> bool:
    """Return whether kernels can take a tensor: it lies on a GPU, has values of its own, and there is a compiler."""
    return x.is_cuda and not is_traced() and has_kernels()


@functools.cache
def has_kernels() -> bool:
    """Return whether there is a compiler for the kernels, and whether it works for the GPU that is here."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # of any kind: most often, there is no C compiler
        why = first_line(error)
        warnings.warn(f"Triton does not work here ({why}); PyTorch's own kernels are slower", stacklevel=2)
        return False
    return True


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Return the block in which kernels are launched where x lies: left alone, Triton takes the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def refuse_second_derivatives(x: Tensor) -> None:
    """Raise where a gradient by kernels is to be differentiated again: what they compute has no history."""
    if x.is_cuda and torch.is_grad_enabled():
        raise RuntimeError(
            "gradients of this layer cannot be differentiated again (create_graph=True) where it runs kernels of our "
            "own: on a GPU, on images that lie channels last. Give them in PyTorch's usual layout, or use the CPU"
        )
