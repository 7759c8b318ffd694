"""The page of the guarantee study: every number on it is computed from the cells."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np

from greedy_ensembles.paper.guarantee_summary import Summary, markdown_table
from greedy_ensembles.theory.objective import INAPPROXIMABILITY, RANDOM_GREEDY_FACTOR

_SURROGATES = {
    "expected": "expectation",
    "power": "expectation, f as a power",
    "point": "point estimate",
}

Pools = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Provenance:
    """How the study was made."""

    command: str
    machine: str
    date: str
    version: str
    seed: int
    instances: int
    draws: int
    core_minutes: float


def page(cells: Sequence[Summary], summaries: Sequence[Summary], pools: Pools, made: Provenance) -> str:
    """Return the page in Markdown."""
    sections = (
        _introduction(cells, made),
        "## What was learnt",
        _greedy(cells, summaries),
        _random(summaries),
        _bound(summaries, pools),
        _dummies(pools),
        _proposition(summaries, pools),
        "## By generator",
        "All ground sets and sizes of a generator together; `guarantee.csv` has every cell by itself.",
        markdown_table(summaries),
    )
    return "\n\n".join(_wrapped(section) for section in sections) + "\n"


def _wrapped(section: str) -> str:
    """Return a section with its paragraphs wrapped anew, since numbers are put into them."""
    parts = [part.strip() for part in section.split("\n\n") if part.strip()]
    return "\n\n".join(part if part[0] in "#!|-" else _filled(part) for part in parts)


def _filled(paragraph: str) -> str:
    """Return a paragraph in lines of 120, none of which begins with a sign: that would make it a list."""
    tied = re.sub(r"\s([-+=<>/]+)\s", "\0\\1\0", " ".join(paragraph.split()))
    return fill(tied, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def _introduction(cells: Sequence[Summary], made: Provenance) -> str:
    number = len({(cell.generator, cell.candidates, cell.size) for cell in cells})
    first = cells[0]
    return f"""# How good is greedy?

The guarantees of Section 3 hold for all instances, so they are pessimistic about any one of them; how pessimistic, the
paper's fourth limitation leaves to studies of small problems. In this one every set can be tried: F = C - D with
C = max D over sets of M, and an algorithm's F is divided by the best one.

![Ratios, bounds and rank correlations by generator](guarantee.png)

- **Command**: `{made.command}` (greedy-ensembles {made.version}, seed {made.seed})
- **Machine**: {made.machine}; {made.core_minutes:.1f} core minutes
- **Date**: {made.date}
- **Counts**: {number} cells (generator, ground set, M) of {first.instances} instances each, \
{number * first.instances:,} in all; {made.draws} draws of each randomised algorithm on each instance
- **Instances**: densities on the line with two to five Gaussian, Laplace and skewed bumps; ground sets of Gaussian or
  Laplace kernels of one random width at random centres. All generators meet the same ones."""


def _of(summaries: Sequence[Summary], algorithm: str) -> list[Summary]:
    return [row for row in summaries if row.algorithm == algorithm]


def _mean(rows: Sequence[Summary], name: str) -> float:
    """Return the mean over rows of equally many instances."""
    return float(np.mean([getattr(row, name) for row in rows]))


def _greedy(cells: Sequence[Summary], summaries: Sequence[Summary]) -> str:
    rows = _of(summaries, "greedy")
    least = min(_of(cells, "greedy"), key=lambda row: row.value_ratio_min)
    easiest = max(rows, key=lambda row: row.optimum_found)
    hardest = max(rows, key=lambda row: row.divergence_ratio_95_percent)
    below = _mean(rows, "below_hardness")
    beyond = f"{INAPPROXIMABILITY:g} or 1/e = {RANDOM_GREEDY_FACTOR:.3f}"
    verdict = f"never falls below {beyond}" if below == 0 else f"falls below {INAPPROXIMABILITY:g} on {below:.2%}"
    return f"""**Greedy is far better than its guarantee.** Its F ratio is {_mean(rows, "value_ratio_mean"):.3f} on
