"""The form in which an ensemble takes inputs, and the names of its classes, as far as they are known.

A run folder holds the name of an image set, whose files have both, and of the shape no more than what its p* tells. A
calibration keeps them beside the weights, so that a calibrated run predicts on a machine that has no data set.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from greedy_ensembles.data import SETS, data_root, load
from greedy_ensembles.data.image_set import check_channels
from greedy_ensembles.data.registry import find
from greedy_ensembles.screening.subject import Subject

Shape = tuple[int, int, int]
_LARGEST = 4096  # a file from other people could ask for pictures that fill all memory


@dataclass(frozen=True)
class Form:
    """Square images of bytes of this shape, (channels, height, width); None: unknown, or nothing of the kind."""

    shape: Shape | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is None:
            return
        channels, height, width = self.shape
        check_channels(channels)
        if height != width or not 0 < height <= _LARGEST:
            raise ValueError(f"images must be square, of 1 to {_LARGEST} pixels a side, got {height} x {width}")

    @classmethod
    def of_images(cls, images: np.ndarray, classes: tuple[str, ...] | None = None) -> "Form":
        """Return the form of images; those that are not square are taken as they are, and pictures are none."""
        channels, height, width = images.shape[1:]
        return cls((channels, height, width) if height == width else None, classes)


def form_of(subject: Subject, root: str | Path | None = None) -> Form:
    """Return what is known of a run's images: their shape from its p*, else from its data set if that is there."""
    name = trained_on(subject)
    if name is None or subject.facts is None:
        return Form()
    shape = subject.facts.image_shape
    splits = [split for split in SETS[name].counts if find(SETS[name], split, data_root(root))]
    if not splits:
        return Form(shape)
    images = load(name, min(splits), root)  # test before train: it is smaller
    return Form.of_images(images.images, images.classes) if shape is None else Form(shape, images.classes)


def trained_on(subject: Subject) -> str | None:
    """Return the name of the published set that a run was trained on, None for anything else."""
    data = None if subject.facts is None else subject.facts.information["data"]
    name = data.get("name") if isinstance(data, dict) else None
    return name if isinstance(name, str) and name in SETS else None


def parse_shape(text: str) -> Shape:
    """Return a shape as people write it.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text.strip())
    if not found:
        raise ValueError(f"--shape is channels x height x width, as in 3x32x32; got {text!r}")
    channels, height, width = map(int, found.groups())
    return channels, height, width
