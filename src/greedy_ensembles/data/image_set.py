"""The one small thing that every data set becomes: bytes, labels if there are any, and where they came from.

Arrays are numpy's, not torch's: readers build them, tables describe them, and `ge.fit` takes them as they are. Images
stay uint8, so that p* can wrap to 8 bits, and so that a set of noise is rescaled and normalised exactly as the
in-domain data is (the ensemble does both on the way to its members).
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Self, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image

from greedy_ensembles.checks import as_all, check_choice, check_count, check_kind, check_unmasked

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
#: How pictures become small squares: "crop" (the centre square, antialiased) or "whole" (`squeeze`).
Resize = Literal["crop", "whole"]

_LISTED = 8  # classes that are named with their counts


class LabelledSet:
    """Inputs with labels, if there are any; `ImageSet` and `TableSet` are the two kinds."""

    labels: Labels | None  #: (n,)
    name: str  #: what tables call the set
    classes: tuple[str, ...] | None  #: the names that labels point to
    source: str  #: the file or folder, or how it was made
    note: str  #: what a reader of any figure on this set must know (partial, stand-in), else empty
    unit: str  #: what is counted, and the field that has it

    @property
    def inputs(self) -> npt.NDArray[Any]:
        """The inputs, (n, ...), as `ge.fit` takes them."""
        inputs: npt.NDArray[Any] = getattr(self, self.unit)
        return inputs

    def _check_rest(self) -> None:
        """Refuse what will not do of all but the inputs' own shape and type, and make labels int64."""
        check_kind("name", self.name, str, "a text")
        check_kind(f"note of {self.name}", self.note, str, "a text")
        check_unmasked(f"{self.unit} of {self.name}", self.inputs)
        if self.classes is not None:
            as_all(f"classes of {self.name}", self.classes, str, "names")
        if self.labels is not None:
            labels = as_labels(self.labels, len(self), self.classes, self.name, self.unit)
            object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.inputs)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # both kinds are dataclasses

    def with_note(self, note: str) -> Self:
        """Return the set with a further note."""
        check_kind("note", note, str, "a text")
        return self.replace(note="; ".join(part for part in (self.note, note) if part))

    def take(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return the inputs at these indices, with their labels."""
        indices = np.asarray(indices)
        if indices.ndim != 1 or indices.dtype.kind not in "iu" or not ((indices >= 0) & (indices < len(self))).all():
            raise ValueError(f"indices must be whole numbers of 0 to {len(self) - 1}, of shape (n,), got {indices!r}")
        labels = None if self.labels is None else self.labels[indices]
        return self.replace(**{self.unit: self.inputs[indices], "labels": labels})

    def split(self, share: float, seed: int = 0) -> tuple[Self, Self]:
        """Return two parts, the second with this share of every class, drawn from the seed.

        >>> from greedy_ensembles.data import ImageSet
        >>> tiny = ImageSet(np.zeros((10, 1, 4, 4), np.uint8), np.arange(10) % 2, "tiny")
        >>> [part.labels.tolist().count(0) for part in tiny.split(0.4)]
        [3, 2]
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise ValueError(f"share must be above 0 and below 1, got {share!r}")
        check_count("seed", seed, 0)
        if self.labels is None:
            raise ValueError(f"{self.name} has no labels; a split that keeps the shares of classes needs them")
        kinds, counts = np.unique(self.labels, return_counts=True)
        held_out = math.ceil(share * len(self))
        if counts.min(initial=2) < 2 or min(held_out, len(self) - held_out) < len(kinds):
            fewest = kinds[counts.argmin()]
            named = fewest if self.classes is None else self.classes[fewest]
            raise ValueError(
                f"{self.name} has {len(self):,} {self.unit} of {len(kinds)} classes, {counts.min()} of {named}: too "
                f"few to hold out a share of {share:g} with each class in both parts; give more"
            )
        from sklearn.model_selection import train_test_split  # slow to import, and seldom needed

        kept, held = train_test_split(np.arange(len(self)), test_size=share, stratify=self.labels, random_state=seed)
        return self.take(np.sort(kept)), self.take(np.sort(held))

    def __str__(self) -> str:
        parts = [f"{self.name}: {len(self):,} {self.unit} of {' x '.join(map(str, self.inputs.shape[1:]))}"]
        if self.labels is None:
            parts.append("no labels")
        else:
            kinds, counts = np.unique(self.labels, return_counts=True)
            names = [str(kind) if self.classes is None else self.classes[kind] for kind in kinds]
            listed = ", ".join(f"{name} {count:,}" for name, count in list(zip(names, counts, strict=True))[:_LISTED])
            more = ", ..." if len(kinds) > _LISTED else ""
            parts.append(f"{len(kinds)} class{'es' if len(kinds) > 1 else ''} ({listed}{more})")
        return ", ".join(parts) + (f"; {self.note}" if self.note else "")


def as_labels(given: Any, count: int, classes: tuple[str, ...] | None, name: str, unit: str) -> Labels:
    """Return labels of `count` inputs as int64, or refuse them."""
    check_unmasked(f"labels of {name}", given)
    labels: npt.NDArray[Any] = np.asarray(given)
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels of {name} must be whole numbers, got {labels.dtype}")
    if labels.shape != (count,):
        raise ValueError(f"{name} has {count} {unit} and labels of shape {labels.shape}")
    if count and (labels.min() < 0 or labels.max() > np.iinfo(np.int64).max):
        raise ValueError(f"labels of {name} must not be negative, nor beyond int64, got {labels.min()}..{labels.max()}")
    if classes is not None and count and labels.max() >= len(classes):
        raise ValueError(f"labels of {name} must be in 0..{len(classes) - 1}, got {labels.min()}..{labels.max()}")
    return labels.astype(np.int64, copy=False)


def as_numbers(words: Iterable[str], classes: Sequence[str]) -> Labels:
    """Return the number of each word among the classes."""
    number = {name: index for index, name in enumerate(classes)}
    return np.array([number[word] for word in words], np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class ImageSet(LabelledSet):
    """Images with what must be known of them; `print` says it in a line.

    >>> grey = ImageSet(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 1]), "tiny", ("no", "yes"))
    >>> len(grey), grey.with_channels(3).images.shape, grey.resized(2).images.shape
    (2, (2, 3, 4, 4), (2, 1, 2, 2))
    >>> print(grey)
    tiny: 2 images of 1 x 4 x 4, 2 classes (no 1, yes 1)

    `LabelledSet` says what the other fields are.
    """

    unit = "images"

    images: Bytes  #: (n, channels, height, width), one channel or three
    labels: Labels | None
    name: str
    classes: tuple[str, ...] | None = None
    source: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        images = self.images
        if not isinstance(images, np.ndarray) or images.dtype != np.uint8:
            kind = getattr(images, "dtype", type(images).__name__)
            raise TypeError(f"images of {self.name} must be a uint8 array, got {kind}")
        if images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"images of {self.name} must be (n, channels, height, width) with 1 or 3 channels, got {images.shape}"
            )
        self._check_rest()

    @property
    def channel_means(self) -> tuple[float, ...]:
        """The mean of each channel, in [0, 1], NaN of no images; exact, for it is a quotient of two whole numbers."""
        most = 255 * self.images[:, 0].size
        sums = (int(channel.sum(dtype=np.int64)) for channel in self.images.swapaxes(0, 1))
        return tuple(total / most if most else math.nan for total in sums)

    def with_channels(self, channels: int) -> "ImageSet":
        """Return the set in grey (1) or colour (3): luma one way, three equal channels the other."""
        check_channels(channels)
        if self.images.shape[1] == channels:
            return self
        count, stored, height, width = self.images.shape
        tall = self.images.swapaxes(0, 1).reshape(stored, count * height, width)  # one picture: all, below each other
        images = to_array(to_picture(tall), channels).reshape(channels, count, height, width).swapaxes(0, 1)
        return self.replace(images=np.ascontiguousarray(images))

    def resized(self, size: int, resize: Resize = "crop") -> "ImageSet":
        """Return the set with images of size x size; `resize` says how, where they are not yet."""
        check_count("size", size, 1)
        check_choice("resize", resize, get_args(Resize))
        if self.images.shape[2:] == (size, size):
            return self
        images = np.empty((len(self), channels := self.images.shape[1], size, size), np.uint8)
        for index, image in enumerate(self.images):
            images[index] = to_array(to_picture(image), channels, size, resize)
        return self.replace(images=images)


def shaped(images: ImageSet, size: int | None, channels: int | None, resize: Resize) -> ImageSet:
    """Return a set with images of that size and so many channels, where these are given."""
    images = images if size is None else images.resized(size, resize)
    return images if channels is None else images.with_channels(channels)


def to_picture(image: Bytes) -> Image.Image:
    """Return the picture of (channels, height, width)."""
    return Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)))