average and {least.value_ratio_min:.3f} at the least ({least.generator}, {least.candidates} candidates, M =
{least.size}); it {verdict}. It finds the optimum on
{_mean(rows, "optimum_found"):.0%} of the instances, from {min(row.optimum_found for row in rows):.0%} to
{easiest.optimum_found:.0%} ({easiest.generator}) by generator. The divergence itself tells more than F does: it is
within {hardest.divergence_ratio_95_percent:.3g} times the least one on 95 % of the instances under
{hardest.generator}, where greedy does worst, and within
{min(row.divergence_ratio_95_percent for row in rows):.3g} times under the kindest generator."""


def _random(summaries: Sequence[Summary]) -> str:
    greedy, random, blind = (_of(summaries, name) for name in ("greedy", "random_greedy", "random_selection"))
    paired = list(zip(greedy, random, strict=True))
    worse = sum(r.divergence_ratio_median > g.divergence_ratio_median for g, r in paired)
    kindest = max(blind, key=lambda row: row.value_ratio_mean)
    harshest = min(blind, key=lambda row: row.value_ratio_mean)
    return f"""**The randomness of Random Greedy buys a proof, and costs quality.** Without dummies, so that it returns
M kernels, and averaged over its draws, its F ratio is {_mean(random, "value_ratio_mean"):.3f}
({min(row.value_ratio_min for row in random):.3f} at the least), above 1/e on
{1 - _mean(random, "below_factor"):.2%} of the instances. Its median divergence ratio is larger than greedy's under
{worse} of {len(random)} generators. On instances like these, plain greedy is what to use, which is also what
Algorithm 2 does in effect.

**A ratio of F is a weak yardstick.** A set drawn blindly already has {_mean(blind, "value_ratio_mean"):.3f} on average,
from {harshest.value_ratio_mean:.3f} ({harshest.generator}) to {kindest.value_ratio_mean:.3f} ({kindest.generator}), and
falls below 1/e on {_mean(blind, "below_factor"):.1%} of the instances only. Where C is large, all but the worst sets
look good; there only the divergence ratio can tell the algorithms apart."""


def _bound(summaries: Sequence[Summary], pools: Pools) -> str:
    rows = _of(summaries, "greedy")
    broken = sum(row.slack_min < 0 for row in rows)
    held = "holds on every instance" if broken == 0 else f"is broken under {broken} generators"
    constants = {f: float(np.median(data["worst"] / data["best"])) for f, data in pools.items()}
    least, most = min(constants, key=constants.__getitem__), max(constants, key=constants.__getitem__)
    used = [row.used_median for row in rows]
    return f"""**The bound is loose because C is.** D(found) <= min D / e + (1 - 1/e) max D {held}, for greedy; what it
finds is between {min(used):.2g} and {max(used):.2g} times the bound (medians by generator). Its second term dominates:
C / min D has a median from {constants[least]:.3g} ({least}) to {constants[most]:.3g} ({most}), as the paper warns of
ground sets chosen poorly. A few kernels far from the density are enough. Divided by C - min D, the slack is the F ratio
less 1/e, so that the first panel of the figure shows it too."""


def _dummies(pools: Pools) -> str:
    lines = ["| f | F < 0 on a smaller set | instances without | F ratio there | mean size / M |", "|" + " --- |" * 5]
    for f, data in pools.items():
        negative = data["smaller_worst_value"] < -1e-12
        best = np.maximum(data["worst"] - data["best"], data["smaller_best_value"])
        ratio = data["dummies_value"][~negative] / best[~negative]
        shown = f"{ratio.mean():.3f} ({ratio.min():.3f} at the least)" if ratio.size else "none"
        share = float((data["dummies_size"] / data["size"]).mean())
        lines.append(f"| {f} | {negative.mean():.0%} | {int((~negative).sum())} | {shown} | {share:.2f} |")
    table = "\n".join(lines)
    return f"""**The 1/e of Random Greedy does not quite apply to F as defined.** Its proof needs F >= 0 on all sets
