"""The guarantee study on paper: tables, a figure and a page, with all numbers taken from the data."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from greedy_ensembles.paper.guarantee_figure import draw_guarantee
from greedy_ensembles.paper.guarantee_page import Provenance, page
from greedy_ensembles.paper.guarantee_summary import (
    ALGORITHMS,
    CellResult,
    Summary,
    bound,
    pooled,
    summarise,
    value_ratio,
)
from greedy_ensembles.storage import write_bytes

__all__ = ["CellResult", "Provenance", "Summary", "write_report"]


def write_report(results: Sequence[CellResult], provenance: Provenance, out: Path) -> None:
    """Write ``guarantee.csv`` (every cell), ``guarantee.png`` and the page ``guarantee.md`` (by generator)."""
    generators = list(dict.fromkeys(result.generator for result in results))
    order = {name: place for place, name in enumerate(generators)}
    cells = sorted(results, key=lambda cell: (order[cell.generator], cell.candidates, cell.size))
    rows = []
    for cell in cells:
        data = {name: np.asarray(values) for name, values in cell.measurements.items()}
        rows += [summarise(data, cell.generator, str(cell.candidates), str(cell.size), a) for a in ALGORITHMS]
    _write_csv(rows, out / "guarantee.csv")
    pools = {generator: pooled(results, generator) for generator in generators}
    candidates, sizes = (_span([getattr(cell, name) for cell in cells]) for name in ("candidates", "size"))
    summaries = [summarise(pools[f], f, candidates, sizes, a) for f in generators for a in ALGORITHMS]
    draw_guarantee({f: _figures(data) for f, data in pools.items()}, out / "guarantee.png")
    write_bytes(out / "guarantee.md", [page(rows, summaries, pools, provenance).encode()])


def _span(values: list[int]) -> str:
    return f"{min(values)}-{max(values)}" if min(values) < max(values) else str(values[0])


def _write_csv(rows: Sequence[Summary], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Summary))
        for row in rows:
            writer.writerow(_cell(value) for value in asdict(row).values())


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(value)


def _figures(data: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what the figure shows of a generator, one number an instance."""
    shown = {}
    for algorithm in ALGORITHMS:
        shown[f"value {algorithm}"] = value_ratio(data, algorithm)
        shown[f"divergence {algorithm}"] = data[algorithm] / data["best"]
        shown[f"used {algorithm}"] = data[algorithm] / bound(data)
    shown.update({name: values for name, values in data.items() if name.endswith("_rank_correlation")})
    return shown
