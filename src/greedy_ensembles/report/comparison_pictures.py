"""The pictures that go with a comparison: curves for each OOD set, a radar over all of them, galleries of images."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.evaluation import Estimate, InDomain, OutOfDistribution
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.report.detection import draw_curves, draw_gallery, scores_of
from greedy_ensembles.report.figure import write_figure
from greedy_ensembles.report.radar import draw_radar

_LABELS = {
    "mutual_information": "mutual information (nats)",
    "predictive_entropy": "predictive entropy (nats)",
    "expected_entropy": "expected entropy (nats)",
    "max_probability": "-largest probability",
    "mean_pairwise_kl": "mean pairwise KL (nats)",
    "energy": "energy",
}


def write_pictures(comparison: Comparison, folder: Path, images: Mapping[str, Bytes]) -> list[Path]:
    """Write all pictures of a comparison as PNG files; images as for `draw_pictures`."""
    written = []
    for name, figure in draw_pictures(comparison, images):
        written.append(folder / f"{name}.png")
        write_figure(figure, written[-1])
    return written


def draw_pictures(comparison: Comparison, images: Mapping[str, Bytes]) -> Iterator[tuple[str, Figure]]:
    """Yield curves-SET and, where images are given, gallery-SET of the first and last method; radar for several sets.

    Args:
        comparison: what is drawn.
        images: the images of OOD sets by name, in the order of their scores.
    """
    label, inside = _LABELS[comparison.first.score], comparison.first.in_domain
    for number, (result, stem) in enumerate(zip(comparison.first.ood, _stems(comparison), strict=True)):
        scores = {_label(name): pair for name, pair in scores_of(comparison, number).items()}
        yield f"curves-{stem}", draw_curves(scores, _noted(inside), _noted(result), label)
        if len(scores) > 1 and result.name in images:
            first, *_, last = scores.items()
            yield f"gallery-{stem}", draw_gallery(images[result.name], dict([first, last]), _noted(result))
    if len(comparison.first.ood) > 2:
        yield "radar", draw_areas(comparison)


def draw_areas(comparison: Comparison) -> Figure:
    """Draw the AUC of all methods over the OOD sets, of which there must be three or more."""
    inside = comparison.first.in_domain
    title = f"{_noted(inside)} ({inside.images:,} images) against OOD sets, AUC by {_LABELS[comparison.first.score]}"
    found = {_label(method): of_method for method, of_method in areas(comparison).items()}
    return draw_radar(found, comparison.first.ood, title)


def areas(comparison: Comparison) -> dict[str, dict[str, Estimate]]:
    """Return areas under ROC curves by method and set."""
    return {
        method.label: {row.set: row.figures["auc"].ours for row in comparison.ood_rows if row.method == method.label}
        for method in comparison.methods
    }


def _label(method: str) -> str:
    """Return a method's label with spaces at which no line is broken about its equals signs."""
    return method.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")


def _noted(result: InDomain | OutOfDistribution) -> str:
    return f"{result.name} [{result.note}]" if result.note else result.name


def _stems(comparison: Comparison) -> list[str]:
    """Return a file name for each OOD set; sets of one's own are called by paths, which may look alike in it."""
    stems: list[str] = []
    for result in comparison.first.ood:
        stem = re.sub(r"[^\w-]+", "-", result.name).strip("-")
        stems.append(f"{stem}-{len(stems) + 1}" if stem in stems else stem)
    return stems
