"""Images as addresses that hold all of their content, so that the page needs no other file."""

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.page.records import Picture

EXAMPLES = 10
_SEED = 0


def png_address(picture: Image.Image) -> str:
    """Return a picture as a data address."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def examples(images: Bytes, name: str, scores: Mapping[str, np.ndarray], count: int = EXAMPLES) -> list[Picture]:
    """Return images drawn by lot, in order of the last method's score, with the scores of all methods."""
    lot = np.random.default_rng(_SEED).permutation(len(images))[:count]
    last = list(scores.values())[-1]
    return [_example(images[index], name, index, scores) for index in sorted(lot, key=lambda index: float(last[index]))]


def _example(image: Bytes, name: str, index: int, scores: Mapping[str, np.ndarray]) -> Picture:
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    figures = [f"{values[index]:.2f}" for values in scores.values()]
    said = ", ".join(f"{method} {figure}" for method, figure in zip(scores, figures, strict=True))
    return Picture(png_address(Image.fromarray(pixels)), f"Image {index} of {name}; score: {said}", figures)


def coloured(values: np.ndarray, colours: Sequence[tuple[int, int, int]], top: float) -> str:
    """Return values from 0 to top, in rows from below, as a picture in colours."""
    table = np.array(colours, dtype=np.uint8)
    places = np.clip(values / (top or 1.0) * (len(table) - 1), 0, len(table) - 1).round().astype(int)
    return png_address(Image.fromarray(table[places[::-1]]))
