"""What sets of images and of rows have in common: parts of them, a split that keeps the classes' shares, one line."""

import dataclasses
import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from greedy_ensembles.checks import check_count, check_unmasked

Labels = npt.NDArray[np.int64]
_LISTED = 8  # classes that are named with their counts


class LabelledSet:
    """Inputs with labels, if there are any; `ImageSet` and `TableSet` are the two kinds."""

    labels: Labels | None  #: (n,)
    name: str  #: what tables call the set
    classes: tuple[str, ...] | None  #: the names that labels point to
    source: str  #: the file or folder, or how it was made
    note: str  #: what a reader of any figure on this set must know (partial, stand-in), else empty
    unit: str  #: what is counted

    @property
    def inputs(self) -> npt.NDArray[Any]:
        """The inputs, (n, ...), as `ge.fit` takes them."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.inputs)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]  # both kinds are dataclasses

    def with_note(self, note: str) -> Self:
        """Return the set with a further note."""
        return self.replace(note="; ".join(part for part in (self.note, note) if part))

    def take(self, indices: npt.NDArray[np.int64]) -> Self:
        """Return a part of the set."""
        raise NotImplementedError

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
    if count and labels.min() < 0:
        raise ValueError(f"labels of {name} must not be negative, got {labels.min()}")
    if classes is not None and count and not (labels.min() >= 0 and labels.max() < len(classes)):
        raise ValueError(f"labels of {name} must be in 0..{len(classes) - 1}, got {labels.min()}..{labels.max()}")
    return labels.astype(np.int64, copy=False)
