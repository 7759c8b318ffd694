"""The form in which an ensemble takes inputs, and the names of its classes, as far as they are known.

Folders say what inputs look like (those of older versions no more than what p* tells), and a run names its image set,
whose files have the classes. A calibration keeps both beside the weights, so that a calibrated run predicts where there
is no data set.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from greedy_ensembles.data import SETS, data_root, load
from greedy_ensembles.data.image_set import check_channels
from greedy_ensembles.data.registry import find
from greedy_ensembles.inputs import InputForm
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
    """Return what is known of the images: their shape from the folder, else from the data set if that is there."""
    name, shape = trained_on(subject), _shape(subject.ensemble.inputs)
    if name is None or subject.facts is None:
        return Form(shape)
    shape = shape or subject.facts.image_shape
    splits = [split for split in SETS[name].counts if find(SETS[name], split, data_root(root))]
    if not splits:
        return Form(shape)
    images = load(name, min(splits), root)  # test before train: it is smaller
    return Form.of_images(images.images, images.classes) if shape is None else Form(shape, images.classes)


def _shape(inputs: InputForm | None) -> Shape | None:
    """Return the shape of inputs that pictures can be made into: square images of bytes."""
    if inputs is None or inputs.dtype != torch.uint8 or len(inputs.shape) != 3:
        return None
    channels, height, width = inputs.shape
    return (channels, height, width) if channels in (1, 3) and height == width <= _LARGEST else None


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
