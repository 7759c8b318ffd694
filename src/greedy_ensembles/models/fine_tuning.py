"""Fine-tuning: one frozen backbone under the heads of all members."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from greedy_ensembles.checks import check_factory, check_kind

#: Inside `once`: what each backbone was given last, and what it made of it.
_kept: ContextVar[dict[nn.Module, tuple[Any, Tensor]] | None] = ContextVar("features", default=None)


@contextmanager
def once(may: bool = True) -> Iterator[None]:
    """Let members that share a backbone and are given the same inputs inside the block run it once, if they may."""
    token = _kept.set({} if may else None)
    try:
        yield
    finally:
        _kept.reset(token)


class Headed(nn.Module):
    """A member: a backbone, which others share and which stays as it is, and a head of its own."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def train(self, mode: bool = True) -> "Headed":
        """Put the head into a mode; the backbone stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return what the head makes of the backbone's features."""
        kept = None if torch.compiler.is_compiling() else _kept.get()
        if kept is None:
            return self.head(self.features(*inputs, **named))
        given = (*inputs, *named.values())
        before = kept.get(self.backbone)
        if before is None or not _are_equal(before[0], given):
            # Copies, on either side: models may work in place.
            given = tuple(one.clone() if isinstance(one, Tensor) else one for one in given)
            kept[self.backbone] = before = (given, self.features(*inputs, **named))
        return self.head(before[1].clone())

    @torch.no_grad()
    def features(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the backbone's features, in the precision of the head."""
        found = self.backbone(*inputs, **named)
        if not isinstance(found, Tensor):
            raise TypeError(f"backbone must return a tensor of features, got {type(found).__name__}")
        dtype = next((p.dtype for p in self.head.parameters() if p.is_floating_point()), found.dtype)
        return found.to(dtype) if found.is_floating_point() else found


def _are_equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device == b.device else a is b
        for a, b in zip(one, other, strict=True)
    )


class Heads:
    """What `heads` returns: a factory of members that share a backbone."""

    def __init__(self, backbone: nn.Module, make_head: Callable[[], nn.Module]) -> None:
        self.backbone, self.make_head = backbone, make_head

    def __call__(self) -> Headed:
        """Return a member with a new head."""
        return self.join(self.make_head())

    def join(self, head: nn.Module) -> Headed:
        """Return a member with this head, in the mode that it is in."""
        check_kind("what make_head returns", head, nn.Module, "an nn.Module")
        return Headed(self.backbone, head).train(head.training)


def heads(backbone: nn.Module, make_head: Callable[[], nn.Module]) -> Heads:
    """Return what `ge.fit` takes as make_model, for members that are heads on one frozen backbone.

    Args:
        backbone: from inputs to a tensor of features (n, ...). A copy of it is taken, frozen and in eval mode; all
            members share it, in memory and in files.
        make_head: builds a new ``nn.Module`` from features to logits at every call.

    `ge.fit` sends samples of p* and held-out examples through the backbone once for all members, and examples of arrays
    too, unless the recipe augments them. `ge.Ensemble` runs it once a batch.

    >>> import greedy_ensembles as ge
    >>> x, y = torch.randn(200, 2), torch.arange(200) % 2
    >>> make_model = heads(nn.Sequential(nn.Linear(2, 16), nn.ReLU()), lambda: nn.Linear(16, 2))
    >>> ensemble = ge.fit(make_model, (x, y), size=2, recipe=ge.Recipe(epochs=1), progress=False)
    >>> ensemble[0].backbone is ensemble[1].backbone
    True
    """
    check_kind("backbone", backbone, nn.Module, "an nn.Module")
    check_factory("make_head", make_head)
    return Heads(copy.deepcopy(backbone).eval().requires_grad_(False), make_head)
