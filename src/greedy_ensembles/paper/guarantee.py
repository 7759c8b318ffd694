"""How good is greedy? The study that the paper's fourth limitation leaves to later work.

For every generator, ground sets of 8 to 16 and M from 2 to 5, on random instances small enough to try every set: what
share of the optimum do the algorithms reach, how far is the bound from what they find, and does the expectation that
Proposition 1 maximises rank candidates as the exact gain does?

An instance is a density on the line, a mixture of two to five Gaussian, Laplace and skewed bumps, and a ground set of
kernels, Gaussian or Laplace, of one random width. It depends on the seed, the size of the ground set, M and its own
number alone, so that all generators meet the same instances. A cell is the instances of one generator, ground set and
M, and a file of its own, written when it is whole: after a kill the same command computes only what is missing.
"""

import math
import platform
import shlex
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import gamma, rankdata

from greedy_ensembles import machine, theory
from greedy_ensembles.checks import check_count, naming
from greedy_ensembles.machine import __version__
from greedy_ensembles.paper.guarantee_page import Cell, Measurements, write_report
from greedy_ensembles.runs.configuration import git_commit
from greedy_ensembles.storage import FolderError, read_json, write_json
from greedy_ensembles.sweeps.executor import Processes
from greedy_ensembles.theory.algorithms import evaluate_all
from greedy_ensembles.theory.divergence import Generator
from greedy_ensembles.theory.grid import set_threads
from greedy_ensembles.training.events import ProgressBars

GENERATORS = (*theory.GENERATORS, "alpha(-0.5)", "alpha(1.5)")
CANDIDATES = (8, 12, 16)
SIZES = (2, 3, 4, 5)
DRAWS = 20  #: of each randomised algorithm, on each instance
_GRID = np.linspace(-8.0, 8.0, 161)
_WEIGHTS = theory.trapezoid_weights(_GRID)

Array = np.ndarray


def generator_named(name: str) -> Generator:
    """Return a generator by its name, members of the alpha family included."""
    return theory.alpha(float(name[6:-1])) if name.startswith("alpha(") else theory.GENERATORS[name]


def measure_cell(cell: Cell, instances: int, seed: int) -> Measurements:
    """Return the measurements of `measure_instance` over the instances of a cell, by name."""
    rows = [measure_instance(cell, seed, number) for number in range(instances)]
    return {name: [row[name] for row in rows] for name in rows[0]}


def measure_instance(cell: Cell, seed: int, number: int) -> dict[str, float]:
    """Return divergences of what the algorithms find, F where no divergence exists, and how surrogates rank."""
    F, width, rng = make_instance(cell, seed, number)
    divergences = -np.concatenate([values for _, values in evaluate_all(F)])
    worst = float(divergences.max())
    chosen = theory.greedy(F)
    random = [F.divergence(theory.random_greedy(F, rng)) for _ in range(DRAWS)]
    return {
        "width": width,
        "best": float(divergences.min()),
        "worst": worst,
        "greedy": F.divergence(chosen),
        "random_greedy": float(np.mean(random)),
        "random_selection": float(divergences.mean()),  # over all sets: the exact mean, without drawing
        "surrogate_greedy": F.divergence(_greedy_by_surrogate(F)),
        **_with_dummies(F, worst, rng),
        **_rankings(F, chosen),
    }


def make_instance(cell: Cell, seed: int, number: int) -> tuple[theory.DivergenceObjective, float, np.random.Generator]:
    """Return an instance of a cell, the width of its kernels, and the generator for randomised algorithms."""
    rng = np.random.default_rng([seed, cell.candidates, cell.size, number])
    density, width = _density(rng), float(np.exp(rng.uniform(np.log(0.5), np.log(2.0))))
    kernels = _kernels(rng, cell.candidates, width)
    F = theory.DivergenceObjective(density, kernels, _WEIGHTS, cell.size, generator_named(cell.generator))
    return F, width, rng


