"""What the method changes against Deep Ensembles, a row for each setting of results/: the picture that opens its page.

    python benchmarks/forest.py [--out results/forest.png]

Reads the figures of the pages, unrounded. Needs neither data nor a GPU.

The grey band is by how much two tries of one run differ at the most, of the two runs in REPEATED. Both are of CIFAR-10,
and all members trained; three others, in which members failed, differ by more. It is of the sets that both tries were
judged on: Bernoulli, Gaussian and uniform noise; blobs; DTD, which is used for choosing; and Tiny ImageNet, one of the
others. It stands behind the rows of CIFAR-10 alone: no run on MNIST or SVHN was made twice.

An asterisk marks a row whose natural sets are DTD and Tiny ImageNet alone.
"""

import argparse
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import repeats
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from greedy_ensembles.paper.study import CHOOSING
from greedy_ensembles.report.figure import COLOURS, LARGE, NORMAL, PALE, new_figure, plain, write_figure
from greedy_ensembles.report.results import plural

RESULTS = Path(__file__).parents[1] / "results"


class Setting(NamedTuple):
    """A row: what it is called, where its figures are, and of which lambda_M."""

    network: str  #: the data set and the network
    size: str  #: M, and the epochs where they are not the paper's
    records: str
    strength: str  #: lambda_M; and p*, where the page has several

    @property
    def dataset(self) -> str:
        """The in-domain set."""
        return self.network.partition(",")[0].replace("-", "").lower()

    @property
    def content(self) -> Any:
        """The figures of the page."""
        return json.loads((RESULTS / f"{self.records}.json").read_text())


