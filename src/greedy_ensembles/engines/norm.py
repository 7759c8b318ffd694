"""BatchNorm in training followed by ReLU, with a gradient of its own: the mathematics, on any device.

Of a batch x (plus a shift s a channel), the first n rows are normalised by their own mean and variance, which update
the running statistics; other rows, if there are any, are normalised by the running ones, just updated (`frozen`), or by
those of the first rows. With a = w/std,

    y = relu(a (x - center) + b),    center = mean, or running mean - s for frozen rows,

and, for the gradient g of what ReLU let through and h = (x - center)/std,

    dw = sum g h,  db = sum g  (over all rows),    ds = sum over frozen rows of a g,
    dx = a (g - G/n - h H/n)  for the first rows,    a g  for the others,

where G and H are the sums of g and of g h over all rows that are not frozen: those that the mean and variance of the
first rows act on.

The four passes over the activations (moments, output, sums of the gradient, gradient) are Triton kernels on a GPU
(`norm_passes`) and PyTorch elsewhere; the latter is what the tests hold against autograd, and the kernels against it.
A fifth is all that predictions need, where every row is normalised by the running statistics.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from greedy_ensembles.engines.kernels import can_launch, on_device_of, refuse_second_derivatives


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
    shift: Tensor  #: of a g over frozen rows: the gradient of the shift


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


def norm_relu(x: Tensor, layer: nn.BatchNorm2d, shift: Tensor | None, first_rows: int, frozen: bool = True) -> Tensor:
    """Normalise and activate a batch (n, channels, height, width) and update the layer's running statistics.

    Rows after the first are normalised by the running statistics if `frozen`, otherwise by those of the first rows.
    """
    buffers = layer.running_mean, layer.running_var, layer.num_batches_tracked
    settings = first_rows, frozen, layer.momentum, layer.eps
    return _NormReLU.apply(x, layer.weight, layer.bias, shift, buffers, *settings)  # type: ignore[no-any-return, no-untyped-call]


def norm_relu_prediction(x: Tensor, layer: nn.BatchNorm2d, shift: Tensor | None = None) -> Tensor:
    """Normalise a batch (n, channels, height, width) by the running statistics, and activate it; without gradients."""
    with on_device_of(x):
        return _unflat(_passes(x).prediction(_flat(x), Given.by(layer, shift)), x)


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
    ) -> Tensor:
        passes = _passes(x)
        flat = _flat(x)
        count = first_rows * x.shape[2] * x.shape[3]
        with on_device_of(x):
            coefficients = passes.moments(flat, count, frozen, weight, shift, buffers, momentum, eps)
            # Not a view of what the pass makes: autograd lets nobody change a view in place that a function returned.
            y = torch.empty_like(x, memory_format=torch.channels_last)
            passes.output(flat, count, coefficients, bias, _flat(y))
        ctx.save_for_backward(x, bias, *coefficients)
        ctx.count, ctx.frozen, ctx.has_shift = count, frozen, shift is not None
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, bias, *rest = ctx.saved_tensors
        refuse_second_derivatives(x)
        coefficients, passes = Coefficients(*rest), _passes(x)
        flat, gradient = _flat(x), _flat(gradients[0].to(x.dtype))
        with on_device_of(x):
            sums = passes.gradient_sums(flat, gradient, ctx.count, ctx.frozen, coefficients, bias)
            dx = passes.gradient(flat, gradient, ctx.count, coefficients, bias, sums)
        shift = sums.shift if ctx.has_shift else None
        return _unflat(dx, x), sums.weight, sums.bias, shift, None, None, None, None, None


def _flat(x: Tensor) -> Tensor:
    """Return (rows, channels), a view of a batch that lies channels last."""
    return x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).view(-1, x.shape[1])


def _unflat(flat: Tensor, x: Tensor) -> Tensor:
    n, channels, height, width = x.shape
    return flat.view(n, height, width, channels).permute(0, 3, 1, 2)


def _passes(x: Tensor) -> Any:
    if not x.is_cuda:
        return TorchPasses
    from greedy_ensembles.engines.norm_passes import TritonPasses  # where there is a GPU, there is Triton

    return TritonPasses


class TorchPasses:
    """The passes in PyTorch, one line of mathematics each; x is (rows, channels), `count` its first rows."""

    @staticmethod
    def moments(
        x: Tensor,
        count: int,
        frozen: bool,
        weight: Tensor,
        shift: Tensor | None,
        buffers: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Coefficients:
        """Update the running statistics, and return what to normalise by."""
        running_mean, running_var, tracked = buffers
        s = torch.zeros_like(weight) if shift is None else shift
        var, mean = torch.var_mean(x[:count].float(), dim=0, correction=0)
        running_mean.lerp_(mean + s, momentum)
        running_var.lerp_(var * (count / max(count - 1, 1)), momentum)
        tracked += 1
        center = torch.stack([mean, running_mean - s if frozen else mean])
        rstd = torch.rsqrt(torch.stack([var, running_var if frozen else var]) + eps)
        return Coefficients(weight * rstd, center, rstd)

    @staticmethod
    def output(x: Tensor, count: int, by: Coefficients, bias: Tensor, y: Tensor) -> None:
        """Write the activated, normalised rows into y."""
        y.copy_(_before_relu(x, count, by, bias).relu())

    @staticmethod
    def gradient_sums(x: Tensor, gradient: Tensor, count: int, frozen: bool, by: Coefficients, bias: Tensor) -> Sums:
        """Return sums of the gradient over rows."""
        g = _let_through(x, gradient, count, by, bias)
        products = g * _normalised(x, count, by)
        free = count if frozen else len(x)
        return Sums(g[:free].sum(0), products[:free].sum(0), products.sum(0), g.sum(0), g[free:].sum(0) * by.scale[1])

    @staticmethod
    def gradient(x: Tensor, gradient: Tensor, count: int, by: Coefficients, bias: Tensor, sums: Sums) -> Tensor:
        """Return the gradient with respect to x."""
        g, h = _let_through(x, gradient, count, by, bias), _normalised(x, count, by)
        first = by.scale[0] * (g[:count] - sums.mean / count - h[:count] * (sums.variance / count))
        return torch.cat([first, by.scale[1] * g[count:]]).to(x.dtype)

    @staticmethod
    def prediction(x: Tensor, given: Given) -> Tensor:
        """Return rows normalised by given statistics, and activated."""
        scale = given.weight.float() * torch.rsqrt(given.variance.float() + given.eps)
        return ((x.float() - given.mean.float()) * scale + given.bias.float()).relu().to(x.dtype)


def _groups(values: Tensor, rows: int, count: int) -> Tensor:
    """Return (rows, channels) of what is (2, channels)."""
    return torch.cat([values[0].expand(count, -1), values[1].expand(rows - count, -1)])


def _before_relu(x: Tensor, count: int, by: Coefficients, bias: Tensor) -> Tensor:
    scale, center = (_groups(values, len(x), count) for values in (by.scale, by.center))
    return (x.float() - center) * scale + bias


def _normalised(x: Tensor, count: int, by: Coefficients) -> Tensor:
    rstd, center = (_groups(values, len(x), count) for values in (by.rstd, by.center))
    return (x.float() - center) * rstd


def _let_through(x: Tensor, gradient: Tensor, count: int, by: Coefficients, bias: Tensor) -> Tensor:
    return gradient.float() * (_before_relu(x, count, by, bias) > 0)
