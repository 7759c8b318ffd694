"""What has become slower since an older commit: the same work by both, in turns.

    python benchmarks/since.py [--commit 519640f] [--turns 15] [--out results/engine]

Two processes, each with the source of one of the commits, do each piece of work in turns and tell how many seconds of
the processor it took. The work is what both can do. The older source comes out of git.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import greedy_ensembles as ge

if TYPE_CHECKING:
    from greedy_ensembles.paper.pages import Page

HERE = Path(__file__).resolve()
BEFORE = "519640f"  # the last commit before inputs of any kind, loaders, heads and labels


def small_cnn() -> nn.Module:
    """Return a network whose steps are neither stacked nor large."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(4)),
        *(nn.Flatten(), nn.Linear(256, 10)),
    )


def work() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    random = torch.Generator().manual_seed(0)
    x, images = torch.randn(1000, 20, generator=random), torch.rand(600, 1, 16, 16, generator=random)
    y, classes = (x[:, 0] > 0).long(), torch.arange(600) % 10
    points, few = torch.randn(1000, 2, generator=random), ge.Recipe(epochs=5)
    moons = ge.Ensemble.from_members([ge.models.MLP(2) for _ in range(11)])
    networks = ge.Ensemble.from_members([ge.models.PreResNet(8, channels=1) for _ in range(3)])

    def fit(data: Any, make_model: Callable[[], nn.Module], **options: Any) -> Callable[[], object]:
        return lambda: ge.fit(make_model, data, recipe=few, progress=False, device="cpu", **options)

    def table() -> nn.Module:
        return ge.models.MLP(20)

    def in_folder() -> None:
        with tempfile.TemporaryDirectory() as folder:
            fit((x, y), table, size=2, strength=1.0, run_dir=folder)()

    return {
        "`ge.fit`, Deep Ensembles on a table": fit((x, y), table, size=3, method="deep"),
        "the same, greedy": fit((x, y), table, size=3, strength=1.0),
        "the same, greedy, concurrent": fit((x, y), table, size=3, strength=1.0, schedule="concurrent"),
        "the same, greedy, in a run folder": in_folder,
        "`ge.fit`, a small CNN with BatchNorm, greedy": fit((images, classes), small_cnn, size=2, strength=1.0),
        "`predict_proba`, 11 members of two moons, 64 points a batch": lambda: moons.predict_proba(points, 64),
        "the same, 1,000 points a batch": lambda: moons.predict_proba(points),
        "`predict_proba`, 3 members of PreResNet8": lambda: networks.predict_proba(images[:64], 64),
        "`uncertainty`, 11 members of two moons": lambda: moons.uncertainty(points),
    }


def serve() -> None:
    """Do the work that is asked for, line by line, and print the seconds of the processor that it took."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # nothing is learnt in so few epochs
    known = work()
    for line in sys.stdin:
        start = time.process_time()
        known[line.strip()]()
        print(time.process_time() - start, flush=True)


def in_turn(commit: str, turns: int) -> dict[str, dict[str, float]]:
    """Return by work the least of the seconds of both, their ratio, and the median of the ratios of turns."""
    root, found = HERE.parents[1], {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        archive = Path(folder) / "src.tar"
        subprocess.run(["git", "archive", "--output", archive, commit, "src"], cwd=root, check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        both = [stack.enter_context(_process(source / "src")) for source in (Path(folder), root)]
        for name in work():
            taken = np.array([[_seconds(one, name) for one in both] for _ in range(turns + 1)])[1:]
            before, now = taken.min(axis=0).tolist()
            median = float(np.median(taken[:, 1] / taken[:, 0]))
            found[name] = {"before": before, "now": now, "ratio": now / before, "median": median}
        for one in both:
            assert one.stdin is not None
            one.stdin.close()
    return found


def _process(source: Path) -> "subprocess.Popen[str]":
    told = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    ways = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, str(HERE), "--serve"], env=told, **ways)  # type: ignore[call-overload, no-any-return]


def _seconds(process: "subprocess.Popen[str]", name: str) -> float:
    assert process.stdin is not None
    assert process.stdout is not None
    print(name, file=process.stdin, flush=True)
    return float(process.stdout.readline())


def page(content: dict[str, Any]) -> "Page":
    """Return the table, and how it was made."""
    from result import how  # of this commit alone, as what follows

    from greedy_ensembles.paper.pages import Page
    from greedy_ensembles.report.table import markdown_table

    times = ("before", "now")
    rows = [
        [name, *(f"{1000 * one[key]:.1f} ms" for key in times), *(f"{one[key]:.2f}" for key in ("ratio", "median"))]
        for name, one in content["found"].items()
    ]
    made = {
        "before": f"commit {content['before']}",
        "times": f"of the processor, one thread, the least of {content['turns']} turns",
        "last column": "the median of the ratios of turns",
    }
    heading = ["work", *times, "ratio", "median of ratios"]
    return Page("Is anything slower than before?", how(content, made), markdown_table(heading, rows))


def main() -> None:
    """Measure in turns, print and write; or be one of the two that do the work."""
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    from result import facts, parser, publish

    options = parser(__doc__)
    options.add_argument("--commit", default=BEFORE, help="the older commit")
    options.add_argument("--turns", type=int, default=15)
    asked = options.parse_args()
    content = {**facts("since.py"), "before": asked.commit, "turns": asked.turns}
    publish(asked.out, "since", page, {**content, "found": in_turn(asked.commit, asked.turns)})


if __name__ == "__main__":
    main()