def fit_square(picture: Image.Image, size: int) -> Image.Image:
    """Crop the centre square of a picture and resize it, bilinear and antialiased (Pillow widens its filter)."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    return square if side == size else square.resize((size, size), Image.Resampling.BILINEAR)


def squeeze(pixels: Bytes, size: int) -> Bytes:
    """Resize a whole picture (height, width, channels), bilinear and not antialiased, as OpenCV does, to the bit.

    Each pixel is made of four neighbours, however many there are between them, so large pictures come out grainy. The
    paper's code does this to OOD pictures. Weights are multiples of 1/2048, and sums are cut off where OpenCV's are.
    """
    (top, bottom, down), (left, right, across) = (_neighbours(length, size) for length in pixels.shape[:2])
    wide = pixels.astype(np.int64)
    rows = (wide[:, left] * (2048 - across[:, None]) + wide[:, right] * across[:, None]) >> 4
    down = down[:, None, None]
    upper, lower = rows[top] * (2048 - down) >> 16, rows[bottom] * down >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _neighbours(length: int, size: int) -> tuple[npt.NDArray[np.int64], ...]:
    """Return, for each of `size` pixels, the two of `length` that it lies between, and the weight of the second."""
    place = (np.arange(size) + 0.5) * (length / size) - 0.5  # pixels are squares, known by their centres
    first = np.floor(place).astype(np.int64)
    weight = np.rint((place - first) * 2048).astype(np.int64)
    return first.clip(0, length - 1), (first + 1).clip(0, length - 1), weight


def to_array(picture: Image.Image, channels: int, size: int | None = None, resize: Resize = "crop") -> Bytes:
    """Return a picture as (channels, height, width), made small in one way or the other where a size is given."""
    picture = picture.convert("L" if channels == 1 else "RGB")
    if size is not None and resize == "crop":
        picture = fit_square(picture, size)
    pixels = np.asarray(picture).reshape(picture.height, picture.width, channels)
    if size is not None and resize == "whole":
        pixels = squeeze(pixels, size)
    return pixels.transpose(2, 0, 1)


def check_channels(channels: object) -> None:
    """Raise ValueError unless channels is 1 (grey) or 3 (colour)."""
    if isinstance(channels, bool) or channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")
