"""An evaluation on the page: tables that can be sorted, curves and histograms of every OOD set, examples."""

import base64
import io
from collections.abc import Mapping
from functools import partial

import numpy as np
from PIL import Image

from greedy_ensembles.benchmark.comparison import Comparison
from greedy_ensembles.benchmark.evaluation import OutOfDistribution
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.metrics import auroc, average_precision
from greedy_ensembles.report.detection import (
    Averages,
    average_scores,
    draw_histogram,
    draw_precision_recall,
    draw_roc,
    scores_of,
)
from greedy_ensembles.report.page.render import Evaluated, Gallery, OodView, Picture
from greedy_ensembles.report.results import below, tables
from greedy_ensembles.report.svg import Chart, draw_chart

_EXAMPLES = 8  # images of each kind: a row on most screens
_SEED = 0


def evaluated(comparison: Comparison, images: Mapping[str, Bytes]) -> Evaluated:
    """Return all that the page shows of a comparison; `images` by the names of sets, in the order of their scores."""
    inside, label = comparison.first.in_domain, comparison.first.score.replace("_", " ")
    found = tables(comparison)
    averages = [average_scores(scores_of(comparison, number)) for number in range(len(comparison.first.ood))]
    views = [
        _view(result, scores, label, images.get(result.name))
        for result, scores in zip(comparison.first.ood, averages, strict=True)
    ]
    known: list[Gallery] = []
    if averages and inside.name in images:
        scores = {method: pair[0] for method, pair in averages[0].items()}
        known = galleries(images[inside.name], inside.name, scores, label)
    methods = [method.label for method in comparison.methods]
    return Evaluated(found, below(comparison), methods, views, known)


def _view(result: OutOfDistribution, scores: Averages, label: str, images: Bytes | None) -> OodView:
    inside = len(next(iter(scores.values()))[0])
    note = f" Note: {result.note}." if result.note else ""
    counts = f"{result.images:,} OOD examples (the positive class) against {inside:,} in-domain ones"
    found = ", ".join(f"{method} {auroc(*pair):.3f}" for method, pair in scores.items())
    precise = ", ".join(f"{method} {average_precision(*pair):.3f}" for method, pair in scores.items())
    charts = [
        draw_chart("ROC", f"ROC curves on {result.name}; areas: {found}.", partial(draw_roc, averages=scores)),
        draw_chart(
            "Precision and recall",
            f"Precision-recall curves on {result.name}; average precision: {precise}.",
            partial(draw_precision_recall, averages=scores),
        ),
        *(_histogram(method, scores, label) for method in scores),
    ]
    outside = {method: pair[1] for method, pair in scores.items()}
    shown = [] if images is None else galleries(images, result.name, outside, label)
    return OodView(result.name, f"{counts}, by {label}.{note}", charts, shown)


def _histogram(method: str, scores: Averages, label: str) -> Chart:
    medians = " and ".join(f"{np.median(part):.3g}" for part in scores[method])
    return draw_chart(
        f"{label.capitalize()}: {method}",
        f"Histograms of {label} by {method}; medians in-domain and OOD: {medians}.",
        partial(draw_histogram, averages=scores, method=method),
        x_label=f"{label}; grey: in-domain",
        y_label="examples (%)",
    )


def galleries(images: Bytes, name: str, scores: Mapping[str, np.ndarray], label: str) -> list[Gallery]:
    """Return the images of the lowest and of the highest scores, and some drawn by lot, with the scores of all methods.

    The last method's score decides, and puts them in order; `label` is what the score is called. Extremes say what the
    ensemble takes for known and for strange; only those drawn by lot show what is usual.
    """
    last = list(scores.values())[-1]
    order = np.argsort(last, kind="stable")
    lot = np.random.default_rng(_SEED).permutation(len(images))[:_EXAMPLES]
    chosen = {
        f"Most certain: the lowest {label}": order[:_EXAMPLES],
        f"Least certain: the highest {label}": order[::-1][:_EXAMPLES],
        "Drawn by lot": lot[np.argsort(last[lot], kind="stable")],
    }
    return [
        Gallery(title, [_example(images[index], name, index, scores) for index in indices.tolist()])
        for title, indices in chosen.items()
    ]


def _example(image: Bytes, name: str, index: int, scores: Mapping[str, np.ndarray]) -> Picture:
    pixels = image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    address = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    figures = [f"{values[index]:.3f}" for values in scores.values()]
    said = ", ".join(f"{method} {figure}" for method, figure in zip(scores, figures, strict=True))
    return Picture(address, f"Image {index} of {name}; score: {said}", figures)
