"""Figure 1: a density on the line, approximated by M kernels in three ways.

For each seed a ground set of centres is drawn, and from it come

    random modes     local ascents of p from random starts, as Deep Ensembles do; several may end in the same mode
    naive diversity  each kernel maximises log p(z) + strength * sum of its squared distances from those before it
    greedy           each kernel is the best addition under reverse KL (`theory.greedy`)

The paper does not say what density, kernels or strength its figure uses. Those here were chosen once, to show all
features that its introduction speaks of. Since naive diversity depends on its strength, which the others do not have,
the figures hold it over a range of strengths too, so that the best of them can be compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.stats import gamma, norm

from greedy_ensembles import machine, theory
from greedy_ensembles.machine import __version__
from greedy_ensembles.paper.pages import Page, publish
from greedy_ensembles.paper.records import KEPT
from greedy_ensembles.report.figure import new_figure, write_figure
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.runs.configuration import git_commit

SIZE = 10
SEEDS = 20
GENERATORS = ("reverse_kl", "kl", "jensen_shannon", "squared_hellinger", "total_variation")
CANDIDATES = 200
WIDTH = 0.7
STRENGTH = 0.02  # of the naive diversity in the picture
STRENGTHS = (0.0, 0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.2)
_GRID = np.linspace(-7.0, 16.0, 1151)
_SHOWN = np.linspace(-9.0, 19.0, 1401)  # kernels at the ends of the grid are seen whole
_TRUE, _APPROXIMATION = "#1f5fbf", "#d62728"  # colours

Array = np.ndarray


@dataclass(frozen=True)
class Spread:
    """A divergence over the seeds."""

    mean: float
    standard_deviation: float
    values: list[float]


def density_at(z: Array) -> Array:
    """Return the true density: a skewed mode with a long tail, and three narrower ones."""
    skewed = 0.55 * gamma.pdf(z + 1.5, 1.8, scale=1.9)
    others = 0.2 * norm.pdf(z, -4.0, 0.7) + 0.15 * norm.pdf(z, 7.0, 0.8) + 0.1 * norm.pdf(z, 11.5, 1.0)
    return np.asarray(skewed + others)


def run(out: Path, seed: int = 0) -> dict[str, dict[str, Spread]]:
    """Write ``illustrate.png``, of the first seed, the page ``.md``, and ``records``, over seeds seed..seed + 19."""
    weights = theory.trapezoid_weights(_GRID)
    density = density_at(_GRID)
    density /= density @ weights
    generators = [np.random.default_rng(s) for s in range(seed, seed + SEEDS)]
    sets = [np.sort(rng.uniform(_GRID[0] + 0.5, _GRID[-1] - 0.5, CANDIDATES)) for rng in generators]
    drawn = [_choose_all(centres, density, weights, rng) for centres, rng in zip(sets, generators, strict=True)]
    results = {name: _measure([choice[name] for choice in drawn], density, weights) for name in drawn[0]}
    naive = {
        strength: [centres[_naive(centres, np.log(density_at(centres)), strength)] for centres in sets]
        for strength in STRENGTHS
    }
    _draw(results, drawn[0], out / "illustrate.png")
    content = {
        "size": SIZE,
        "candidates": CANDIDATES,
        "kernel": {"family": "gaussian", "width": WIDTH},
        "naive_strength": STRENGTH,
        "greedy_generator": "reverse_kl",
        "seeds": list(range(seed, seed + SEEDS)),
        "approaches": [
            {"approach": approach, "divergence": {name: asdict(spread) for name, spread in spreads.items()}}
            for approach, spreads in results.items()
        ],
        "naive_reverse_kl_by_strength": {
            f"{strength:g}": _measure(choices, density, weights, ("reverse_kl",))["reverse_kl"].mean
            for strength, choices in naive.items()
        },
    }
    publish(out, "illustrate", Page("Figure 1: a density on the line", _page(results, seed)), content)
    return results


def _page(results: dict[str, dict[str, Spread]], seed: int) -> list[str]:
    rows = [
        [name, *(f"{own[name].mean:.3f} ± {own[name].standard_deviation:.3f}" for own in results.values())]
        for name in GENERATORS
    ]
    made = f"greedy-ensembles {__version__}, {machine.processor()}, commit {(git_commit() or 'unknown')[:12]}"
    return [
        "![A density on the line and three approximations of it](illustrate.png)",
        "*Triangles: the kernels chosen; those in one place are stacked.*",
        markdown_table(["divergence", *results], rows),
        f"Mean ± standard deviation over {SEEDS} ground sets of {CANDIDATES} candidates, of which {SIZE} are chosen. "
        f"[{KEPT}]({KEPT}) has every ground set, and naive diversity over a range of strengths.",
        f"`greedy-ensembles illustrate --seed {seed}`, {made}.",
    ]


def _choose_all(centres: Array, density: Array, weights: Array, rng: np.random.Generator) -> dict[str, Array]:
    kernels = theory.KernelMixture(centres, theory.gaussian(WIDTH)).on_grid(_GRID)
    F = theory.DivergenceObjective(density, kernels, weights, SIZE, "reverse_kl")
    log_density = np.log(density_at(centres))
    chosen: dict[str, Callable[[], list[int]]] = {
        "random modes": lambda: [_ascend(log_density, int(rng.integers(CANDIDATES))) for _ in range(SIZE)],
        "naive diversity": lambda: _naive(centres, log_density, STRENGTH),
        "greedy": lambda: theory.greedy(F),
    }
    return {approach: centres[choose()] for approach, choose in chosen.items()}


def _ascend(heights: Array, start: int) -> int:
    """Return the local maximum that steps to the higher neighbour lead to."""
    while True:
        around = np.arange(max(start - 1, 0), min(start + 2, len(heights)))
        highest = int(around[heights[around].argmax()])
        if highest == start:
            return start
        start = highest


def _naive(centres: Array, log_density: Array, strength: float) -> list[int]:
    """Return the greedy choice under plain pairwise diversity: Algorithm 2 with its log-sum-exp taken away."""
    scores, chosen = log_density.copy(), []
    for _ in range(SIZE):
        chosen.append(int(scores.argmax()))
        scores += strength * (centres - centres[chosen[-1]]) ** 2
        scores[chosen] = -np.inf
    return chosen


def _measure(
    choices: list[Array], density: Array, weights: Array, names: Sequence[str] = GENERATORS
) -> dict[str, Spread]:
    """Return divergences of the mixtures at these centres, of which, unlike in a set, some may coincide."""
    kernel = theory.gaussian(WIDTH)
    mixtures = [theory.KernelMixture(centres, kernel).on_grid(_GRID).mean(axis=0) for centres in choices]
    spreads = {}
    for name in names:
        values = [theory.f_divergence(density, mixture, name, weights) for mixture in mixtures]
        spreads[name] = Spread(float(np.mean(values)), float(np.std(values, ddof=1)), values)
    return spreads


def _draw(results: dict[str, dict[str, Spread]], choices: dict[str, Array], path: Path) -> None:
    """Draw the density in blue and one approximation a panel in red, on common axes."""
    figure = new_figure(3.7, 4.3 * len(results))
    axes = figure.subplots(1, len(results), sharex=True, sharey=True)
    density = density_at(_SHOWN)
    kernel = theory.gaussian(WIDTH)
    mixtures = {name: theory.KernelMixture(choices[name], kernel).density(_SHOWN) for name in results}
    top = 1.08 * max(float(density.max()), *(float(np.quantile(values, 0.999)) for values in mixtures.values()))
    titles = ("(a) random mode picking", "(b) naive pairwise diversity", "(c) greedy, reverse KL")
    for axis, title, approach in zip(axes, titles, results, strict=True):
        axis.fill_between(_SHOWN, density, color=_TRUE, alpha=0.18, linewidth=0)
        axis.plot(_SHOWN, density, color=_TRUE, linewidth=1.8, label="true density")
        axis.plot(_SHOWN, mixtures[approach], color=_APPROXIMATION, linewidth=1.8, label="approximation")
        heights = -0.035 * top * (1 + _ranks(choices[approach]))
        axis.scatter(choices[approach], heights, s=16, marker="^", color=_APPROXIMATION, linewidths=0, clip_on=False)
        axis.set_title(title, fontsize=13)
        axis.spines[["top", "right"]].set_visible(False)
        axis.axhline(0, color="black", linewidth=0.6)
        axis.set_yticks([])
    lowest = max(int(_ranks(choices[approach]).max()) for approach in results)
    axes[0].set(ylim=(-0.035 * top * (lowest + 2), top), xlim=(_SHOWN[0], _SHOWN[-1]), ylabel="density")
    axes[-1].legend(frameon=False, fontsize=10, loc="upper right")
    write_figure(figure, path)


def _ranks(centres: np.ndarray) -> np.ndarray:
    """Return 0 for the first of equal centres, 1 for the second, and so on."""
    return np.array([int((centres[:i] == centre).sum()) for i, centre in enumerate(centres)])
