"""Weighting distributions p*: where members are asked to differ (Appendix B.1).

Each distribution has ``sample(n, generator) -> tensor`` of shape (n, *example shape), or a dict or tuple of them as the
data is, in the space of the data before any normalisation. The choice matters more than lambda_M does: see the notes on
`Gaussian` and `PhaseScrambled`.

>>> images = torch.randint(0, 256, (100, 3, 8, 8), dtype=torch.uint8)
>>> weighting = Mixture([PhaseScrambled(images), Gaussian.from_data(images)], shares=[3, 1])
>>> weighting.sample(16, torch.Generator().manual_seed(0)).shape
torch.Size([16, 3, 8, 8])
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from greedy_ensembles.checks import check_choice, check_count, check_draw, check_kind, check_number, told
from greedy_ensembles.inputs import Inputs, as_tensor, each, entries
from greedy_ensembles.method.from_data import ArrayLike, examples_of
from greedy_ensembles.method.from_data import FromData as FromData
from greedy_ensembles.method.from_data import PhaseScrambled as PhaseScrambled
from greedy_ensembles.method.from_data import Shuffled as Shuffled

Overflow = Literal["none", "clip", "wrap"]


class Weighting(Protocol):
    """Anything that can draw samples of p*."""

    def sample(self, n: int, generator: torch.Generator) -> Any:
        """Draw n samples, a tensor or a dict or tuple of them, every random number from `generator`."""
        ...


def as_weighting(weighting: Any) -> Weighting:
    """Return a weighting, of a dict or tuple of them the one of all entries, or refuse what cannot be sampled."""
    if isinstance(weighting, dict | tuple) and all(hasattr(one, "sample") for _, one in entries(weighting)):
        return Entries(weighting)
    if isinstance(weighting, type) or not callable(getattr(weighting, "sample", None)):
        raise TypeError(
            "weighting must have sample(n, generator), as ge.weighting.FromData(x) and Gaussian.from_data(x) have it; "
            f"got {told(weighting)}"
        )
    return weighting  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Independent normal noise about the data: ``mean + scale * std * N(0, 1)`` in every dimension.

    What happens to values that leave the range of the data decides what the noise looks like:

    - ``overflow="none"`` keeps them (the paper's text; right for tables);
    - ``"clip"`` moves them to the nearest end of [low, high];
    - ``"wrap"`` maps v to ``low + step * (trunc((v - low) / step) mod levels)`` with
      ``step = (high - low) / (levels - 1)``: for pixels (0, 255, 256 levels) exactly a cast to 8 bits. The paper's
      image results were made this way, and do not come out with the other two.

    Args:
        mean: of every dimension.
        std: likewise, not negative; it broadcasts with `mean` to the shape of a sample.
        scale: what `std` is multiplied by.
        overflow: "none", "clip" or "wrap", as above.
        low: the least value of the data, one number or one a dimension; "clip" and "wrap" need it.
        high: the largest value; likewise.
        levels: how many values "wrap" leaves, `low` and `high` among them.

    >>> Gaussian(mean=[0.0, 10.0], std=[1.0, 2.0]).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 2])
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
        for name in ("mean", "std"):
            object.__setattr__(self, name, _finite(f"{name} of a Gaussian weighting", getattr(self, name)))
        if (self.std < 0).any():
            raise ValueError("std of a Gaussian weighting must not be negative")
        check_number("scale of a Gaussian weighting", self.scale, above=0.0)
        try:
            shape = torch.broadcast_shapes(self.mean.shape, self.std.shape)
        except RuntimeError:
            shapes = f"{tuple(self.mean.shape)} and {tuple(self.std.shape)}"
            raise ValueError(f"mean and std of a Gaussian weighting do not fit each other: shapes {shapes}") from None
        for name in ("low", "high"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _finite(f"{name} of a Gaussian weighting", value, shape))
        if self.overflow != "none":
            if self.low is None or self.high is None:
                raise ValueError(f"overflow={self.overflow!r} needs low and high, the range of the data")
            if not (self.low < self.high).all():
                raise ValueError("low must be below high")
        check_count("levels", self.levels, least=2)

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
        """Fit mean and standard deviation of every dimension to examples.

        Args:
            x: the examples, (n, ...).
            scale: what the standard deviation is multiplied by.
            overflow: what happens to values that leave the range; None: uint8 data is wrapped, anything else is left
                as drawn.
            low: the least value of the data; None: 0 for uint8 data that is wrapped or clipped.
            high: the largest value; None: likewise 255.
            levels: how many values "wrap" leaves.
        """
        x = examples_of(x, "x of Gaussian.from_data")
        if not isinstance(x, Tensor):
            raise ValueError("x of Gaussian.from_data must be one tensor or array of examples, got a dict or tuple")
        mean, std = moments(x.split(1024))
        if overflow is None:
            overflow = "wrap" if x.dtype == torch.uint8 else "none"
        if overflow != "none" and x.dtype == torch.uint8:
            low, high = (0.0 if low is None else low), (255.0 if high is None else high)
        return cls(mean, std, scale, overflow, low, high, levels)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, ...) float32 samples."""
        check_draw(n, generator)
        shape = torch.broadcast_shapes(self.mean.shape, self.std.shape)
        values = torch.randn(n, *shape, generator=generator).mul_(self.scale * self.std).add_(self.mean)
        if self.overflow == "clip":
            return values.clamp_(self.low, self.high)
        if self.overflow == "wrap":
            for part in values.split(1024):  # wrapping takes copies, in double precision as a rule: some at a time
                part.copy_(wrap(part, self.low, self.high, self.levels))
        return values


