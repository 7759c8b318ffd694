"""The pictures that go with a comparison: curves for each OOD set, and galleries of images."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.detection import draw_curves, draw_gallery, scores_of
from greedy_ensembles.report.figure import write_figure

_LABELS = {
    "mutual_information": "mutual information (nats)",
    "predictive_entropy": "predictive entropy (nats)",
    "expected_entropy": "expected entropy (nats)",
    "max_probability": "-largest probability",
    "mean_pairwise_kl": "mean pairwise KL (nats)",
    "energy": "energy",
    "energy_of_mean": "energy of the mean logits",
}


def write_pictures(comparison: Comparison, folder: Path, images: Mapping[str, Bytes]) -> list[Path]:
    """Write all pictures of a comparison as PNG files; images as for `draw_pictures`."""
    written = []
    for name, figure in draw_pictures(comparison, images):
        written.append(folder / f"{name}.png")
        write_figure(figure, written[-1])
    return written


def draw_pictures(comparison: Comparison, images: Mapping[str, Bytes]) -> Iterator[tuple[str, Figure]]:
    """Yield curves-SET and, where images are given, gallery-SET of the first and last method.

    Args:
        comparison: what is drawn.
        images: the images of OOD sets by name, in the order of their scores.
    """
    label, inside = _LABELS[comparison.first.score], comparison.first.in_domain
    for number, (result, stem) in enumerate(zip(comparison.first.ood, _stems(comparison), strict=True)):
        scores = scores_of(comparison, number)
        yield f"curves-{stem}", draw_curves(scores, inside.name, result.name, label)
        if len(scores) > 1 and result.name in images:
            first, *_, last = scores.items()
            yield f"gallery-{stem}", draw_gallery(images[result.name], dict([first, last]), result.name)


def _stems(comparison: Comparison) -> list[str]:
    """Return a file name for each OOD set; sets of one's own are called by paths, which may look alike in it."""
    stems: list[str] = []
    for result in comparison.first.ood:
        stem = re.sub(r"[^\w-]+", "-", result.name).strip("-")
        stems.append(f"{stem}-{len(stems) + 1}" if stem in stems else stem)
    return stems
