"""What each piece of the engine is worth: everything, and everything less one piece, on one GPU.

    python benchmarks/engine.py --ablate --out FOLDER [--parts VGG16BN ...] [--seconds 540]

Every measurement is written to FOLDER/ablation.json at once, and those that are there are not made again, so that a run
may be broken off and gone on with. What failed is tried once more, after all others. FOLDER/ablation.md is made of it.
"""

import dataclasses
import datetime
import functools
import gc
import json
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import engine
import torch
from ablation_page import page
from greedy_ensembles.training.captured import CapturedEngine
from greedy_ensembles.training.compilation import worth_compiling
from greedy_ensembles.training.eager import EagerEngine
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.memory import members_at_once
from greedy_ensembles.training.numerics import numerics
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.weighting_set import WeightingSet
from pieces import PREDICTIONS, VARIANTS, Cell, Prediction, Variant, replaced
from speed_page import MODELS, PREDICTING

import greedy_ensembles as ge
from greedy_ensembles.models import named
from greedy_ensembles.runs.configuration import git_commit
from greedy_ensembles.training import captured

PARTS = (*MODELS, *PREDICTING)
#: Members that train together: of VGG16BN all, of others as many as fill the lanes, or nearly.
TOGETHER = {"VGG16BN": 11, "PreResNet164": 6, "WideResNet28x10": 4}
#: Steps of an epoch, alone and together; and those of steps that are not captured, of which each takes long.
STEPS, STEPS_TOGETHER, STEPS_EAGER = 20, 10, 5
REPEATS = 3
#: Seconds that one measurement may take, compiling included.
LIMIT = 100.0
#: The training that decides whether compiling pays.
REAL_EXAMPLES = 50_000
IMAGES, IMAGES_AT_ONCE = 10_000, 1024