def _density(rng: np.random.Generator) -> Array:
    count = int(rng.integers(2, 6))
    shares = rng.dirichlet(np.full(count, 2.0))
    density = np.zeros_like(_GRID)
    for share, centre in zip(shares, rng.uniform(-5, 5, count), strict=True):
        width = float(np.exp(rng.uniform(np.log(0.4), np.log(1.5))))
        kind = rng.integers(3)
        if kind == 2:
            direction = rng.choice([-1, 1])
            bump = gamma.pdf(direction * (_GRID - centre) + width, 2.0, scale=width)
        else:
            kernel = theory.gaussian(width) if kind == 0 else theory.laplace(width)
            bump = theory.KernelMixture([centre], kernel).kernels(_GRID)[0]
        density += share * bump
    # A trace of a wide Laplace keeps the density positive, so that no divergence is infinite and C exists.
    density += 1e-3 * theory.KernelMixture([0.0], theory.laplace(3.0)).kernels(_GRID)[0]
    return np.asarray(density / (density @ _WEIGHTS))


def _kernels(rng: np.random.Generator, count: int, width: float) -> Array:
    kernel = theory.gaussian(width) if rng.random() < 0.5 else theory.laplace(width)
    return theory.KernelMixture(rng.uniform(-6, 6, count), kernel).on_grid(_GRID)


def _greedy_by_surrogate(F: theory.DivergenceObjective) -> list[int]:
    chosen: list[int] = []
    for _ in range(F.size):
        chosen.append(int(theory.expected_gains(F, chosen).argmax()))
    return chosen


def _with_dummies(F: theory.DivergenceObjective, worst: float, rng: np.random.Generator) -> dict[str, float]:
    """Return F = C - D of Algorithm 1 with dummies, whose sets may be smaller, and its range over all such sets."""
    found = [theory.random_greedy(F, rng, dummies=True) for _ in range(DRAWS)]
    smaller = [F([])]
    for size in range(1, F.size):
        smaller.extend(F.values(np.array(list(combinations(range(len(F)), size)))))
    return {
        "dummies_value": worst + float(np.mean([F(indices) for indices in found])),
        "dummies_size": float(np.mean([len(indices) for indices in found])),
        "smaller_best_value": worst + float(max(smaller)),
        "smaller_worst_value": worst + float(min(smaller)),
    }


def _as_power(name: str) -> Generator | None:
    """Return the same divergence written with f(x) = (x^a - 1) / (a (a - 1)), if there is such an a: without the line.

    On distributions a straight line c (x - 1) in f changes nothing; the expectation of Proposition 1 it does change.
    """
    a = {"squared_hellinger": 0.5, "pearson_chi2": 2.0, "neyman_chi2": -1.0}.get(name)
    if name.startswith("alpha("):
        a = float(name[6:-1])
    if a is None:
        return None
    scale, exponent = 1 / (a * (a - 1)), a

    def perspective(p: Array, q: Array) -> Array:
        return np.asarray(scale * (np.exp(exponent * np.log(p) + (1 - exponent) * np.log(q)) - q))

    at_zero, slope = -scale if a > 0 else np.inf, 0.0 if a < 1 else np.inf
    return Generator(f"power({a:g})", lambda x: scale * (x**exponent - 1), perspective, at_zero, slope)


def _rankings(F: theory.DivergenceObjective, chosen: list[int]) -> dict[str, float]:
    """Return how surrogates rank the candidates against the exact gain, over steps 2..M of greedy's own path.

    At the first step Proposition 1 leaves nothing out, so that there is nothing to measure. Steps at which all
    candidates are equal count neither: F may be so large that rounding hides what they add. NaN if no step counts.
    """
    surrogates = {"expected": partial(theory.expected_gains, F)}
    if F.generator.name == "reverse_kl":
        surrogates["point"] = partial(theory.point_gains, F)
    if (power := _as_power(F.generator.name)) is not None:
        rewritten = theory.DivergenceObjective(F.density, F.kernels, F.weights, F.size, power)
        surrogates["power"] = partial(theory.expected_gains, rewritten)
    measured = {}
    for name, surrogate in surrogates.items():
        correlations, agreements, shares = [], [], []
        for step in range(1, F.size):
            outside = np.setdiff1d(np.arange(len(F)), chosen[:step])
            exact = theory.exact_gains(F, chosen[:step])[outside]
            ranked = surrogate(chosen[:step])[outside]
            if np.ptp(exact) == 0 or np.ptp(ranked) == 0:
                continue
            correlations.append(np.corrcoef(rankdata(exact), rankdata(ranked))[0, 1])
            agreements.append(exact.argmax() == ranked.argmax())
            shares.append((exact[ranked.argmax()] - exact.min()) / np.ptp(exact))
        for what, values in (("rank_correlation", correlations), ("agreement", agreements), ("share_of_gain", shares)):
            measured[f"{name}_{what}"] = float(np.mean(values)) if values else math.nan
    return measured


