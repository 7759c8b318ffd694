"""An evaluation on the page: tables that can be sorted, curves and histograms of every OOD set, a radar, examples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from greedy_ensembles.benchmark.comparison import Cell, Comparison
from greedy_ensembles.benchmark.evaluation import OutOfDistribution
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.metrics import auroc, average_precision, precision_recall_curve, roc_curve
from greedy_ensembles.report.detection import Averages, average_scores, thin
from greedy_ensembles.report.page import charts
from greedy_ensembles.report.page.charts import Chart, Frame, Radar, Series, line_chart
from greedy_ensembles.report.page.pictures import galleries
from greedy_ensembles.report.page.records import Evaluated, Gallery, OodView
from greedy_ensembles.report.results import tables
from greedy_ensembles.report.table import Table

_BINS = 40
_SHOWN = 0.999  # of each histogram: a single far image would squeeze all others into a corner


def evaluated(comparison: Comparison, images: Mapping[str, Bytes]) -> Evaluated:
    """Return all that the page shows of a comparison; `images` by the names of sets, in the order of their scores."""
    inside = comparison.first.in_domain
    found = tables(comparison)
    averages = [_averages(comparison, number) for number in range(len(comparison.first.ood))]
    views = [
        _view(result, scores, comparison.first.score, images.get(result.name))
        for result, scores in zip(comparison.first.ood, averages, strict=True)
    ]
    known: list[Gallery] = []
    if averages and inside.name in images:
        scores = {method: pair[0] for method, pair in averages[0].items()}
        known = galleries(images[inside.name], inside.name, scores, _spoken(comparison.first.score))
    methods = [method.label for method in comparison.methods]
    return Evaluated(found, _notes(found), methods, _radar(comparison), views, known)


def _notes(found: Sequence[Table]) -> list[str]:
    printed = any(isinstance(entry.published, Cell) for table in found for row in table.rows for entry in row.values())
    return [
        *(["paper: as printed there; its means are over the sets that are here"] if printed else []),
        *found[0].notes,
    ]


def _averages(comparison: Comparison, number: int) -> Averages:
    """Return, by method, the scores of in-domain images and of one OOD set, averaged over seeds as in the pictures."""
    return average_scores(
        {
            method.label: (
                np.stack([evaluation.in_domain.scores for evaluation in method.evaluations]),
                np.stack([evaluation.ood[number].scores for evaluation in method.evaluations]),
            )
            for method in comparison.methods
        }
    )


def _view(result: OutOfDistribution, scores: Averages, score: str, images: Bytes | None) -> OodView:
    label = _spoken(score)
    inside = len(next(iter(scores.values()))[0])
    note = f" Note: {result.note}." if result.note else ""
    summary = f"{result.images:,} OOD images (the positive class) against {inside:,} in-domain ones, by {label}.{note}"
    shown = [_roc(result.name, scores), _precision_recall(result.name, scores)]
    shown += [_histogram(method, number, pair, scores, label) for number, (method, pair) in enumerate(scores.items())]
    outside = {method: pair[1] for method, pair in scores.items()}
    found = [] if images is None else galleries(images, result.name, outside, label)
    return OodView(result.name, summary, shown, found)


def _spoken(score: str) -> str:
    return score.replace("_", " ")


def _roc(name: str, scores: Averages) -> Chart:
    lines, areas = {}, []
    for method, (inside, outside) in scores.items():
        false, true, _ = roc_curve(inside, outside)
        lines[method] = thin(false, true)
        areas.append(f"{method} {auroc(inside, outside):.3f}")
    alt = f"ROC curves on {name}; areas: {', '.join(areas)}."
    chart = line_chart("ROC", alt, "false-positive rate", "true-positive rate", lines, rates=True)
    return _with_chance(chart, np.array([0.0, 1.0]), np.array([0.0, 1.0]))


def _precision_recall(name: str, scores: Averages) -> Chart:
    lines, areas = {}, []
    for method, (inside, outside) in scores.items():
        precision, recall, _ = precision_recall_curve(inside, outside)
        # The steps whose area is AP: where recall grows, at the precision of the point that it grows to.
        grown = np.flatnonzero(np.diff(recall)) + 1
        lines[method] = thin(np.repeat(np.r_[0.0, recall[grown]], 2)[1:-1], np.repeat(precision[grown], 2))
        areas.append(f"{method} {average_precision(inside, outside):.3f}")
    share = len(outside) / (len(inside) + len(outside))
    alt = f"Precision-recall curves on {name}; average precision: {', '.join(areas)}."
    chart = line_chart("Precision and recall", alt, "recall", "precision", lines, rates=True)
    return _with_chance(chart, np.array([0.0, 1.0]), np.array([share, share]))


def _with_chance(chart: Chart, x: np.ndarray, y: np.ndarray) -> Chart:
    chance = Series("chance", 0, Frame((0.0, 1.0), (0.0, 1.0)).line(x, y), "chance")
    return replace(chart, series=[chance, *chart.series])


def _histogram(method: str, number: int, pair: tuple[np.ndarray, np.ndarray], scores: Averages, label: str) -> Chart:
    """Return shares of images in bins that all methods have in common, heights on a root scale."""
    parts = [part for every in scores.values() for part in every]
    high = max(float(np.quantile(part, _SHOWN, method="higher")) for part in parts)
    edges = np.histogram_bin_edges([], _BINS, (0.0, high or 1.0))  # no score is below 0
    shares = [100 * np.histogram(part, edges)[0] / len(part) for part in pair]
    frame = Frame((float(edges[0]), float(edges[-1])), (0.0, 10.0))
    series = [
        Series(name, style, _steps(frame, edges, np.sqrt(share)), kind)
        for name, style, share, kind in (("in-domain", 0, shares[0], "inside"), (method, number, shares[1], "area"))
    ]
    medians = " and ".join(f"{np.median(part):.3g}" for part in pair)
    alt = f"Histograms of {label} by {method}; medians in-domain and OOD: {medians}."
    return Chart(
        f"{label.capitalize()}: {method}",
        alt,
        f"{label}; grey: in-domain",
        "images (%)",
        frame.ticks(charts.nice(*frame.x), frame.across),
        [(tick[0], f"{value}") for value in (0, 4, 25, 64, 100) for tick in frame.ticks([value**0.5], frame.up)],
        series,
    )


def _steps(frame: Frame, edges: np.ndarray, heights: np.ndarray) -> str:
    x = np.repeat(edges, 2)
    y = np.r_[0.0, np.repeat(heights, 2), 0.0]
    return frame.line(x, y) + "Z"


def _radar(comparison: Comparison) -> Radar | None:
    """Return areas under ROC curves over the OOD sets, if these are three or more."""
    sets = comparison.first.ood
    if len(sets) < 3:
        return None
    rows = comparison.ood_rows
    values = {
        method.label: [
            row.figures["auc"].ours.mean for row in rows if row.method == method.label and row.kind != "missing"
        ]
        for method in comparison.methods
    }
    names = [each.name if len(each.name) <= 16 else f"{each.name[:15]}…" for each in sets]
    spoken = "; ".join(
        f"{method}: " + ", ".join(f"{name} {value:.3f}" for name, value in zip(names, row, strict=True))
        for method, row in values.items()
    )
    return charts.radar(f"Radar of areas under ROC curves. {spoken}.", names, values)
