"""More p* made of the training images alone, in the search for one that helps on natural images.

Scrambled phases keep an image's colours and spectrum. These keep more of it: what is near together, or what lies where.
They are of studies, not of `ge.weighting`: none is known to be better.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from greedy_ensembles.checks import check_draw
from greedy_ensembles.inputs import as_tensor
from greedy_ensembles.method.weighting import Mixture, PhaseScrambled, Weighting

_TOGETHER = 512  # samples that are made at once


@dataclass(frozen=True, eq=False)
class Kaleidoscope:
    """Windows of half the height and width, anywhere in an image, mirrored until they fill it.

    Edges and textures are the image's own and nothing is cut at a seam, but no object is whole. Where the mirrors stand
    is drawn for each sample.

    >>> Kaleidoscope(torch.zeros(2, 3, 8, 6)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 6])
    """

    x: Any

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples of the images' own type."""
        check_draw(n, generator)
        x = as_tensor(self.x)
        chosen = torch.randint(len(x), (n,), generator=generator)
        rows, columns = (mirrored(side, n, generator) for side in x.shape[2:])
        # Advanced indices around the channel slice put channels last; move them back.
        return x[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def mirrored(side: int, n: int, generator: torch.Generator) -> Tensor:
    """Return n times which of `side` positions stand where: those of a window of half of them, there and back again.

    >>> mirrored(6, 2, torch.Generator().manual_seed(0))
    tensor([[0, 0, 1, 2, 2, 1],
            [3, 4, 5, 5, 4, 3]])
    """
    window = (side + 1) // 2
    first = torch.randint(side - window + 1, (n, 1), generator=generator)
    turned = torch.randint(2 * window, (n, 1), generator=generator)
    places = (torch.arange(side) + turned) % (2 * window)
    return first + torch.minimum(places, 2 * window - 1 - places)


@dataclass(frozen=True, eq=False)
class Layout:
    """Images with the phases of their higher frequencies scrambled: where which colour lies is kept, details are not.

    >>> Layout(torch.zeros(2, 3, 8, 8, dtype=torch.uint8)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    x: Any
    kept: float = 2.0  #: up to so many cycles an image are left as they are

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples of the images' own type."""
        check_draw(n, generator)
        x = as_tensor(self.x)
        low, high = (0.0, 255.0) if x.dtype == torch.uint8 else (float(end) for end in torch.aminmax(x))
        chosen = torch.randint(len(x), (n,), generator=generator)
        height, width = x.shape[2:]
        cycles = torch.fft.fftfreq(height, 1 / height)[:, None].hypot(torch.fft.rfftfreq(width, 1 / width))
        samples = x.new_empty(n, *x.shape[1:])
        for part, images in zip(samples.split(_TOGETHER), chosen.split(_TOGETHER), strict=True):
            noise = torch.randn(len(images), height, width, generator=generator)
            turns = torch.where(cycles <= self.kept, 1.0, torch.fft.rfft2(noise).sgn()).unsqueeze(1)
            spectrum = torch.fft.rfft2(x[images].float()).mul_(turns)
            part.copy_(torch.fft.irfft2(spectrum, s=(height, width)).clamp_(low, high))
        return samples


@dataclass(frozen=True, eq=False)
class Turned:
    """Square images turned by a quarter, a half or three quarters: nothing is lost but which way is up.

    >>> Turned(torch.zeros(2, 3, 8, 8)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    x: Any

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples of the images' own type."""
        check_draw(n, generator)
        x = as_tensor(self.x)
        samples = x[torch.randint(len(x), (n,), generator=generator)]
        quarters = torch.randint(1, 4, (n,), generator=generator)
        for k in range(1, 4):
            samples[quarters == k] = samples[quarters == k].rot90(k, (2, 3))
        return samples


@dataclass(frozen=True, eq=False)
class Jigsaw:
    """Images of even height and width cut into four, and put together in another order.

    >>> Jigsaw(torch.zeros(2, 3, 8, 8)).sample(4, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """

    x: Any

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n samples of the images' own type."""
        check_draw(n, generator)
        x = as_tensor(self.x)
        orders = torch.tensor(list(itertools.permutations(range(4)))[1:])  # all but their own
        order = orders[torch.randint(len(orders), (n,), generator=generator)]
        images = x[torch.randint(len(x), (n,), generator=generator)]
        (top, bottom) = images.chunk(2, dim=2)
        parts = torch.stack([half for side in (top, bottom) for half in side.chunk(2, dim=3)], dim=1)
        parts = parts[torch.arange(n)[:, None], order]
        return torch.cat([torch.cat([parts[:, k], parts[:, k + 1]], dim=3) for k in (0, 2)], dim=2)


def searched(name: str, images: Any) -> Weighting:
    """Return a p* of the search by its name; one with hyphens has as many samples of each."""
    made = {
        "kaleidoscope": Kaleidoscope,
        "layout": Layout,
        "turned": Turned,
        "jigsaw": Jigsaw,
        "scramble": PhaseScrambled,
    }
    parts: list[Weighting] = [made[part](images) for part in name.split("-")]
    return parts[0] if len(parts) == 1 else Mixture(parts)


SEARCHED = (
    *("kaleidoscope", "layout", "turned", "jigsaw"),
    *("kaleidoscope-scramble", "turned-scramble", "turned-kaleidoscope-scramble"),
)