of at most M, and dummy elements, so that it may stop early. C = max D over sets of exactly M does not give the first:
under generators of infinite slope F is minus infinity at the empty set, whatever C is. With dummies the answer may
have fewer than M kernels, and its mixture is then no distribution; it is reported here as F alone, against the best F
over sets of at most M, on the instances where F is nowhere negative. How early it stops is a matter of how f is
written: f and f + c (x - 1) make the same divergence, but differ on smaller sets.

{table}"""


def _proposition(summaries: Sequence[Summary], pools: Pools) -> str:
    heading = ("f", "surrogate", "rank correlation", "arg max agrees", "share of the best gain")
    lines = ["| " + " | ".join(heading) + " |", "|" + " --- |" * len(heading)]
    for f, data in pools.items():
        for key, name in _SURROGATES.items():
            if f"{key}_agreement" in data:
                numbers = [
                    float(np.nanmean(data[f"{key}_{what}"]))
                    for what in ("rank_correlation", "agreement", "share_of_gain")
                ]
                lines.append(f"| {f} | {name} | {numbers[0]:+.2f} | {numbers[1]:.0%} | {numbers[2]:.2f} |")
    table = "\n".join(lines)
    exact, surrogate = _of(summaries, "greedy"), _of(summaries, "surrogate_greedy")
    close = [
        s.generator for g, s in zip(exact, surrogate, strict=True) if s.value_ratio_mean > g.value_ratio_mean - 0.02
    ]
    same = ", ".join(close) or "no generator"
    correlations = {f: float(np.nanmean(data["expected_rank_correlation"])) for f, data in pools.items()}
    negative = ", ".join(f for f, value in correlations.items() if value < 0) or "no generator"
    return f"""**Proposition 1's expectation is not the marginal gain, and how well it ranks depends on f and on how f
is written.** Its proof bounds the term that it leaves out; that term depends on the candidate all the same. Over
steps 2 to M of greedy's own path (at the first step nothing is left out), the expectation ranks the remaining
candidates like this against the exact gain. The last column is the exact gain of its favourite, on a scale from the
worst candidate (0) to the best (1). Steps at which F is so large that rounding hides all differences are left out.

{table}

To first order the term left out is the expectation of x f'(x) at x = p / q, a constant for f = -log, reverse KL,
alone. The order of candidates survives as well where f is a plain power x^a / (a (a - 1)) with a < 1, and is reversed
for a > 1: hence the rows in which f is written so. They are of the same divergence, up to a factor; only a straight
line c (x - 1) is taken out of f. As the generators are usually written, the rank correlation is negative for
{negative}, and greedy by the expectation keeps within 0.02 of greedy's mean F ratio under {same}. The paper's choice of
reverse KL is thus more than one among many: its step from the marginal gain to Proposition 1 calls for it, or for
another of these.

{_point(pools)}"""


def _point(pools: Pools) -> str:
    """Return what the point estimate does, for narrow and for wide kernels."""
    data = pools.get("reverse_kl")
    if data is None:
        return ""
    wide = data["width"] > np.median(data["width"])
    narrow_rank, wide_rank = (float(data["point_rank_correlation"][rows].mean()) for rows in (~wide, wide))
    narrow_share, wide_share = (float(data["point_share_of_gain"][rows].mean()) for rows in (~wide, wide))
    return f"""**The point estimate that Algorithm 2 maximises is a poor stand-in for the exact gain here.** Its rank
correlation is {narrow_rank:+.2f} for the narrower half of the kernels and {wide_rank:+.2f} for the wider half, and its
favourite has {narrow_share:.2f} and {wide_share:.2f} of the best gain. Away from the kernels chosen so far log q falls
without limit, so that distance outweighs the density, the more so the narrower the kernels. In Algorithm 2 lambda_M
plays the part of the width, which is one reason to choose it with care."""
