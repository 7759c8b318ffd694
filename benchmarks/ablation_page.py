"""The page of `ablation.py`: what each piece is worth, as Markdown."""

from typing import Any

from pieces import CELLS, COMPILED, EVERYTHING, ONCE_COMPILED, PLAIN, VARIANTS
from speed_page import MODELS, PREDICTING

#: A piece is worth keeping where a step without it takes this many times as long, on so many networks.
WORTH, NETWORKS = 1.10, 2
_COLUMNS = [f"{schedule}, p* {samples}" for schedule, samples in CELLS]
_TWICE = f"{EVERYTHING}, again"

Rows = dict[str, dict[str, dict[str, Any]]]


def page(content: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    measured = content["measured"]
    lines = [
        "# What each piece is worth",
        "",
        f"Milliseconds per member and step (batch {content['batch']}, CIFAR-10 shapes, bf16, samples of p* normalised "
        "by the statistics of the step's examples; medians of three epochs), and in brackets how many times as long as "
        "with everything. Sequential: the sixth member, with five in the bank. Ready: seconds before the first epoch, "
        "compiling included, the longest of the row; what was compiled before in the same run is found in a cache.",
        "",
        *(_header(run) for run in content["runs"]),
        "",
        "`*`: beside the figure of another run. Everything is not compiled: the networks have no BatchNorm layer "
        "that is not fused by hand. Steps that are not captured have no working copies either.",
    ]
    for model in MODELS:
        if model in measured:
            lines += _table(model, measured[model], _COLUMNS)
    lines += _verdicts({model: measured[model] for model in MODELS if model in measured})
    for part, model in PREDICTING.items():
        if part in measured:
            title = f"Predicting 10,000 images with {content['size']} members of {model}, ms"
            lines += _table(title, measured[part], ["predict_proba"])
    return "\n".join(lines) + "\n"


def _header(run: dict[str, Any]) -> str:
    commit = f", commit {run['commit'][:12]}" if run["commit"] else ""
    return f"- `{run['command']}`, {run['date']}, {run['machine']}, torch {run['torch']}{commit}"


def _table(title: str, rows: Rows, columns: list[str]) -> list[str]:
    counts = {entry["members"] for cells in rows.values() for entry in cells.values() if entry.get("members", 1) > 1}
    together = f" ({max(counts)} members together)" if counts else ""
    lines = [
        "",
        f"## {title}{together}",
        "",
        f"| | {' | '.join(columns)} | ready, s | worth >= 10 % |",
        f"|---|{'---|' * (len(columns) + 2)}",
    ]
    errors = []
    for name, cells in rows.items():
        ready = [entry["ready_seconds"] for entry in cells.values() if "ready_seconds" in entry]
        figures = [_figure(rows, name, column) for column in columns]
        worth = "" if name in (EVERYTHING, _TWICE) else _yes(max(_ratios(rows, name).values(), default=None))
        lines.append(f"| {name} | {' | '.join(figures)} | {f'{max(ready):.1f}' if ready else ''} | {worth} |")
        errors += [f"- {name}, {column}: {entry['error']}" for column, entry in cells.items() if "error" in entry]
    return [*lines, *(["", "Failed:", "", *errors] if errors else [])]


def _figure(rows: Rows, name: str, column: str) -> str:
    entry = rows.get(name, {}).get(column)
    if entry is None:
        return ""
    if "error" in entry:
        return "failed"
    ratio = _ratios(rows, name).get(column)
    if ratio is None:
        return f"{entry['milliseconds']:.2f}"
    other = "" if entry["run"] == rows[EVERYTHING][column]["run"] else "*"
    return f"{entry['milliseconds']:.2f} ({ratio:.2f}{other})"


def _ratios(rows: Rows, name: str, base: str = EVERYTHING) -> dict[str, float]:
    """Return how many times as long each column of a row takes as that of another, where both were measured."""
    least = {c: e["milliseconds"] for c, e in rows.get(base, {}).items() if "milliseconds" in e}
    found = {c: e["milliseconds"] for c, e in rows.get(name, {}).items() if "milliseconds" in e}
    return {column: found[column] / least[column] for column in found if column in least}


def _yes(ratio: float | None) -> str:
    return "" if ratio is None else "yes" if ratio >= WORTH else "no"


def _verdicts(models: dict[str, Rows]) -> list[str]:
    """Return for each piece its largest ratio on every network, and whether it is to stay."""
    if not models:
        return []
    pieces = [variant.name for variant in VARIANTS if variant.name.startswith("less ") and variant.compiled is None]
    lines = [
        "",
        "## Worth >= 10 % of a step",
        "",
        f"The largest ratio of a network's columns. Keep: at least {WORTH:.2f} on {NETWORKS} of the three networks.",
        "",
        f"| piece | {' | '.join(models)} | |",
        f"|---|{'---|' * (len(models) + 1)}",
    ]
    for name in pieces:
        best = {model: max(_ratios(rows, name).values(), default=None) for model, rows in models.items()}
        lines.append(_verdict(name.removeprefix("less "), best))
    compiled = {model: max(_ratios(rows, PLAIN, COMPILED).values(), default=None) for model, rows in models.items()}
    lines.append(_verdict("compiling (plain over plain, compiled)", compiled))
    lines.append(_verdict("all our layers (the fastest plain over everything)", _against_plain(models)))
    return lines


def _against_plain(models: dict[str, Rows]) -> dict[str, float | None]:
    """Return the largest ratio of the fastest of PyTorch's layers to everything, by network."""
    found: dict[str, float | None] = {}
    for model, rows in models.items():
        ways = [_ratios(rows, name) for name in (PLAIN, COMPILED, ONCE_COMPILED)]
        columns = {column for way in ways for column in way}
        found[model] = max((min(way[c] for way in ways if c in way) for c in columns), default=None)
    return found


def _verdict(name: str, best: dict[str, float | None]) -> str:
    cells = ["" if ratio is None else f"{ratio:.2f}" for ratio in best.values()]
    known = [ratio for ratio in best.values() if ratio is not None]
    count = sum(ratio >= WORTH for ratio in known)
    unsure = count < NETWORKS and len(best) < len(MODELS)
    verdict = "" if not known else "keep" if count >= NETWORKS else "open" if unsure else f"delete ({count} of 3)"
    return f"| {name} | {' | '.join(cells)} | {verdict} |"