_CURVE, _SHORT = "weighting/records/cifar-10-vgg16bn-m-5-30-epochs-lambda-m", "cifar10-short/records"
_BATCH = "p-star-batch/records/cifar-10-vgg16bn-m-5-30-epochs-p-batch-32"
SETTINGS = (
    *(Setting("MNIST, PreResNet8", f"M = {size}", f"mnist/records/m-{size}", "0.1") for size in (3, 5, 7, 9, 15)),
    Setting("SVHN, VGG16BN", "M = 5", "svhn/records/vgg16bn-m-5", "1"),
    Setting("CIFAR-10, VGG16BN", "M = 11", "cifar10/records/vgg16bn-m-11", "5"),
    Setting("CIFAR-10, VGG16BN*", "M = 11", "cifar10-lambda/records/vgg16bn-m-11", "1"),
    Setting("CIFAR-10, VGG16BN", "M = 5, 30 epochs", _CURVE, "5"),
    *(Setting("CIFAR-10, VGG16BN", "M = 5, 30 epochs", _BATCH, f"1, p* = {p}") for p in ("wrap", "half", "scramble")),
    Setting("CIFAR-10, PreResNet20", "M = 11", "capacity/records/cifar-10", "1"),
    Setting("CIFAR-10, PreResNet164", "M = 3, 15 epochs", f"{_SHORT}/preresnet164-m-3", "1"),
    Setting("CIFAR-10, WideResNet28x10", "M = 3, 15 epochs", f"{_SHORT}/wideresnet28x10-m-3", "1"),
)
#: By group, the title of its column.
GROUPS = {
    "noise": "noise",
    "blobs": "blobs",
    "choosing": "natural sets\nused for choosing",
    "other": "other natural sets",
}
METRICS = {"auc": "AUC, higher is better", "fpr95": "FPR95, lower is better"}
#: Runs that were made twice and whose members trained well: what they differ by is chance.
REPEATED = (
    "cifar10-PreResNet20-M11-greedy-10-batch8-batch-statistics-concurrent-bf16-seed0",
    "cifar10-WideResNet28x10-M3-greedy-1-batch8-batch-statistics-15epochs-concurrent-bf16-seed0",
)
_P_STAR = {"wrap": "noise", "half": "half of each", "scramble": "scrambled images"}
_TICKS = (-1, -0.5, -0.2, -0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


def group_of(name: str, kind: str, dataset: str) -> str:
    """Return which group an OOD set is drawn in: natural sets are used for choosing a default, or have no say."""
    group = repeats.group_of(name, kind)
    return group if group != "natural" else "choosing" if name in CHOOSING[dataset] else "other"


def differences(content: dict[str, Any], strength: str, metric: str, dataset: str) -> dict[str, list[float]]:
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
            group = group_of(one["name"], one["kind"], dataset)
            by_group.setdefault(group, []).append(one[metric] - theirs[one["name"]])
        for group, values in by_group.items():
            found.setdefault(group, []).append(statistics.fmean(values))
    return found


def published(content: dict[str, Any], strength: str, metric: str, dataset: str) -> dict[str, float]:
    """Return the paper's differences over the sets that are here; a group of which it lacks a set has none."""
    cells: dict[str, dict[str, tuple[float | None, float | None]]] = {}
    rows = {(row["set"], row["method"]): row for row in content["ood"] if row["figures"]}
    for (name, method), row in rows.items():
        if method == f"greedy, lambda_M = {strength}":
            pair = [rows[name, each]["figures"][metric]["paper"] for each in (method, "Deep Ensembles")]
            cells.setdefault(group_of(name, row["kind"], dataset), {})[name] = (pair[0], pair[1])
    known = {group: _subtract(pairs.values()) for group, pairs in cells.items()}
    return {group: statistics.fmean(values) for group, values in known.items() if values}


def _subtract(pairs: Iterable[tuple[float | None, float | None]]) -> list[float]:
    """Return first less second of every pair, nothing where one is not known."""
    found = [None if a is None or b is None else a - b for a, b in pairs]
    return [] if None in found else [value for value in found if value is not None]


def chance(metric: str) -> dict[str, float]:
    """Return by how much the tries of a run that was made again differ in each group, at the most."""
    tries = repeats.tries(RESULTS)
    each = [
        repeats.spread(tries[name], metric, lambda own, kind: group_of(own, kind, "cifar10"), tuple(GROUPS))
        for name in REPEATED
    ]
    return {group: max(one[group] for one in each) for group in GROUPS}


def draw(path: Path) -> None:
    """Draw a panel for each metric and group: seeds as dots, mean and standard error, the paper's value as a cross."""
    figure = new_figure(12, 12)
    axes = figure.subplots(len(METRICS), len(GROUPS), sharey=True, squeeze=False)
    contents = [each.content for each in SETTINGS]
    asked = [(content, each.strength, each.dataset) for content, each in zip(contents, SETTINGS, strict=True)]
    repeated = [row for row, each in enumerate(SETTINGS) if each.dataset == "cifar10"]
    for panels, (metric, title) in zip(axes, METRICS.items(), strict=True):
        bands = chance(metric)
        ours = [differences(content, strength, metric, data) for content, strength, data in asked]
        papers = [published(content, strength, metric, data) for content, strength, data in asked]
        for axis, (group, heading), colour in zip(panels, GROUPS.items(), COLOURS, strict=False):
            rows = [repeated[0] - 0.5, repeated[-1] + 0.5]
            axis.fill_betweenx(rows, -bands[group], bands[group], color=PALE, linewidth=0)
            _draw_panel(axis, [one.get(group, []) for one in ours], [one.get(group) for one in papers], colour)
            if metric == next(iter(METRICS)):
                axis.set_title(heading, fontsize=LARGE)
        panels[0].set_ylabel(title, fontsize=LARGE)
        panels[0].set_yticks(range(len(SETTINGS)), list(map(_label, SETTINGS, contents)))
    axes[0, 0].invert_yaxis()
    figure.supxlabel("greedy less Deep Ensembles, mean over the sets of a column", fontsize=LARGE)
    dot: dict[str, Any] = {"color": "0.3", "linestyle": ""}
    shown = [
        Line2D([], [], marker="o", label="a seed", **dot),
        Line2D([], [], marker="|", color="0.3", label="mean ± standard error"),
        Line2D([], [], marker="x", markersize=7, label="the paper", **dot),
        Patch(color=PALE, label="same run twice"),
    ]
    figure.legend(handles=shown, loc="outside upper center", ncols=4, frameon=False, fontsize=LARGE)
    write_figure(figure, path)


def _label(setting: Setting, content: dict[str, Any]) -> str:
    strength, _, weighting = setting.strength.partition(", p* = ")
    network = setting.network + (f", p*: {_P_STAR[weighting]}" if weighting else "")
    seeds = plural(len(content["methods"][0]["seeds"]), "seed")
    return f"{network}\n{setting.size}, $\\lambda_M$ = {strength}, {seeds}"


def _draw_panel(axis: Axes, ours: list[list[float]], papers: list[float | None], colour: str) -> None:
    """Draw a row for each setting; the axis is linear up to .05 and logarithmic beyond."""
    axis.axvline(0, color="0.4", linewidth=1)
    for row, (values, paper) in enumerate(zip(ours, papers, strict=True)):
        if len(values) > 1:
            error = statistics.stdev(values) / len(values) ** 0.5
            axis.errorbar(statistics.fmean(values), row + 0.2, xerr=error, color=colour, capsize=3, marker="|")
        axis.plot(values, [row] * len(values), "o", color=colour, markersize=5, alpha=0.8)
        if paper is not None:
            axis.plot(paper, row - 0.2, "x", color=colour, markersize=6, markeredgewidth=1.5)
    axis.set_xscale("symlog", linthresh=0.05)
    low, high = axis.get_xlim()
    inside = [tick for tick in _TICKS if low <= tick <= high]
    axis.set_xticks(_apart(inside), [f"{tick:+g}".replace("0.", ".") if tick else "0" for tick in _apart(inside)])
    axis.minorticks_off()
    plain(axis)
    axis.tick_params(labelsize=NORMAL)


def _apart(ticks: list[float]) -> list[float]:
    """Return every tick that is not next to 0 or to one that is kept, from 0 outwards."""
    kept = [0.0]
    for sign in (1, -1):
        side = sorted((tick for tick in ticks if tick * sign > 0), key=abs)
        kept += side[-1::-2] if len(ticks) > 5 else side
    return sorted(kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "forest.png", help="where the picture goes")
    draw(parser.parse_args().out)
