"""The guarantee study on paper: ratios over instances as CSV and Markdown, and a figure."""

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from greedy_ensembles.paper.pages import Page, publish
from greedy_ensembles.paper.sections import bullets
from greedy_ensembles.report.figure import new_figure, write_figure
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.theory.objective import INAPPROXIMABILITY, RANDOM_GREEDY_FACTOR

TABLE = "records/guarantee.csv"  #: beside the page
ALGORITHMS = ("greedy", "random_greedy", "random_selection", "surrogate_greedy")
AVERAGED = ("random_greedy", "random_selection")  # over sets, so that none of them can be said to be the optimum
#: Of the page: heading, name of the figure, format.
_COLUMNS = {
    "F ratio, mean": ("value_ratio_mean", ".3f"),
    "5 %": ("value_ratio_5_percent", ".3f"),
    "least": ("value_ratio_min", ".3f"),
    "below 1/e": ("below_factor", ".1%"),
    "below 0.491": ("below_hardness", ".1%"),
    "D / min D, median": ("divergence_ratio_median", ".3g"),
    "95 %": ("divergence_ratio_95_percent", ".3g"),
    "optimum found": ("optimum_found", ".1%"),
    "least slack": ("slack_min", ".3g"),
    "D / bound, median": ("used_median", ".2g"),
}
_EXACT = 1e-9  # a divergence this close to the least one is it, but for rounding
_SURROGATES = {"expected": "expectation", "power": "expectation, f as a power", "point": "point estimate"}
#: What the page and its picture call generators and algorithms, where their names are not words.
_NAMES = {
    "kl": "KL",
    "reverse_kl": "reverse KL",
    "jensen_shannon": "Jensen-Shannon",
    "squared_hellinger": "squared Hellinger",
    "pearson_chi2": "Pearson chi2",
    "neyman_chi2": "Neyman chi2",
    "surrogate_greedy": "greedy by the expectation",
}
_COLOURS = {
    "greedy": "#1f5fbf",
    "random_greedy": "#e08214",
    "surrogate_greedy": "#7b3294",
    "random_selection": "#7f7f7f",
}
_RANKINGS = {
    "expected_rank_correlation": ("expectation", _COLOURS["surrogate_greedy"]),
    "point_rank_correlation": ("point estimate", "#1b7837"),
}
_CAPTION = (
    "Dot: median; thick: 5 % to 95 % of the instances; thin: all of them. Random greedy: the mean of its draws; random "
    "selection: the mean of all sets. Dashed: 1/e, the guarantee of Random Greedy; 0.491, no efficient algorithm can "
    "guarantee more; on the lower left the paper's bound on D."
)

Measurements = dict[str, list[float]]  # of a cell, one number an instance
Data = dict[str, np.ndarray]  # likewise, of several cells


@dataclass(frozen=True)
class Cell:
    """What a cell is of."""

    generator: str
    candidates: int
    size: int

    @property
    def name(self) -> str:
        """The name of the cell's file."""
        return f"{self.generator}-n{self.candidates}-M{self.size}"


def write_report(results: Mapping[Cell, Measurements], provenance: Mapping[str, str], out: Path) -> None:
    """Write ``records/guarantee.csv`` (every cell), ``guarantee.png`` and the page ``guarantee.md`` (by generator)."""
    generators = list(dict.fromkeys(cell.generator for cell in results))
    cells = sorted(results, key=lambda cell: (generators.index(cell.generator), cell.candidates, cell.size))
    ordered = {cell: results[cell] for cell in cells}
    _write_csv(ordered, out / TABLE)
    pools = {f: _pooled({cell: own for cell, own in ordered.items() if cell.generator == f}) for f in generators}
    draw_guarantee({f: _figures(data) for f, data in pools.items()}, out / "guarantee.png")
    rows = [
        [_name(f), _name(algorithm), *_row(summarise(data, algorithm))]
        for f, data in {"all": _pooled(ordered), **pools}.items()
        for algorithm in ALGORITHMS
    ]
    heading, every = ["f", "algorithm", *_COLUMNS], len(ALGORITHMS)
    parts = [
        "## By generator",
        "![Ratios, bounds and rank correlations by generator](guarantee.png)",
        f"*{_CAPTION}*",
        f"All ground sets and sizes together; [{TABLE}]({TABLE}) has every cell by itself.",
        markdown_table(heading, rows[every:]),
        "## The constant, and Random Greedy with dummies",
        _dummies_table(pools),
        "## How surrogates rank candidates beside the exact gain, steps 2 to M",
        _rankings_table(pools),
    ]
    parts += ["## How it was made", bullets(f"{name}: {value}" for name, value in provenance.items())]
    publish(out, "guarantee", Page("How good is greedy?", parts, markdown_table(heading, rows[:every])))