class OutOfTime(BaseException):
    """A measurement took too long. No `Exception`: the engine takes those for reasons not to compile."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` when the block has taken that long; a call into C++ is waited for."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"not done after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@functools.cache
def posed(model: str, samples: int, steps: int, together: int) -> Problem:
    """Return the training of so many steps an epoch; the same one for all variants, since posing it takes a while."""
    changes: dict[str, Any] = {
        "precision": "bf16",
        "weighting_statistics": "batch",
        "members_at_once": together,
    }
    return engine.problem(model, samples, engine.DEVICE, steps * engine.BATCH, **changes)


def training(variant: Variant, model: str, cell: Cell) -> dict[str, Any]:
    """Return milliseconds a member and step, and what getting ready took, compiling included."""
    schedule, samples = cell
    alone = schedule == "sequential"
    steps = STEPS_EAGER if variant.eager else STEPS if alone else STEPS_TOGETHER
    together = min(TOGETHER[model], engine.SIZE)
    problem = posed(model, samples, steps, together)
    decisions: list[bool] = []

    def decide(members: list[Member], problem: Problem) -> bool:
        real = dataclasses.replace(problem, train=torch.empty(REAL_EXAMPLES))
        decisions.append(worth_compiling(members, real) if variant.compiled is None else variant.compiled)
        return decisions[-1]

    make = EagerEngine if variant.eager else CapturedEngine
    with (
        replaced([*variant.changes, (captured, "worth_compiling", decide)]),
        numerics(problem.recipe, problem.device),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message="trained without compiling")  # which is another variant
        assert problem.weighting is not None
        weighting = WeightingSet(problem, problem.weighting)
        count, first = (1, engine.SIZE // 2 + 1) if alone else (members_at_once(problem, together), 1)
        for _ in range(first - 1):
            weighting.bank.append(torch.rand(len(weighting.samples), 10, device=problem.device).softmax(1))
        members = [Member(problem, number) for number in range(first, first + count)]
        start = time.perf_counter()
        trained = make(members, problem, weighting)
        ready = time.perf_counter() - start
        taken = engine.seconds(trained.train_epoch, 2 if variant.eager else REPEATS)
    found: dict[str, Any] = {
        "milliseconds": 1e3 * taken / steps / count,
        "ready_seconds": ready,
        "members": count,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30,
        "compiled": any(decisions),
    }
    if any(decisions):
        from torch._dynamo.utils import counters

        found["graphs"] = counters["stats"]["unique_graphs"]
        found["graph_breaks"] = sum(counters["graph_break"].values())
    return found


def predicting(way: Prediction, model: str) -> dict[str, Any]:
    """Return milliseconds of `predict_proba`, after a first call, which records."""
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([named(model, 10, 3)().to(engine.DEVICE) for _ in range(engine.SIZE)])
    x = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    with replaced(way.changes):
        start = time.perf_counter()
        ensemble.predict_proba(x, IMAGES_AT_ONCE)
        ready = time.perf_counter() - start
        taken = engine.seconds(lambda: ensemble.predict_proba(x, IMAGES_AT_ONCE), REPEATS)
    return {"milliseconds": 1e3 * taken, "ready_seconds": ready, "captured": ensemble._captured is not None}


def plan(parts: list[str]) -> list[tuple[int, str, str, str, Callable[[], dict[str, Any]]]]:
    """Return stage, part, row and column of all measurements, and what makes them, the most decisive first."""
    found: list[tuple[int, str, str, str, Callable[[], dict[str, Any]]]] = []
    for part in parts:
        if part in PREDICTING:
            model = PREDICTING[part]
            for way in PREDICTIONS:
                if model in way.models:
                    found.append((2, part, way.name, "predict_proba", functools.partial(predicting, way, model)))
            continue
        for variant in VARIANTS:
            for cell in variant.cells if part in variant.models else ():
                run = functools.partial(training, variant, part, cell)
                found.append((variant.stage(cell), part, variant.name, f"{cell[0]}, p* {cell[1]}", run))
    return sorted(found, key=lambda item: item[0])


def attempt(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured, or what went wrong; leave the GPU's memory free either way."""
    try:
        with limited(LIMIT):
            return run()
    except (Exception, OutOfTime) as error:
        lines = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {lines[0][:300] if lines else ''}"}
    finally:
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def run(parts: list[str], out: Path | None, seconds: float) -> None:
    """Measure what is missing, print it line by line, and write it after every measurement, where asked.

    No measurement starts after so many seconds.
    """
    start = time.perf_counter()
    file = None if out is None else out / "ablation.json"
    content: dict[str, Any] = {"batch": engine.BATCH, "size": engine.SIZE, "runs": [], "measured": {}}
    if file is not None and file.exists():
        content = json.loads(file.read_text())
    content["runs"].append(
        {
            "command": f"python benchmarks/engine.py --ablate --out {out} --parts {' '.join(map(_quoted, parts))}",
            "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
            "machine": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "commit": git_commit(),
        }
    )
    measured = content["measured"]
    there = {(p, r, c): "error" in e for p, rows in measured.items() for r, cs in rows.items() for c, e in cs.items()}
    missing = [item for item in plan(parts) if there.get(item[1:4], True)]
    missing.sort(key=lambda item: item[1:4] in there)  # what failed before comes last
    for done, (_, part, row, column, make) in enumerate(missing):
        if time.perf_counter() - start > seconds:
            print(f"out of time: {len(missing) - done} measurements are left for another run", flush=True)
            break
        began = time.perf_counter()
        entry = attempt(make)
        entry["run"], entry["seconds"] = len(content["runs"]) - 1, round(time.perf_counter() - began, 1)
        measured.setdefault(part, {}).setdefault(row, {})[column] = entry
        _say(part, row, column, entry, time.perf_counter() - start)
        if file is not None:
            _write(file, content)
        if "error" in entry and not _is_fit():
            print("the GPU is not fit for use after this error; run again for the rest", flush=True)
            break


def _is_fit() -> bool:
    """Return whether the GPU still works: after some errors nothing does in the same process."""
    try:
        return bool((torch.ones(8, device=engine.DEVICE) + 1).sum().item() == 16)
    except Exception:
        return False


def _write(file: Path, content: dict[str, Any]) -> None:
    """Write data and page; whoever breaks it off leaves the data before."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".json.new")
    fresh.write_text(json.dumps(content, indent=2) + "\n")
    fresh.replace(file)
    file.with_suffix(".md").write_text(page(content))


def _say(part: str, row: str, column: str, entry: dict[str, Any], elapsed: float) -> None:
    result = entry.get("error") or f"{entry['milliseconds']:8.3f} ms, ready in {entry['ready_seconds']:.1f} s"
    print(f"{elapsed:4.0f} s  {part:16} {row:34} {column:20} {result}", flush=True)


def _quoted(part: str) -> str:
    return f'"{part}"' if " " in part else part
