"""Weighting distributions p*: where members are asked to differ (Appendix B.1).

Each distribution has ``sample(n, generator) -> tensor`` of shape (n, *example shape), in the space of the data before
any normalisation. The choice matters more than lambda_M does: see the notes on `Gaussian` and `PhaseScrambled`.

>>> images = torch.randint(0, 256, (100, 3, 8, 8), dtype=torch.uint8)
>>> weighting = Mixture([PhaseScrambled(images), Gaussian.from_data(images)], shares=[3, 1])
>>> weighting.sample(16, torch.Generator().manual_seed(0)).shape
torch.Size([16, 3, 8, 8])
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from greedy_ensembles.checks import check_choice, check_number
from greedy_ensembles.inputs import as_tensor

Overflow = Literal["none", "clip", "wrap"]
ArrayLike = Any  # a tensor, an array, a nested sequence or a number: what torch.as_tensor takes
_VALUES = 1 << 21  # of images whose phases are scrambled together: what bounds the memory that it takes


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
    """Independent uniform noise on [low, high] in every dimension; low and high broadcast to `shape`.

    >>> Uniform(0, 255, (3, 8, 8)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

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
    """Examples of another data set, as outlier exposure does: distinct ones as long as there are enough.

    >>> sorted(FromData([[1.0], [2.0], [3.0]]).sample(3, torch.Generator().manual_seed(0)).tolist())
    [[1.0], [2.0], [3.0]]
    """

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
        return self.x[_draw(n, len(self.x), generator)]  # type: ignore[no-any-return]


def _draw(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Return n indices below `count`, distinct ones as long as there are enough."""
    if n <= count:
        return torch.randperm(count, generator=generator)[:n]
    return torch.randint(count, (n,), generator=generator)


@dataclass(frozen=True, eq=False)
class PhaseScrambled:
    """Images of the data with their phases scrambled: colours and power spectrum are kept, and nothing else.

    An image becomes ``clip(real(IFFT2(FFT2(image) * exp(i * phi))))``, where phi are the phases of the Fourier
    transform of white noise: new ones for every sample, the same for all its channels, 0 at frequency 0. Bytes are
    clipped to 0 to 255 and truncated to whole numbers, floats are clipped to the range of all of x.

    >>> images = torch.randint(0, 256, (100, 3, 8, 8), dtype=torch.uint8)
    >>> PhaseScrambled(images).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    x: ArrayLike
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        x = as_tensor(self.x).detach().cpu()
        if x.ndim != 4 or x.numel() == 0:
            raise ValueError(
                "x of PhaseScrambled must be images of shape (n, channels, height, width), at least one of them; got "
                f"shape {tuple(x.shape)}" + ("; use x[:, None] for grey images" if x.ndim == 3 else "")
            )
        if not (x.dtype == torch.uint8 or x.is_floating_point()):
            raise ValueError(f"x of PhaseScrambled must be images of uint8 or floating-point type, got {x.dtype}")
        low, high = (0.0, 255.0) if x.dtype == torch.uint8 else (float(end) for end in torch.aminmax(x))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("x of PhaseScrambled must be finite images; it holds NaN or infinity")
        for name, value in (("x", x), ("low", low), ("high", high)):
            object.__setattr__(self, name, value)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n images of x, distinct ones as long as there are enough, and scramble them: bytes remain bytes."""
        shape, dtype = self.x.shape[1:], torch.promote_types(self.x.dtype, torch.float32)
        chosen = _draw(n, len(self.x), generator)
        samples = torch.empty(n, *shape, dtype=self.x.dtype)
        together = max(1, _VALUES // shape.numel())
        for start in range(0, n, together):
            images = self.x[chosen[start : start + together]].to(dtype)
            noise = torch.randn(len(images), *shape[1:], generator=generator)
            scrambled = scramble_phases(images, noise).clamp_(self.low, self.high)
            samples[start : start + together] = scrambled  # to bytes, this truncates
        return samples


def scramble_phases(images: Tensor, noise: Tensor) -> Tensor:
    """Return floating-point images (n, c, h, w) with the phases of noise (n, h, w) added to theirs, but for the mean's.

    Noise is real, so opposite frequencies get opposite phases, and amplitudes survive in an image that is real, too.

    >>> scramble_phases(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[1.0, 0.0, 0.0]]]))  # all phases are 0
    tensor([[[[1., 2., 3.]]]])
    """
    # The mean is taken out and put back: what is constant stays so to the last bit, and none of it is truncated away.
    mean = images.mean(dim=(-2, -1), keepdim=True, dtype=torch.float64).to(images.dtype)
    turns = torch.fft.rfft2(noise.to(images.dtype)).sgn().unsqueeze(1)  # exp(i * phi), the same for all channels
    spectrum = torch.fft.rfft2(images - mean).mul_(turns)
    return torch.fft.irfft2(spectrum, s=images.shape[-2:]).add_(mean)  # type: ignore[no-any-return]


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
            raise ValueError(f"parts of a Mixture must be a list of weightings, at least one; got {self.parts!r}")
        given = (1.0,) * len(parts) if self.shares is None else self.shares
        shares = tuple(given) if isinstance(given, Iterable) else ()
        for share in shares:
            check_number("each of the shares of a Mixture", share, least=0.0)
        if len(shares) != len(parts) or not any(shares):
            raise ValueError(f"shares must be a number for each of {len(parts)} parts, not all 0; got {self.shares!r}")
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "shares", tuple(float(share / math.fsum(shares)) for share in shares))
        self._form()

    def _form(self) -> tuple[torch.Size, torch.dtype]:
        """Return shape and type of a sample, after a look at one of each part."""
        looks = [part.sample(1, torch.Generator().manual_seed(0)) for part in self.parts]
        shapes, types = {look.shape[1:] for look in looks}, {look.dtype for look in looks}
        pixels = all(dtype == torch.uint8 or dtype.is_floating_point for dtype in types)
        if len(shapes) > 1 or (len(types) > 1 and not pixels):
            found = ", ".join(f"{tuple(look.shape[1:])} of {look.dtype}" for look in looks)
            raise ValueError(f"parts of a Mixture must give samples of one shape and one kind of values; got {found}")
        return shapes.pop(), functools.reduce(torch.promote_types, types)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples, in an order of their own."""
        shape, dtype = self._form()
        samples = torch.empty(n, *shape, dtype=dtype)
        places = torch.randperm(n, generator=generator).split(apportion(n, self.shares or ()))
        for part, rows in zip(self.parts, places, strict=True):
            if len(rows):
                samples[rows] = part.sample(len(rows), generator).to(samples)
        return samples


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


def paper_weighting(batches: Iterable[Tensor], dtype: torch.dtype) -> Gaussian:
    """Return the paper's p* for batches of examples: `Gaussian`, where bytes wrap and floats stay as they are drawn."""
    if dtype == torch.uint8:
        return Gaussian(*moments(batches), overflow="wrap", low=0, high=255)
    if dtype.is_floating_point:
        return Gaussian(*moments(batches))
    raise ValueError(f"x holds {dtype}, for which there is no default p*; pass weighting, see ge.weighting")


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