def _name(raw: str) -> str:
    return _NAMES.get(raw, raw.replace("_", " "))


def _row(figures: Mapping[str, float]) -> list[str]:
    return ["" if np.isnan(figures[name]) else f"{figures[name]:{form}}" for name, form in _COLUMNS.values()]


def _pooled(results: Mapping[Cell, Measurements]) -> Data:
    """Return what all cells have measured, one after another, and M beside it."""
    names = set.intersection(*map(set, results.values()))
    together = {name: np.concatenate([own[name] for own in results.values()]) for name in sorted(names)}
    together["size"] = np.concatenate([np.full(len(own["best"]), cell.size) for cell, own in results.items()])
    return together


def _write_csv(results: Mapping[Cell, Measurements], path: Path) -> None:
    rows = []
    for cell, algorithm in product(results, ALGORITHMS):
        place = {**asdict(cell), "algorithm": algorithm, "instances": len(results[cell]["best"])}
        figures = summarise(_pooled({cell: results[cell]}), algorithm)
        rows.append(place | {name: "" if np.isnan(value) else f"{value:.6g}" for name, value in figures.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def value_ratio(data: Data, algorithm: str) -> np.ndarray:
    """Return F(found) / F(optimum) for F = C - D; 1 where all sets are equally good."""
    room = data["worst"] - data["best"]
    return np.where(room > 0, (data["worst"] - data[algorithm]) / np.where(room > 0, room, 1), 1.0)


def bound(data: Data) -> np.ndarray:
    """Return the paper's bound on D(found), min D / e + (1 - 1/e) max D."""
    return np.asarray(RANDOM_GREEDY_FACTOR * data["best"] + (1 - RANDOM_GREEDY_FACTOR) * data["worst"])


def summarise(data: Data, algorithm: str) -> dict[str, float]:
    """Return what an algorithm finds over instances, by the names that ``guarantee.csv`` has for it."""
    values, ratio = value_ratio(data, algorithm), data[algorithm] / data["best"]
    slack, exact = bound(data) - data[algorithm], (ratio <= 1 + _EXACT).mean()
    found = {
        "value_ratio_mean": values.mean(),  # F(found) / F(optimum), with F = C - D
        "value_ratio_5_percent": np.quantile(values, 0.05),
        "value_ratio_min": values.min(),
        "below_factor": (values < RANDOM_GREEDY_FACTOR).mean(),  # the share of instances below 1/e
        "below_hardness": (values < INAPPROXIMABILITY).mean(),  # the share of instances below 0.491
        "divergence_ratio_median": np.median(ratio),  # D(found) / min D
        "divergence_ratio_95_percent": np.quantile(ratio, 0.95),
        "divergence_ratio_max": ratio.max(),
        "optimum_found": np.nan if algorithm in AVERAGED else exact,  # the share of instances
        "slack_min": slack.min(),  # of min D / e + (1 - 1/e) max D - D(found)
        "slack_median": np.median(slack),
        "used_median": np.median(data[algorithm] / bound(data)),  # D(found) as a share of that bound
    }
    return {name: float(value) for name, value in found.items()}


def _dummies_table(pools: Mapping[str, Data]) -> str:
    """Return how large C is, how often F is negative, and what Random Greedy with dummies reaches where it never is."""
    rows = []
    for f, data in pools.items():
        constant = float(np.median(data["worst"] / data["best"]))
        negative = data["smaller_worst_value"] < -1e-12
        best = np.maximum(data["worst"] - data["best"], data["smaller_best_value"])
        ratio = data["dummies_value"][~negative] / best[~negative]
        shown = [f"{ratio.mean():.3f}", f"{ratio.min():.3f}"] if ratio.size else ["", ""]
        share = float((data["dummies_size"] / data["size"]).mean())
        rows.append([_name(f), f"{constant:.3g}", f"{negative.mean():.0%}", f"{ratio.size}", *shown, f"{share:.2f}"])
    heading = ["f", "C / min D, median", "F < 0 on a smaller set", "instances without", "F ratio there", "least"]
    return markdown_table([*heading, "mean size / M"], rows)


def _rankings_table(pools: Mapping[str, Data]) -> str:
    """Return how well surrogates rank candidates; of the point estimate, for narrower and wider kernels as well."""
    rows = []
    for f, data in pools.items():
        for key, name in _SURROGATES.items():
            if f"{key}_agreement" not in data:
                continue
            rows.append([_name(f), name, *_ranking(data, key, np.full(len(data["width"]), True))])
            if key == "point":
                wide = data["width"] > np.median(data["width"])
                rows.append([_name(f), f"{name}, narrower half of the kernels", *_ranking(data, key, ~wide)])
                rows.append([_name(f), f"{name}, wider half", *_ranking(data, key, wide)])
    return markdown_table(["f", "surrogate", "rank correlation", "arg max agrees", "share of the best gain"], rows)


def _ranking(data: Data, key: str, chosen: np.ndarray) -> list[str]:
    names = (f"{key}_{what}" for what in ("rank_correlation", "agreement", "share_of_gain"))
    correlation, agreement, share = (float(np.nanmean(data[name][chosen])) for name in names)
    return [f"{correlation:+.2f}", f"{agreement:.0%}", f"{share:.2f}"]


def _figures(data: Data) -> Data:
    shown = {}
    for algorithm in ALGORITHMS:
        shown[f"value {algorithm}"] = value_ratio(data, algorithm)
        shown[f"divergence {algorithm}"] = data[algorithm] / data["best"]
        shown[f"used {algorithm}"] = data[algorithm] / bound(data)
    return shown | {name: values for name, values in data.items() if name.endswith("_rank_correlation")}


def draw_guarantee(data: Mapping[str, Data], path: Path) -> None:
    """Draw F ratios, divergence ratios, the share of the bound used, and rank correlations, by generator."""
    figure = new_figure(9.5, 13)
    axes = figure.subplots(2, 2, sharey=True)
    for axis, prefix in ((axes[0, 0], "value"), (axes[0, 1], "divergence"), (axes[1, 0], "used")):
        _spread(axis, data, {f"{prefix} {own}": (_name(own), colour) for own, colour in _COLOURS.items()})
    for value, label in ((RANDOM_GREEDY_FACTOR, "1/e"), (INAPPROXIMABILITY, f"{INAPPROXIMABILITY:g}")):
        axes[0, 0].axvline(value, color="black", linewidth=0.9, linestyle="--")
        axes[0, 0].annotate(label, (value, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom")
    axes[0, 0].set_title("F(found) / F(optimum)", pad=18)
    # The chi-squared family has tails of a hundred decades, in which nothing could be seen of the others.
    axes[0, 1].set(xscale="log", xlim=(0.9, 1e3), title="D(found) / min D (cut off at 1000)")
    axes[1, 0].set(xscale="log", xlim=(1e-3, 3), title="D(found) / bound (cut off at 1/1000)")
    axes[1, 0].axvline(1, color="black", linewidth=0.9, linestyle="--")
    _spread(axes[1, 1], data, _RANKINGS)
    axes[1, 1].axvline(0, color="black", linewidth=0.9)
    axes[1, 1].set_title("rank correlation of surrogate and exact gain, steps 2 to M")
    axes[0, 0].set_yticks(range(len(data)), list(map(_name, data)))
    axes[0, 0].invert_yaxis()
    (handles, labels), (more, names) = (axis.get_legend_handles_labels() for axis in (axes[0, 0], axes[1, 1]))
    shown = handles + more[1:], labels + names[1:]  # the first has the colour of the algorithm that takes it
    figure.legend(*shown, loc="outside upper center", ncols=5, frameon=False)
    write_figure(figure, path)


def _spread(axis: Axes, data: Mapping[str, Data], series: Mapping[str, tuple[str, str]]) -> None:
    """Draw the range, the central nine tenths and the median of each series, beside each other in each row."""
    for place, (name, (label, colour)) in enumerate(series.items()):
        shift = (place - (len(series) - 1) / 2) * 0.19
        for row, figures in enumerate(data.values()):
            if name not in figures:
                continue
            low, fifth, middle, most, high = np.nanquantile(figures[name], (0, 0.05, 0.5, 0.95, 1))
            axis.plot([low, high], [row + shift] * 2, color=colour, linewidth=0.8)
            axis.plot([fifth, most], [row + shift] * 2, color=colour, linewidth=3.2, alpha=0.6, solid_capstyle="butt")
            axis.plot(middle, row + shift, "o", color=colour, markersize=3.5)
        axis.plot([], [], "o-", color=colour, linewidth=3, label=label)
    for row in range(1, len(data)):
        axis.axhline(row - 0.5, color="#dddddd", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