def _finite(name: str, value: Any, shape: Sequence[int] | None = None) -> Tensor:
    """Return numbers in single precision on the CPU, where samples of a shape are drawn, or refuse them."""
    tensor = as_tensor(value, name)
    if tensor.dtype == torch.bool:
        raise TypeError(f"{name} must hold numbers, not True and False")
    tensor = tensor.to("cpu", torch.float32)
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{name} must be finite")
    try:
        if shape is not None:
            tensor.broadcast_to((1, *shape))
    except RuntimeError:
        raise ValueError(f"{name} is of shape {tuple(tensor.shape)}, which does not fit {tuple(shape or ())}") from None
    return tensor


def wrap(values: Tensor, low: ArrayLike, high: ArrayLike, levels: int) -> Tensor:
    """Return ``low + step * (trunc((values - low) / step) mod levels)`` with ``step = (high - low) / (levels - 1)``.

    Args:
        values: of any shape.
        low: the least value of the range, which broadcasts with `values`.
        high: the largest; likewise.
        levels: how many values there are in the range, both ends among them.

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
    """Independent uniform noise on [low, high] in every dimension.

    Args:
        low: one number, or numbers that broadcast to `shape`.
        high: likewise; above `low` everywhere.
        shape: of one sample, such as (3, 32, 32).

    >>> Uniform(0, 255, (3, 8, 8)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    low: ArrayLike
    high: ArrayLike
    shape: Sequence[int]

    def __post_init__(self) -> None:
        check_kind("shape", self.shape, (list, tuple), "the shape of a sample, such as (3, 32, 32)")
        for side in self.shape:
            check_count("shape", side, least=1)
        object.__setattr__(self, "shape", tuple(self.shape))
        for name in ("low", "high"):
            object.__setattr__(self, name, _finite(f"{name} of a Uniform weighting", getattr(self, name), self.shape))
        if not (self.low < self.high).all():
            raise ValueError("low must be below high")

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, *shape) float32 samples."""
        check_draw(n, generator)
        return torch.rand(n, *self.shape, generator=generator).mul_(self.high - self.low).add_(self.low)


@dataclass(frozen=True, eq=False)
class Tokens:
    """Independent uniform tokens of 0 to vocabulary - 1, `length` of them a sample.

    >>> Tokens(1000, 5).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 5])
    """

    vocabulary: int
    length: int

    def __post_init__(self) -> None:
        check_count("vocabulary of Tokens", self.vocabulary, least=2)
        check_count("length of Tokens", self.length, least=1)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw (n, length) samples of type int64."""
        check_draw(n, generator)
        return torch.randint(self.vocabulary, (n, self.length), generator=generator)


