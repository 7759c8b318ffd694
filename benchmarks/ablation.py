"""What each piece of the engine is worth: everything, and everything less one piece, on one GPU.

    python benchmarks/engine.py --ablate --out FOLDER [--parts VGG16BN ...]

Each part, a network, is measured in one run; those of FOLDER that are not asked for are kept.
"""

import functools
import gc
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import engine
import torch
from result import facts, how, in_turn, known, publish, told
from speed_page import MODELS, PREDICTING
from torch import nn

import greedy_ensembles as ge
from greedy_ensembles.engines import captured, prediction
from greedy_ensembles.engines.accelerate import BatchNormReLU, accelerate
from greedy_ensembles.engines.captured import CapturedEngine
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.models import named
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.training.algorithm import Algorithm

_COMMAND = "engine.py --ablate --out results/engine"
PARTS = (*MODELS, *PREDICTING)
#: Members that train together: of VGG16BN all, of others as many as fill the streams, or nearly.
TOGETHER = {"VGG16BN": 11, "PreResNet164": 6, "WideResNet28x10": 4}
#: Steps of an epoch, alone and together; and those of steps that are not captured, of which each takes long.
STEPS, STEPS_TOGETHER, STEPS_PLAIN = 20, 10, 2
REPEATS = 3
IMAGES, IMAGES_AT_ONCE = 10_000, 1024
#: Columns of a table: schedule, and samples of p* a step.
CELLS = (("sequential", 128), ("concurrent", 128), ("sequential", 32), ("concurrent", 32))
PREDICT = "predict_proba"
_LEGEND = {
    "figures": "ms per member and step, medians of three epochs (not captured: of one or two)",
    "in brackets": "over everything",
    "sequential": "the sixth member, with five in the bank",
    "ready": "seconds before the first epoch, the longest of the row",
}
#: A piece is worth keeping where a step without it takes this many times as long, on so many networks.
WORTH, NETWORKS = 1.10, 2

Rows = dict[str, dict[str, dict[str, Any]]]  # by variant and column
Change = tuple[Any, str, Any]  # an object, the name of an attribute, and what stands there instead
EVERYTHING, AGAIN = "everything", "everything, again"
# By its name: the package gives a function of the same name out.
_ACCELERATE = importlib.import_module("greedy_ensembles.engines.accelerate")
_swaps = _ACCELERATE.swaps
_KERNELS = tuple((module, "accelerate", lambda *_: nullcontext()) for module in (captured, prediction))


def _norms_alone(model: nn.Module) -> list[tuple[nn.Module, type[nn.Module]]]:
    return [(layer, kind) for layer, kind in _swaps(model) if kind is BatchNormReLU]


@dataclass(frozen=True)
class Variant:
    """Everything, or all of it but some changes."""

    name: str
    changes: tuple[Change, ...] = ()
    plain: bool = False  #: whether steps are taken one operation after another
    cells: tuple[tuple[str, int], ...] = CELLS
    parts: tuple[str, ...] = PARTS  #: where it is measured; PreResNet164 and WideResNet28x10 have no biases there


TRAINING = (
    Variant(EVERYTHING),
    Variant("less captured steps", plain=True, cells=CELLS[:3]),
    Variant("less BatchNorm kernels", _KERNELS),
    Variant("less biases left out", ((_ACCELERATE, "swaps", _norms_alone),), cells=CELLS[:2], parts=("VGG16BN",)),
    Variant("less streams", ((captured, "STREAMS", 1),), cells=(CELLS[1], CELLS[3])),
    Variant(AGAIN, cells=CELLS[:2], parts=("VGG16BN",)),
)
PREDICTIONS = (
    Variant(EVERYTHING),
    Variant("less captured predictions", ((prediction, "can_capture", lambda *_: False),)),
    Variant("less BatchNorm kernels", _KERNELS),
    Variant(AGAIN),
)


@contextmanager
def replaced(changes: Sequence[Change]) -> Iterator[None]:
    """Put other things in the place of names inside the block; afterwards the originals are back."""
    with ExitStack() as stack:
        for target, name, value in changes:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


@functools.cache
def algorithm(model: str, samples: int, steps: int) -> Algorithm:
    """Return the training of so many steps an epoch; the same one for all variants, since building it takes a while."""
    changes: dict[str, Any] = {"precision": "bf16", "weighting_statistics": "batch"}
    return engine.algorithm(model, samples, engine.DEVICE, steps * engine.BATCH, **changes)


