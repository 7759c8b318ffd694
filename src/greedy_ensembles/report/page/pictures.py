"""Images as addresses that hold all of their content, so that the page needs no other file."""

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image

from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.page.records import Gallery, Picture

_EXAMPLES = 8  # of each kind: a row on most screens
_SEED = 0


def png_address(picture: Image.Image) -> str:
    """Return a picture as a data address."""
    file = io.BytesIO()
    picture.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def galleries(
    images: Bytes, name: str, scores: Mapping[str, np.ndarray], label: str, count: int = _EXAMPLES
) -> list[Gallery]:
    """Return the images of the lowest and of the highest scores, and some drawn by lot, with the scores of all methods.

    The last method's score decides, and puts them in order; `label` is what the score is called. Extremes say what the
    ensemble takes for known and for strange; only those drawn by lot show what is usual.
    """
    last = list(scores.values())[-1]
    order = np.argsort(last, kind="stable")
    lot = np.random.default_rng(_SEED).permutation(len(images))[:count]
    chosen = {
        f"Most certain: the lowest {label}": order[:count],
        f"Least certain: the highest {label}": order[::-1][:count],
        "Drawn by lot": lot[np.argsort(last[lot], kind="stable")],
    }
    return [
        Gallery(title, [_example(images[index], name, index, scores) for index in indices.tolist()])
        for title, indices in chosen.items()
    ]


def _example(image: Bytes, name: str, index: int, scores: Mapping[str, np.ndarray]) -> Picture:
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    figures = [f"{values[index]:.3f}" for values in scores.values()]
    said = ", ".join(f"{method} {figure}" for method, figure in zip(scores, figures, strict=True))
    return Picture(png_address(Image.fromarray(pixels)), f"Image {index} of {name}; score: {said}", figures)


def coloured(values: np.ndarray, colours: Sequence[tuple[int, int, int]], top: float) -> str:
    """Return values from 0 to top, in rows from below, as a picture in colours."""
    table = np.array(colours, dtype=np.uint8)
    places = np.clip(values / (top or 1.0) * (len(table) - 1), 0, len(table) - 1).round().astype(int)
    return png_address(Image.fromarray(table[places[::-1]]))