@dataclass(frozen=True, eq=False)
class Entries:
    """A weighting for every entry: what a dict such as ``{"input_ids": Tokens(1000, 16)}``, or a tuple, becomes."""

    parts: Mapping[str, Weighting] | Sequence[Weighting]

    def sample(self, n: int, generator: torch.Generator) -> Inputs:
        """Draw n samples of every entry, independently."""
        return each(lambda part: part.sample(n, generator), self.parts)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Samples of several distributions in one set: exactly these shares of it, to the nearest sample, shuffled.

    Parts must give samples of one shape. Bytes and floats may mix where both mean pixels of 0 to 255; floats result.

    >>> mixture = Mixture([Uniform(0, 1, (2,)), Uniform(5, 6, (2,))], shares=[3, 1])
    >>> int((mixture.sample(100, torch.Generator().manual_seed(0))[:, 0] < 2).sum())
    75
    """

    parts: Sequence[Weighting]
    shares: Sequence[float] | None = None  #: None: equal ones; any numbers in the right proportion will do

    def __post_init__(self) -> None:
        parts = tuple(self.parts) if isinstance(self.parts, Iterable) else ()
        if not parts or not all(callable(getattr(part, "sample", None)) for part in parts):
            raise ValueError(
                f"parts of a Mixture must be a list of weightings, at least one; got {type(self.parts).__name__}"
            )
        given = (1.0,) * len(parts) if self.shares is None else self.shares
        shares = tuple(given) if isinstance(given, Iterable) else ()
        for share in shares:
            check_number("each of the shares of a Mixture", share, least=0.0)
        if len(shares) != len(parts) or not any(shares):
            raise ValueError(f"shares must be a number for each of {len(parts)} parts, not all 0; got {self.shares!r}")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "shares", tuple(float(share / math.fsum(shares)) for share in shares))
        self._form()

    def _form(self) -> Any:
        """Return a sample of nothing in every entry, of the type that all parts have room in."""
        looks = [part.sample(1, torch.Generator().manual_seed(0)) for part in self.parts]
        try:
            return each(lambda *values: _common(values), *looks)
        except (KeyError, TypeError, ValueError):
            found = ", ".join(str(each(lambda one: f"{tuple(one.shape[1:])} of {one.dtype}", look)) for look in looks)
            raise ValueError(
                f"parts of a Mixture must give samples of one shape and one kind of values; got {found}"
            ) from None

    def sample(self, n: int, generator: torch.Generator) -> Inputs:
        """Draw n samples, in an order of their own."""
        check_draw(n, generator)
        samples: Inputs = each(lambda one: one.new_empty(n, *one.shape[1:]), self._form())
        places = torch.randperm(n, generator=generator).split(apportion(n, self.shares or ()))
        for part, rows in zip(self.parts, places, strict=True):
            if len(rows):
                drawn = part.sample(len(rows), generator)
                each(lambda one, values, at=rows: one.index_copy_(0, at, values.to(one)), samples, drawn)
        return samples


def _common(looks: Sequence[Tensor]) -> Tensor:
    """Return no sample, of the shape and the type of these, or refuse them."""
    shapes, types = {look.shape[1:] for look in looks}, {look.dtype for look in looks}
    pixels = all(dtype == torch.uint8 or dtype.is_floating_point for dtype in types)
    if len(shapes) > 1 or (len(types) > 1 and not pixels):
        raise ValueError
    return torch.empty(0, *shapes.pop(), dtype=functools.reduce(torch.promote_types, types))


def apportion(n: int, shares: Sequence[float]) -> list[int]:
    """Return whole numbers that add up to n, in proportion to shares of sum 1: by the largest remainder.

    >>> apportion(10, [0.5, 0.25, 0.25]), apportion(2, [0.2, 0.3, 0.5])
    ([5, 3, 2], [0, 1, 1])
    """
    counts = [math.floor(n * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: counts[i] - n * shares[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts


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
