"""Weighting distributions p* that are made of examples: as they are, shuffled column by column, or phase by phase."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.checks import check_draw
from greedy_ensembles.data import LabelledSet
from greedy_ensembles.inputs import Inputs, are_several, as_entries, as_tensor, each, entries, length, take

ArrayLike = Any  # a tensor, an array, a nested sequence or a number; of inputs also a dict or tuple of them, or a set
_VALUES = 1 << 21  # that are worked on together: what bounds the memory that it takes


@dataclass(frozen=True, eq=False)
class FromData:
    """Examples of another data set, as outlier exposure does: distinct ones as long as there are enough.

    >>> sorted(FromData([[1.0], [2.0], [3.0]]).sample(3, torch.Generator().manual_seed(0)).tolist())
    [[1.0], [2.0], [3.0]]
    """

    x: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", examples_of(self.x, "x of FromData"))

    def sample(self, n: int, generator: torch.Generator) -> Inputs:
        """Draw n examples, with replacement only where n exceeds their number."""
        return take(self.x, _draw(n, length(self.x), generator))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Every column of a table, or position of a text, drawn from its own values in the data, whatever the others are.

    A sample takes each of its positions from an example of its own: marginals are the data's, what ties positions
    together is gone. Of a dict or tuple this is done entry by entry. Entries of one shape take the same examples, so
    that a token keeps its mask; entries of one number, columns of a table, do not.

    >>> Shuffled([[1, 10], [2, 20]]).sample(3, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 2])
    """

    x: ArrayLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", examples_of(self.x, "x of Shuffled"))

    def sample(self, n: int, generator: torch.Generator) -> Inputs:
        """Draw n samples of the data's own type."""
        check_draw(n, generator)
        seeds: dict[tuple[int, ...], int] = {}

        def of_entry(x: Tensor) -> Tensor:
            shape = tuple(x.shape[1:])
            if math.prod(shape) == 1 or shape not in seeds:
                seeds[shape] = int(torch.randint(2**62, (), generator=generator))
            return self._of_entry(x, n, torch.Generator().manual_seed(seeds[shape]))

        return each(of_entry, self.x)  # type: ignore[no-any-return]

    def _of_entry(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        columns = x.flatten(1) if x.ndim > 1 else x[:, None]
        samples = torch.empty(n, columns.shape[1], dtype=x.dtype)
        for part in samples.split(max(1, _VALUES // columns.shape[1])):
            part.copy_(columns.gather(0, torch.randint(len(x), part.shape, generator=generator)))
        return samples.view(n, *x.shape[1:])


def examples_of(x: ArrayLike, name: str) -> Inputs:
    """Return examples as tensors on the CPU, those of an image set or a table set too, or refuse what are none."""
    x = x.inputs if isinstance(x, LabelledSet) else x
    found: Inputs = as_entries(x, name) if are_several(x) else as_tensor(x, name)
    found = each(lambda one: one.detach().cpu(), found)
    for place, one in entries(found):
        if one.ndim < (2 if isinstance(found, Tensor) else 1) or one.numel() == 0 or len(one) != length(found):
            raise ValueError(f"{name} must be examples of shape (n, ...), got {place} of shape {tuple(one.shape)}")
        if not all(bool(torch.isfinite(part).all()) for part in one.split(1024)):
            raise ValueError(f"{name} must be finite examples; {place} holds NaN or infinity")
    if not entries(found):
        raise ValueError(f"{name} must be examples, got a dict or tuple of none")
    return found


def _draw(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Return n indices below `count`, distinct ones as long as there are enough."""
    check_draw(n, generator)
    if n <= count:
        return torch.randperm(count, generator=generator)[:n]
    return torch.randint(count, (n,), generator=generator)


@dataclass(frozen=True, eq=False)
class PhaseScrambled:
    """Images of the data with their phases scrambled: colours and power spectrum are kept, and nothing else.

    An image becomes ``clip(real(IFFT2(FFT2(image) * exp(i * phi))))``, where phi are the phases of the Fourier
    transform of white noise: new ones for every sample, the same for all its channels, 0 at frequency 0. Bytes are
    clipped to 0 to 255 and truncated to whole numbers, floats are clipped to the range of all of x. Members that meet
    on these alone may agree on noise; a `Mixture` with a `Gaussian` covers both.

    >>> images = torch.randint(0, 256, (100, 3, 8, 8), dtype=torch.uint8)
    >>> PhaseScrambled(images).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    x: ArrayLike
    low: float = field(init=False)
    high: float = field(init=False)

    def __post_init__(self) -> None:
        x = examples_of(self.x, "x of PhaseScrambled")
        if not isinstance(x, Tensor) or x.ndim != 4:
            found = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            hint = "; use x[:, None] for grey images" if isinstance(x, Tensor) and x.ndim == 3 else ""
            raise ValueError(
                "x of PhaseScrambled must be images of shape (n, channels, height, width), one tensor or array of "
                f"them; got {found}{hint}"
            )
        if not (x.dtype == torch.uint8 or x.is_floating_point()):
            raise ValueError(f"x of PhaseScrambled must be images of uint8 or floating-point type, got {x.dtype}")
        low, high = (0.0, 255.0) if x.dtype == torch.uint8 else map(float, torch.aminmax(x))
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