def all_cells() -> list[Cell]:
    """Return the cells of the study, the most expensive ones first, so that no core idles at the end."""
    cells = [Cell(f, candidates, size) for f in GENERATORS for candidates in CANDIDATES for size in SIZES]
    return sorted(cells, key=lambda cell: -cell.candidates * cell.size)


def run(out: Path, instances: int = 200, seed: int = 0, progress: bool = True) -> dict[Cell, Measurements]:
    """Compute the cells that ``out/cells`` does not hold yet, then write the figure, the tables and the page."""
    check_count("instances", instances, 1)
    check_count("seed", seed, 0)
    folder, made_with = out / "cells", {"instances": instances, "seed": seed, "draws": DRAWS}
    if not (folder / "study.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "study.json", made_with)
    elif (found := read_json(folder / "study.json")) != made_with:
        raise FolderError(f"{folder} holds a study with {found}, not {made_with}; choose another --out")
    files = {cell: folder / f"{cell.name}.json" for cell in all_cells()}
    missing = [cell for cell, file in files.items() if not file.exists()]
    shares = [missing[core :: machine.cores()] for core in range(machine.cores())]  # dear and cheap ones alike
    parts = {f"core {k}": {cell: files[cell] for cell in own} for k, own in enumerate(shares) if own}
    jobs = {core: partial(_compute, own, instances, seed) for core, own in parts.items()}
    with ProgressBars(runs=len(missing)) if progress else nullcontext() as bars:
        Processes().run(jobs, lambda core, event: None if bars is None else bars.hear(core, event))
    with naming(folder, "holds cells that are none of this version"):
        contents = [read_json(file) for file in files.values()]
        results = {Cell(**content["cell"]): content["measurements"] for content in contents}
        write_report(results, _provenance(contents, out, instances, seed), out)
    return results


def _compute(files: dict[Cell, Path], instances: int, seed: int, tell: Callable[[None], None]) -> None:
    """Compute some cells, in a process of its own, and write each when it is whole."""
    set_threads(1)  # the processes keep the cores busy
    for cell, file in files.items():
        start = time.process_time()
        measurements = measure_cell(cell, instances, seed)
        made = {"seconds": time.process_time() - start, "date": datetime.now(UTC).date().isoformat()}
        write_json(file, {"cell": asdict(cell), **made, "measurements": measurements})
        tell(None)


def _provenance(contents: list[dict[str, Any]], out: Path, instances: int, seed: int) -> dict[str, str]:
    command = ["greedy-ensembles", "guarantee-study", "--out", str(out)]
    if (instances, seed) != (200, 0):
        command += ["--instances", str(instances), "--seed", str(seed)]
    dates = sorted({content["date"] for content in contents})
    minutes = sum(content["seconds"] for content in contents) / 60
    return {
        "command": f"`{shlex.join(command)}`, greedy-ensembles {__version__}, seed {seed}",
        "machine": f"{machine.processor()}, {platform.system()}, Python {platform.python_version()}",
        "core minutes": f"{minutes:.1f}",
        "date": " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        "commit": (git_commit() or "unknown")[:12],
        "cells (generator, ground set, M)": f"{len(contents)} of {instances} instances each",
        "draws of each randomised algorithm on each instance": f"{DRAWS}",
    }
