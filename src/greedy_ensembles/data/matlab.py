"""SVHN's .mat files: X (height, width, channels, n) and y (n, 1), where the digit 0 is called 10."""

from pathlib import Path

import numpy as np

from greedy_ensembles.data.image_set import Bytes


def read_svhn(path: Path) -> tuple[Bytes, Bytes]:
    """Return (images, labels) of a file of cropped digits."""
    from scipy.io import loadmat  # slow to import

    with path.open("rb") as file:
        try:
            content = loadmat(file, variable_names=["X", "y"])
            images, labels = content["X"], content["y"].ravel()
        except Exception as error:  # scipy raises whatever the bytes lead it to
            raise ValueError(f"{path} is not a readable .mat file with X and y: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[2] != 3 or len(labels) != images.shape[3]:
        raise ValueError(f"{path} holds X of {images.dtype} {images.shape} and {len(labels)} labels")
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise ValueError(f"{path} holds labels {labels.min()} to {labels.max()}, expected 1 to 10")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), (labels % 10).astype(np.uint8)