def training(variant: Variant, model: str, schedule: str, samples: int) -> dict[str, Any]:
    """Return milliseconds a member and step, and what getting ready took."""
    alone = schedule == "sequential"
    steps = STEPS_PLAIN if variant.plain else STEPS if alone else STEPS_TOGETHER
    of = algorithm(model, samples, steps)
    group = (engine.SIZE // 2, 1) if alone else (0, min(TOGETHER[model], engine.SIZE))
    with replaced(variant.changes), of.execution.settings(), ExitStack() as stack:

        def plain(members: Any, step: Any, plan: Any) -> PlainEngine:
            stack.enter_context(accelerate(*(member.model for member in members)))
            return PlainEngine(members, step)

        start = time.perf_counter()
        trained, plan = engine.engine_of(of, *group, plain if variant.plain else CapturedEngine)
        ready, count = time.perf_counter() - start, len(trained.members)
        (taken,) = in_turn(lambda: trained.train_epoch(plan), repeats=1 if variant.plain else REPEATS)
    peak = torch.cuda.max_memory_reserved() / 2**30
    milliseconds = 1e3 * taken / steps / count
    return {"milliseconds": milliseconds, "ready_seconds": ready, "members": count, "peak_gib": peak}


def predicting(variant: Variant, model: str) -> dict[str, Any]:
    """Return milliseconds of `predict_proba`, after a first call, which records."""
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([named(model, 10, 3)().to(engine.DEVICE) for _ in range(engine.SIZE)])
    x = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    with replaced(variant.changes):
        start = time.perf_counter()
        ensemble.predict_proba(x, IMAGES_AT_ONCE)
        ready = time.perf_counter() - start
        (taken,) = in_turn(lambda: ensemble.predict_proba(x, IMAGES_AT_ONCE), repeats=REPEATS)
    return {"milliseconds": 1e3 * taken, "ready_seconds": ready}


def measure(part: str) -> Rows:
    """Return all measurements of a part: rows by variant, columns by schedule and p* batch."""
    rows: Rows = {}
    for way in (way for way in (PREDICTIONS if part in PREDICTING else TRAINING) if part in way.parts):
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            PREDICT: functools.partial(predicting, way, PREDICTING.get(part, ""))
        }
        if part not in PREDICTING:
            runs = {_column(cell): functools.partial(training, way, part, *cell) for cell in way.cells}
        rows[way.name] = {column: attempt(make) for column, make in runs.items()}
        for column, entry in rows[way.name].items():
            result = entry.get("error") or f"{entry['milliseconds']:8.3f} ms, ready in {entry['ready_seconds']:.1f} s"
            print(f"{part:16} {way.name:26} {column:20} {result}", flush=True)
    return rows


def _column(cell: tuple[str, int]) -> str:
    return f"{cell[0]}, p* {cell[1]}"


def attempt(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was measured, or what went wrong; leave the GPU's memory free either way."""
    try:
        return make()
    except Exception as error:
        lines = str(error).strip().splitlines()
        return {"error": f"{type(error).__name__}: {lines[0][:300] if lines else ''}"}
    finally:
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def run(parts: Sequence[str], out: Path | None) -> None:
    """Measure what is asked for and print it; write what there is after each part, where asked."""
    made = facts(_COMMAND, "cuda")
    there = known(out, "ablation").get("parts", {})
    content: dict[str, Any] = {"batch": engine.BATCH, "size": engine.SIZE, "parts": there}
    for part in parts:
        content["parts"][part] = {**made, "rows": measure(part)}
        publish(out, "ablation", page, content)


def page(content: dict[str, Any]) -> Page:
    """Return what each piece is worth, and what was measured."""
    parts = content["parts"]
    models = {model: parts[model]["rows"] for model in MODELS if model in parts}
    setting = "CIFAR-10 shapes, bf16, samples of p* normalised by the statistics of the step's examples"
    made = {"training": f"batch {content['batch']}, {setting}", **_LEGEND}
    made |= {f"run of {part}": told(found) for part, found in parts.items()}
    texts = [_table(model, rows, [_column(cell) for cell in CELLS]) for model, rows in models.items()]
    for part, model in PREDICTING.items():
        if part in parts:
            title = f"Predicting 10,000 images with {content['size']} members of {model}, ms"
            texts.append(_table(title, parts[part]["rows"], [PREDICT]))
    verdicts = _verdicts(models) if models else ""
    return Page(
        "What each piece of the engine is worth",
        [*texts, *how({"command": f"python benchmarks/{_COMMAND}"}, made)],
        verdicts,
    )


def _table(title: str, rows: Rows, columns: list[str]) -> str:
    together = max((entry.get("members", 1) for cells in rows.values() for entry in cells.values()), default=1)
    heading = f"## {title}{f' ({together} members together)' if together > 1 else ''}"
    lines, errors = [], []
    for name, cells in rows.items():
        ready = [f"{entry['ready_seconds']:.1f}" for entry in cells.values() if "error" not in entry]
        lines.append([name, *(_figure(rows, name, column) for column in columns), max(ready, key=float, default="")])
        errors += [f"- {name}, {column}: {entry['error']}" for column, entry in cells.items() if "error" in entry]
    failed = ["Failed:", "\n".join(errors)] if errors else []
    return "\n\n".join([heading, markdown_table(["", *columns, "ready, s"], lines), *failed])


def _figure(rows: Rows, name: str, column: str) -> str:
    entry = rows[name].get(column)
    if entry is None or "error" in entry:
        return "" if entry is None else "failed"
    ratio = ratios(rows, name).get(column)
    return f"{entry['milliseconds']:.2f}" + ("" if ratio is None else f" ({ratio:.2f})")


def ratios(rows: Rows, name: str) -> dict[str, float]:
    """Return how many times as long each column of a row takes as with everything, where both were measured."""
    found, least = (
        {column: entry["milliseconds"] for column, entry in rows.get(row, {}).items() if "error" not in entry}
        for row in (name, EVERYTHING)
    )
    return {column: found[column] / least[column] for column in found if column in least}


def _verdicts(models: Mapping[str, Rows]) -> str:
    """Return for each piece its largest ratio on every network, and whether it is to stay."""
    rows = []
    for name in (variant.name for variant in TRAINING if variant.name.startswith("less ")):
        best = [max(ratios(found, name).values(), default=None) for found in models.values()]
        count = sum(ratio is not None and ratio >= WORTH for ratio in best)
        unknown = len(MODELS) - sum(ratio is not None for ratio in best)
        verdict = "keep" if count >= NETWORKS else "open" if count + unknown >= NETWORKS else f"delete ({count} of 3)"
        rows.append([name.removeprefix("less "), *("" if ratio is None else f"{ratio:.2f}" for ratio in best), verdict])
    rule = (
        f"How many times as long a step takes without a piece, in the column where that is most. Keep: at least "
        f"{WORTH:.2f} with {NETWORKS} of the three networks."
    )
    return f"{markdown_table(['piece', *models, ''], rows)}\n\n{rule}"
