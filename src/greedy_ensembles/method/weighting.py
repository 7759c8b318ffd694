"""Weighting distributions p*: where members are asked to differ (Appendix B.1).

Each distribution has ``sample(n, generator) -> tensor`` of shape (n, *example shape), in the space of the data before
any normalisation. The choice matters more than lambda_M does: see the notes on `Gaussian`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from greedy_ensembles.checks import check_choice, check_number

Overflow = Literal["none", "clip", "wrap"]
ArrayLike = Any  # a tensor, an array, a nested sequence or a number: what torch.as_tensor takes


class Weighting(Protocol):
    """Anything that can draw samples of p*."""

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples, every random number from `generator`."""
        ...


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Independent normal noise about the data: ``mean + scale * std * N(0, 1)`` in every dimension.

    What happens to values that leave the range of the data decides what the noise looks like:

    - ``overflow="none"`` keeps them (the paper's text; right for tables);
    - ``"clip"`` moves them to the nearest end of [low, high];
    - ``"wrap"`` maps v to ``low + step * (trunc((v - low) / step) mod levels)`` with
      ``step = (high - low) / (levels - 1)``: for pixels (0, 255, 256 levels) exactly a cast to 8 bits. The paper's
      image results were made this way, and do not come out with the other two.
    """

    mean: ArrayLike
    std: ArrayLike
    scale: float = 5.0
    overflow: Overflow = "none"
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    levels: int = 256

    def __post_init__(self) -> None:
        check_choice("overflow", self.overflow, get_args(Overflow))
        for name in ("mean", "std", "low", "high"):
            value = getattr(self, name)
            if value is not None:
                tensor = torch.as_tensor(value, dtype=torch.float32).cpu()  # samples are drawn there
                if not torch.isfinite(tensor).all():
                    raise ValueError(f"{name} of a Gaussian weighting must be finite")
                object.__setattr__(self, name, tensor)
        if (self.std < 0).any():
            raise ValueError("std of a Gaussian weighting must not be negative")
        check_number("scale of a Gaussian weighting", self.scale, above=0.0)
        try:
            torch.broadcast_shapes(self.mean.shape, self.std.shape)
        except RuntimeError:
            shapes = f"{tuple(self.mean.shape)} and {tuple(self.std.shape)}"
            raise ValueError(f"mean and std of a Gaussian weighting do not fit each other: shapes {shapes}") from None
        if self.overflow != "none":
            if self.low is None or self.high is None:
                raise ValueError(f"overflow={self.overflow!r} needs low and high, the range of the data")
            if not (self.low < self.high).all():
                raise ValueError("low must be below high")
        if self.levels < 2:
            raise ValueError(f"levels must be at least 2, got {self.levels}")

    @classmethod
    def from_data(
        cls,
        x: ArrayLike,
        scale: float = 5.0,
        overflow: Overflow | None = None,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        levels: int = 256,
    ) -> "Gaussian":
        """Fit mean and standard deviation of every dimension to the examples x, of shape (n, ...).

        Without `overflow`, uint8 data is wrapped on [0, 255] and anything else is left as drawn.
        """
        x = torch.as_tensor(x)
        mean, std = moments(x.split(1024))
        if overflow is None:
            overflow = "wrap" if x.dtype == torch.uint8 else "none"
        if overflow != "none" and x.dtype == torch.uint8:
            low, high = (0.0 if low is None else low), (255.0 if high is None else high)
        return cls(mean, std, scale, overflow, low, high, levels)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, ...) float32 samples."""
        shape = torch.broadcast_shapes(self.mean.shape, self.std.shape)
        values = torch.randn(n, *shape, generator=generator).mul_(self.scale * self.std).add_(self.mean)
        if self.overflow == "clip":
            return values.clamp_(self.low, self.high)
        if self.overflow == "wrap":
            for part in values.split(1024):  # wrapping takes copies, in double precision as a rule: some at a time
                part.copy_(wrap(part, self.low, self.high, self.levels))
        return values


def wrap(values: Tensor, low: ArrayLike, high: ArrayLike, levels: int) -> Tensor:
    """Return ``low + step * (trunc((values - low) / step) mod levels)`` with ``step = (high - low) / (levels - 1)``.

    >>> wrap(torch.tensor([-1.5, -0.5, 3.7, 255.9, 256.0, 600.0]), 0, 255, 256).tolist()
    [255.0, 0.0, 3.0, 255.0, 0.0, 88.0]
    """
    low, high = torch.as_tensor(low, dtype=torch.float64), torch.as_tensor(high, dtype=torch.float64)
    step = (high - low) / (levels - 1)
    if (low == 0).all() and (step == 1).all() and levels & (levels - 1) == 0:
        # Pixels: nothing of this rounds, in whatever precision, and it is several times faster.
        whole = torch.trunc(values)
        return whole.sub_(torch.floor(whole / levels).mul_(levels))
    # In double precision: in single, values that sit on a level would fall to the one below it.
    cells = torch.trunc((values.double() - low) / step)
    wrapped: Tensor = low + step * torch.remainder(cells, levels)
    return wrapped.to(values.dtype)


@dataclass(frozen=True, eq=False)
class Uniform:
    """Independent uniform noise on [low, high] in every dimension; low and high broadcast to `shape`."""

    low: ArrayLike
    high: ArrayLike
    shape: Sequence[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))
        for name in ("low", "high"):
            tensor = torch.as_tensor(getattr(self, name), dtype=torch.float32).cpu()
            try:
                torch.broadcast_to(tensor, self.shape)
            except RuntimeError:
                raise ValueError(f"{name} of shape {tuple(tensor.shape)} does not fit shape {self.shape}") from None
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} of a Uniform weighting must be finite")
            object.__setattr__(self, name, tensor)
        if not (self.low < self.high).all():
            raise ValueError("low must be below high")

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, *shape) float32 samples."""
        return torch.rand(n, *self.shape, generator=generator).mul_(self.high - self.low).add_(self.low)


@dataclass(frozen=True, eq=False)
class FromData:
    """Examples of another data set, as outlier exposure does: distinct ones as long as there are enough."""

    x: ArrayLike

    def __post_init__(self) -> None:
        x = torch.as_tensor(self.x)
        if x.ndim < 2 or len(x) == 0:
            raise ValueError(f"FromData needs examples of shape (n, ...), got shape {tuple(x.shape)}")
        if not all(bool(torch.isfinite(part).all()) for part in x.split(1024)):
            raise ValueError("FromData needs finite examples; x holds NaN or infinity")
        object.__setattr__(self, "x", x)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n examples, with replacement only where n exceeds their number."""
        count = len(self.x)
        if n <= count:
            chosen = torch.randperm(count, generator=generator)[:n]
        else:
            chosen = torch.randint(count, (n,), generator=generator)
        return self.x[chosen]  # type: ignore[no-any-return]


def moments(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Return mean and (population) standard deviation of every dimension, as float32, in one pass over the batches.

    Means and squared deviations of the batches are merged in double precision, so that a large offset costs no digits.
    """
    count, mean, deviations = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for batch in batches:
        batch = batch.double()
        batch_mean = batch.mean(dim=0)
        difference = batch_mean - mean
        total = count + len(batch)
        deviations = (
            deviations + (batch - batch_mean).square().sum(dim=0) + difference.square() * count * len(batch) / total
        )
        mean = mean + difference * len(batch) / total
        count = total
    if count == 0:
        raise ValueError("mean and standard deviation need at least one example")
    return mean.float(), (deviations / count).sqrt().float()
