"""The form in which an ensemble takes inputs, and the names of its classes, as far as they are known.

A run folder holds neither, but the name of an image set, whose files have both. A calibration keeps them beside the
weights, so that a calibrated run predicts on a machine that has no data set.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from greedy_ensembles.data import SETS, ImageSet, data_root, load
from greedy_ensembles.data.image_set import check_channels
from greedy_ensembles.data.registry import find
from greedy_ensembles.screening.subject import Subject

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Form:
    """Images of bytes of this shape, (channels, height, width); None: unknown, or no images at all."""

    shape: Shape | None = None
    classes: tuple[str, ...] | None = None

    @classmethod
    def of_images(cls, images: ImageSet) -> "Form":
        """Return the form of an image set."""
        channels, height, width = images.images.shape[1:]
        return cls((channels, height, width), images.classes)


def form_of(subject: Subject, root: str | Path | None = None) -> Form:
    """Return what the data set that a run was trained on tells of it, if its files are in the data folder."""
    name = trained_on(subject)
    if name is None:
        return Form()
    splits = [split for split in SETS[name].counts if find(SETS[name], split, data_root(root))]
    return Form.of_images(load(name, min(splits), root)) if splits else Form()  # test before train: it is smaller


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
    check_channels(channels)
    if height != width or not height:
        raise ValueError(f"--shape must be square, as pictures are cropped to a square; got {text}")
    return channels, height, width
