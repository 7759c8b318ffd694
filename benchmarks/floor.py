"""What a member's step cannot take less than on a GPU: its products at the rate of large ones, its memory read and
written as often as the passes of the engine must, each at the speed at which the GPU copies; no launches, no waiting.
"""

from collections.abc import Callable
from functools import partial

import torch
from result import in_turn
from torch import nn

from greedy_ensembles.models import named

_HALF = 2  # bytes of an activation
#: Moments read the examples alone; then come reading and writing the output; two inputs of the gradient's sums; two
#: inputs and the output of the gradient.
_NORM_PASSES = 2 + 2 + 3
_CALLS = 20  # timed together
_UPDATE = 20  # bytes a weight: itself and its momentum, read and written; its gradient, read


def floor(model: str, rows: int, examples: int, rate: float, bandwidth: float) -> dict[str, float]:
    """Return milliseconds by kind, of a step on `rows` of which `examples` are trained on.

    Args:
        model: a network of the registry, on images of CIFAR-10's shape.
        rows: examples and samples of p*.
        examples: how many of the rows are examples.
        rate: products a second, two operations each.
        bandwidth: bytes a second.
    """
    with torch.device("meta"):
        net = named(model, 10, 3)()
        products = norms = 0.0

        def multiplied(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            nonlocal products
            weight = layer.weight
            assert isinstance(weight, torch.Tensor)
            places = output.numel() / output.shape[1]  # of which each row has one, or one a pixel
            passes = 2 if inputs[0].shape[1] == 3 else 3  # an image needs no gradient
            touched = _HALF * (inputs[0].numel() + output.numel()) * rows
            products += passes * max(places * weight.numel() * rows / rate, touched / bandwidth)

        def normalised(layer: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
            nonlocal norms
            norms += _HALF * output.numel() * (_NORM_PASSES * rows + examples) / bandwidth

        for layer in net.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                layer.register_forward_hook(multiplied)
            elif isinstance(layer, nn.BatchNorm2d):
                layer.register_forward_hook(normalised)
        net.eval()(torch.empty(1, 3, 32, 32))
    weights = _UPDATE * sum(p.numel() for p in net.parameters()) / bandwidth
    return {
        "products": 1e3 * products,
        "BatchNorm with ReLU": 1e3 * norms,
        "weights": 1e3 * weights,
    }


def rates() -> tuple[float, float]:
    """Return products a second of large matrices in bf16, and bytes a second of copies, of this GPU."""
    n = 8192
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    x = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)

    def again(run: Callable[[], object]) -> None:
        for _ in range(_CALLS):
            run()

    products, copies = in_turn(partial(again, lambda: a @ b), partial(again, lambda: y.copy_(x)), repeats=3)
    return _CALLS * n**3 / products, _CALLS * 2 * x.nbytes / copies
