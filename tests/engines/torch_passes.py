"""The passes of `engines.norm` in PyTorch: what tests hold against autograd, and the kernels against it."""

import torch
from torch import Tensor

from greedy_ensembles.engines.norm import Coefficients, Given, Sums


class TorchPasses:
    """The passes in PyTorch, one line of mathematics each; x is (rows, channels), `count` its first rows."""

    @staticmethod
    def moments(
        x: Tensor,
        count: int,
        frozen: bool,
        weight: Tensor,
        buffers: tuple[Tensor, Tensor, Tensor],
        momentum: float,
        eps: float,
    ) -> Coefficients:
        """Update the running statistics, and return what to normalise by."""
        running_mean, running_var, tracked = buffers
        var, mean = torch.var_mean(x[:count].float(), dim=0, correction=0)
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(var * (count / max(count - 1, 1)), momentum)
        tracked += 1
        center = torch.stack([mean, running_mean if frozen else mean])
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
        return Sums(g[:free].sum(0), products[:free].sum(0), products.sum(0), g.sum(0))

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
