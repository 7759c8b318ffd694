"""A fully connected network for tables, and the paper's two-moons network: MLP(2, hidden=(128, 128), classes=2)."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from torch import nn

from greedy_ensembles.checks import check_count, check_kind


class MLP(nn.Sequential):
    """Linear layers of the given hidden widths with ReLU between them, from (n, inputs) to logits (n, classes).

    Args:
        inputs: how many numbers an example has.
        hidden: the width of each hidden layer; empty: a linear model.
        classes: how many logits.
    """

    def __init__(self, inputs: int, hidden: Sequence[int] = (128, 128), classes: int = 2) -> None:
        check_kind("hidden", hidden, Iterable, "the widths of layers, such as (128, 128)")
        hidden = tuple(hidden)
        for name, value in (("inputs", inputs), ("classes", classes), *(("hidden", width) for width in hidden)):
            check_count(name, value, least=1)
        widths = (inputs, *hidden)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], classes))

    def __getitem__(self, index: int | slice) -> nn.Module:
        """Return a layer, or for a slice these layers: `model[:-1]` gives features."""
        layers = list(self)
        return nn.Sequential(*layers[index]) if isinstance(index, slice) else layers[index]
