"""What the method changes against Deep Ensembles, a row for each setting of results/: the picture that opens its page.

    python benchmarks/forest.py [--out results/forest.png]

Reads the figures of the pages, unrounded. Needs neither data nor a GPU.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from greedy_ensembles.report.figure import new_figure, plain, write_figure

RESULTS = Path(__file__).parents[1] / "results"
#: By the label of a row: the figures of a page, and the lambda_M of the method's.
SETTINGS = {
    "MNIST, PreResNet8, M = 3": ("mnist/m-3", "0.1"),
    "MNIST, PreResNet8, M = 5": ("mnist/m-5", "0.1"),
    "MNIST, PreResNet8, M = 15": ("mnist/m-15", "0.1"),
    "SVHN, VGG16BN, M = 5": ("svhn/vgg16bn-m-5", "1"),
    "CIFAR-10, VGG16BN, M = 11": ("cifar10/vgg16bn-m-11", "5"),
    "CIFAR-10, PreResNet20, M = 11": ("capacity/cifar-10", "1"),
    "CIFAR-10, PreResNet164, M = 3": ("cifar10-short/preresnet164-m-3", "1"),
    "CIFAR-10, WideResNet28x10, M = 3": ("cifar10-short/wideresnet28x10-m-3", "1"),
}
GROUPS = {"noise": ("#0072b2", "o"), "blobs": ("#8f6200", "s"), "natural": ("#c04f00", "D")}
METRICS = {"auc": "AUC, greedy less Deep Ensembles", "fpr95": "FPR95, greedy less Deep Ensembles (lower is better)"}


def group_of(name: str, kind: str) -> str:
    """Return which group an OOD set is drawn in."""
    return kind if kind == "natural" else "blobs" if name == "blobs" else "noise"


def differences(content: dict[str, Any], strength: str, metric: str) -> dict[str, list[float]]:
    """Return the mean difference over the sets of each group, one for each seed that both methods have."""
    methods = {method["label"]: method for method in content["methods"]}
    deep, greedy = (
        {seed: each["ood"] for seed, each in zip(method["seeds"], method["evaluations"], strict=True)}
        for method in (methods["Deep Ensembles"], methods[f"greedy, lambda_M = {strength}"])
    )
    found: dict[str, list[float]] = {}
    for seed in sorted(deep.keys() & greedy.keys()):
        by_group: dict[str, list[float]] = {}
        theirs = {one["name"]: one[metric] for one in deep[seed]}
        for one in greedy[seed]:
            by_group.setdefault(group_of(one["name"], one["kind"]), []).append(one[metric] - theirs[one["name"]])
        for group, values in by_group.items():
            found.setdefault(group, []).append(statistics.fmean(values))
    return found


def published(content: dict[str, Any], strength: str, metric: str) -> dict[str, float]:
    """Return the paper's differences over the sets that are here; a group of which it lacks a set has none."""
    cells: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    rows = {(row["set"], row["method"]): row for row in content["ood"] if row["figures"]}
    for (name, method), row in rows.items():
        if method == f"greedy, lambda_M = {strength}":
            pair = [rows[name, each]["figures"][metric]["paper"] for each in (method, "Deep Ensembles")]
            cells.setdefault(group_of(name, row["kind"]), {})[name] = (pair[0], pair[1])
    known = {group: _subtract(pairs.values()) for group, pairs in cells.items()}
    return {group: statistics.fmean(values) for group, values in known.items() if values}


def _subtract(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    """Return first less second of every pair, nothing where one is not known."""
    found = [None if a is None or b is None else a - b for a, b in pairs]
    return [] if None in found else [value for value in found if value is not None]


def draw(path: Path) -> None:
    """Draw a panel for each metric: seeds as dots, their mean and standard error, and the paper's value as a cross."""
    figure = new_figure(5.4, 10.5)
    axes = figure.subplots(1, len(METRICS), sharey=True)
    contents = {
        label: (json.loads((RESULTS / f"{name}.json").read_text()), of) for label, (name, of) in SETTINGS.items()
    }
    counts = []
    for axis, (metric, title) in zip(axes, METRICS.items(), strict=True):
        axis.axvline(0, color="0.4", linewidth=1)
        for row, (content, strength) in enumerate(contents.values()):
            ours, papers = differences(content, strength, metric), published(content, strength, metric)
            counts.append(max(map(len, ours.values())))
            for number, (group, (colour, marker)) in enumerate(GROUPS.items()):
                values, y = ours.get(group, []), row + 0.25 * (number - 1)
                if len(values) > 1:
                    error = statistics.stdev(values) / len(values) ** 0.5
                    axis.errorbar(statistics.fmean(values), y, xerr=error, color=colour, capsize=3, marker="|")
                axis.plot(values, [y] * len(values), marker, color=colour, markersize=5, alpha=0.8, linestyle="")
                if group in papers:
                    axis.plot(papers[group], y, "x", color=colour, markersize=7, markeredgewidth=1.6)
        axis.set_xscale("symlog", linthresh=0.05)
        ticks = [-1, -0.2, -0.05, 0, 0.05, 0.2, 1]
        axis.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
        axis.minorticks_off()
        axis.set_xlim(-1.3, 1.3)
        axis.set_xlabel(title)
        plain(axis)
    seeds = [f"{label}, lambda_M = {of}" for label, (_, of) in contents.items()]
    numbers = [f"{name}\n({n} seed{'s' if n > 1 else ''})" for name, n in zip(seeds, counts, strict=False)]
    axes[0].set_yticks(range(len(numbers)), numbers)
    axes[0].invert_yaxis()
    for group, (colour, marker) in GROUPS.items():
        axes[0].plot([], [], marker, color=colour, label=group)
    axes[0].plot([], [], "x", color="0.3", label="the paper's")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    write_figure(figure, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "forest.png", help="where the picture goes")
    draw(parser.parse_args().out)
