import io

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def random_bytes():
    """Random uint8 arrays of a shape."""
    generator = np.random.default_rng(3)
    return lambda *shape: generator.integers(0, 256, shape, np.uint8)


@pytest.fixture
def encoded():
    """An array (height, width) or (height, width, 3) as the bytes of a picture file; PNG keeps every pixel."""

    def encode(pixels, kind="PNG"):
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, kind)
        return buffer.getvalue()

    return encode


@pytest.fixture
def write_idx():
    """Write an array as an idx file."""

    def write(path, array, kind=8):
        path.parent.mkdir(parents=True, exist_ok=True)
        header = bytes([0, 0, kind, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
        path.write_bytes(header + array.tobytes())
        return path

    return write
