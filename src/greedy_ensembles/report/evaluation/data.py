"""A comparison for programs: CSV, one figure a line, and JSON with every seed's own figures. Nothing is rounded.

Shares are from 0 to 1 and the NLL is in nats, whatever tables show; the paper's figures are brought to that scale.
"""

import csv
import dataclasses
import io
from typing import Any

from greedy_ensembles.benchmark.comparison import Comparison, Figure, Row
from greedy_ensembles.benchmark.evaluation import Evaluation
from greedy_ensembles.report.evaluation.lines import networks
from greedy_ensembles.report.json_text import to_json_text
from greedy_ensembles.version import __version__

_FIELDS = ("set", "kind", "in_domain_images", "images", "method", "seeds", "metric", "mean", "standard_error")
_PAPER_FIELDS = ("paper", "paper_standard_error", "difference", "paper_images", "note", "score", "networks", "notes")


def to_csv(comparison: Comparison) -> str:
    """Return one line for each figure of each method on each set; a set that is missing has a line without figures."""
    output = io.StringIO()
    writer = csv.DictWriter(output, [*_FIELDS, *_PAPER_FIELDS], lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        known = {
            "set": row.set,
            "kind": row.kind,
            "in_domain_images": comparison.first.in_domain.images,
            "images": row.images,
            "method": row.method,
            "paper_images": row.paper_images,
            "note": row.note,
            "score": "" if row.kind == "in-domain" else comparison.first.score,
            "networks": networks(comparison),
            "notes": "; ".join(comparison.notes),
        }
        if not row.figures:
            writer.writerow(known)
        for metric, figure in row.figures.items():
            writer.writerow({**known, "metric": metric, **_flat(figure)})
    return output.getvalue()


def _flat(figure: Figure) -> dict[str, Any]:
    cell = figure.paper
    return {
        **dataclasses.asdict(figure.ours),
        "paper": None if cell is None else cell.mean,
        "paper_standard_error": None if cell is None else cell.standard_error,
        "difference": figure.difference,
    }


def to_json(comparison: Comparison) -> str:
    """Return everything but the scores of single images; what is infinite is written as a string."""
    content = {
        "greedy_ensembles": __version__,
        "score": comparison.first.score,
        "in_domain": [_row(row) for row in comparison.in_domain_rows],
        "ood": [_row(row) for row in comparison.ood_rows],
        "means": [_row(row) for row in comparison.mean_rows],
        "missing": comparison.first.missing,
        "left_out": comparison.left_out,
        "notes": comparison.notes,
        "methods": [
            {
                "label": method.label,
                "architecture": method.architecture,
                "seeds": method.seeds,
                "sources": method.sources,
                "setting": None if method.setting is None else dataclasses.asdict(method.setting),
                "evaluations": [_without_scores(evaluation) for evaluation in method.evaluations],
            }
            for method in comparison.methods
        ],
    }
    return to_json_text(content)


def _row(row: Row) -> dict[str, Any]:
    fields = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {**fields, "figures": {metric: _flat(figure) for metric, figure in row.figures.items()}}


def _without_scores(evaluation: Evaluation) -> dict[str, Any]:
    def plain(result: Any) -> dict[str, Any]:
        names = (field.name for field in dataclasses.fields(result))
        return {name: getattr(result, name) for name in names if name != "scores"}

    return {
        "members": evaluation.members,
        "in_domain": plain(evaluation.in_domain),
        "ood": [plain(result) for result in evaluation.ood],
    }
