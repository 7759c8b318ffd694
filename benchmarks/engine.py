"""What a member's step costs: the published loop's shape, the captured engine, both schedules, small p* batches.

On a GPU (batch 128, CIFAR-10 shapes, M = 11) times are milliseconds per member and step, data preparation included, and
every target is a ratio within this run. Without a GPU, it is `cpu.py`, the ratios that are promised for the CPU.

    python benchmarks/engine.py [--out FOLDER] [--parts "predicting with VGG16BN" VGG16BN ...]

Each part is measured by itself; those of FOLDER that are not asked for are kept. With `--ablate`, it is `ablation.py`,
what each piece of the engine is worth.
"""

import contextlib
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from floor import floor, rates
from result import facts, in_turn, known, parser, publish
from speed_page import MODELS, PREDICTING, page, verdict
from torch import nn
from torch.nn.functional import cross_entropy

import greedy_ensembles as ge
from greedy_ensembles.engines.captured import CapturedEngine
from greedy_ensembles.engines.execution import Execution
from greedy_ensembles.engines.plain import PlainEngine, Plan
from greedy_ensembles.method import SCHEDULES, as_coupling
from greedy_ensembles.models import named
from greedy_ensembles.training.algorithm import Algorithm
from greedy_ensembles.training.fit import _build
from greedy_ensembles.training.validate import Arguments

DEVICE = "cuda"
BATCH, SIZE, STEPS, STRENGTH = 128, 11, 20, 3.0
#: Kinds of kernels by parts of their names.
KERNELS = {
    "convolutions": ("xmma", "cutlass", "nvjet", "gemm", "splitK", "conv"),
    "pooling": ("pool",),
    "BatchNorm with ReLU": ("norm_",),
    "copies to and from the GPU": ("HtoD", "DtoH"),
    "optimizer": ("multi_tensor",),
    "additions": ("CUDAFunctor_add<c10::BFloat16>",),
}


def algorithm(model: str, samples: int | None, device: str, examples: int, side: int = 32, **changes: Any) -> Algorithm:
    """Return a training on random images; `samples` is the p* batch, None for Deep Ensembles."""
    draw = torch.Generator().manual_seed(0)
    channels = 1 if side == 28 else 3
    x = torch.randint(0, 256, (examples, channels, side, side), dtype=torch.uint8, generator=draw)
    y = torch.randint(0, 10, (examples,), generator=draw)
    paper = ("mnist", model) if side == 28 else ("cifar10", model)
    recipe = ge.Recipe.paper(*paper, batch_size=BATCH, weighting_batch_size=samples, **changes)
    coupling = as_coupling("deep" if samples is None else "greedy")
    coupling.strength, coupling.size = STRENGTH, SIZE
    execution = Execution(torch.device(device), recipe.precision, recipe.deterministic)
    arguments = Arguments(
        make_model=named(model, 10, channels),
        size=SIZE,
        coupling=coupling,
        weighting=None,
        distance="probabilities",
        targets="classes",
        recipe=recipe,
        seed=0,
        earlier=None,
        schedule=SCHEDULES["concurrent"],
    )
    return _build(arguments, (x, y), 0.0, execution)


Make = Callable[..., PlainEngine]  # an engine of members, step and plan


def engine_of(of: Algorithm, before: int, count: int, make: Make) -> tuple[PlainEngine, Plan]:
    """Return an engine of so many members after those of a bank, or of half where they do not fit; and its epoch."""
    bank = of._draw_bank()
    for _ in range(before if bank is not None else 0):
        assert bank is not None
        bank.append(torch.rand(bank.count, 10, device=bank.device).softmax(1))
    step = of._step(bank, of.recipe)
    while True:
        members = [of._new_member(before + 1 + number) for number in range(count)]
        plan = of._plan(members, bank, of.recipe)
        try:
            return make(members, step, plan), plan
        except torch.OutOfMemoryError:
            if count == 1:
                raise
        count = (count + 1) // 2
        del members, plan
        torch.cuda.empty_cache()


def published_loop(model: str, samples: int | None) -> float:
    """Return milliseconds a step of the published loop's shape: PyTorch's layers, eager, its default single precision,
    two passes, a number read back at every step; its data is on the GPU already, which flatters it."""
    torch.manual_seed(0)
    net = named(model, 10, 3)().to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    x, y = torch.rand(STEPS * BATCH, 3, 32, 32, device=DEVICE), torch.randint(0, 10, (STEPS * BATCH,), device=DEVICE)
    noise = torch.rand(STEPS * BATCH, 3, 32, 32, device=DEVICE)
    bank = torch.rand(SIZE // 2, STEPS * BATCH, 10, device=DEVICE).softmax(2)
    norms = [layer for layer in net.modules() if isinstance(layer, nn.BatchNorm2d)]

    def epoch() -> None:
        for start in range(0, len(x), BATCH):
            rows = slice(start, start + BATCH)
            optimizer.zero_grad()
            loss = cross_entropy(net(x[rows]), y[rows])
            loss.backward()
            if samples is not None:
                for layer in norms:
                    layer.eval()
                outputs = net(noise[rows]).softmax(1)
                for layer in norms:
                    layer.train()
                distances = [(outputs - row[rows]).square().sum(1).mean() for row in bank]
                term = torch.logsumexp(torch.stack([-(STRENGTH / SIZE) * d for d in distances]), 0)
                term.backward()
            optimizer.step()
            loss.item()

    return 1e3 * in_turn(epoch, repeats=3)[0] / STEPS


def captured(model: str, samples: int | None, concurrent: bool) -> dict[str, Any]:
    """Return milliseconds a member and step of the captured engine, what getting ready took, and a profile at the
    paper's p* batch alone: there are hundreds of thousands of kernels to sort."""
    of = algorithm(model, samples, DEVICE, STEPS * BATCH, precision="bf16")
    with of.execution.settings():
        start = time.perf_counter()
        engine, plan = engine_of(of, *((0, SIZE) if concurrent else (SIZE // 2, 1)), CapturedEngine)
        ready, count = time.perf_counter() - start, len(engine.members)
        epoch = partial(engine.train_epoch, plan)
        milliseconds = 1e3 * in_turn(epoch)[0] / STEPS / count
        profile = profiled(epoch, STEPS) if samples == BATCH else None
        memory = torch.cuda.max_memory_reserved() / 2**30  # of which recordings keep what they use
    del engine, epoch, of
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return {
        "milliseconds": milliseconds,
        "ready_seconds": ready,
        "members_at_once": count,
        "peak_gib": memory,
        "profile": profile,
    }


def inference(model: str, device: str, images: int, batch_size: int, **options: Any) -> dict[str, Any]:
    """Return milliseconds of predicting images with 11 members: a plain loop over them, and `predict_proba`.

    On a GPU, with what the kernels of the latter add up to. Options are those of `in_turn`.
    """
    torch.manual_seed(0)
    ensemble = ge.Ensemble.from_members([named(model, 10, 3)().to(device) for _ in range(SIZE)])
    x = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8)

    @torch.no_grad()
    def loop() -> torch.Tensor:
        batches = [batch.to(device).float() / 255 for batch in x.split(batch_size)]
        return torch.stack([torch.cat([member(batch).softmax(1) for batch in batches]).cpu() for member in ensemble])

    found, expected = ensemble.predict_proba(x, batch_size), loop()
    taken = in_turn(loop, lambda: ensemble.predict_proba(x, batch_size), **options)
    times: dict[str, Any] = {
        "plain loop": 1e3 * taken[0],
        "predict_proba": 1e3 * taken[1],
        "largest difference": (found - expected).abs().max().item(),
    }
    if device == "cuda":
        times["profile"] = profiled(lambda: ensemble.predict_proba(x, batch_size), 1)
    return {**times, "ratio": times["plain loop"] / times["predict_proba"]}


def profiled(run: Callable[[], object], steps: int) -> dict[str, dict[str, float]]:
    """Return what the kernels of a call of so many steps add up to, by kind, in milliseconds a step of all members.

    Kernels of several members run beside each other, so that the sum is larger than the time that passes.
    """
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as record:
        run()
        torch.cuda.synchronize()
    kinds: dict[str, dict[str, float]] = {}
    for event in record.key_averages():
        kind = next((kind for kind, words in KERNELS.items() if any(word in event.key for word in words)), "others")
        entry = kinds.setdefault(kind, {"milliseconds": 0.0, "kernels": 0.0})
        entry["milliseconds"] += event.self_device_time_total / 1e3 / steps
        entry["kernels"] += event.count / steps
    return kinds


def measure(model: str) -> dict[str, Any]:
    """Return all times of one network, their ratios, and where the time of the fastest way goes."""
    times: dict[str, Any] = {}
    for name, samples in (("deep", None), ("greedy", BATCH)):
        times[f"published loop, {name}"] = {"milliseconds": published_loop(model, samples)}
    for schedule, concurrent in (("sequential", False), ("concurrent", True)):
        for name, samples in (("deep", None), ("p* batch 128", 128), ("p* batch 8", 8)):
            times[f"{schedule}, {name}"] = captured(model, samples, concurrent)
    for name, entry in times.items():
        print(f"{model:16} {name:26} {entry['milliseconds']:8.3f} ms", flush=True)
    found = ratios(times)
    for name, value in found.items():
        print(f"{model:16} {name}: {value:.2f} ({verdict(name, model, value)})", flush=True)
    rate, bandwidth = rates()
    least = {"products a second": rate, "bytes a second": bandwidth, **floor(model, 2 * BATCH, BATCH, rate, bandwidth)}
    return {"times": times, "ratios": found, "floor": least}


def ratios(times: dict[str, Any]) -> dict[str, float]:
    """Return what has targets, of one network's times."""
    of = {name: entry["milliseconds"] for name, entry in times.items()}
    found = {
        "published loop over concurrent, p* batch 128": of["published loop, greedy"] / of["concurrent, p* batch 128"],
        "p* batch 8 over Deep Ensembles, concurrent": of["concurrent, p* batch 8"] / of["concurrent, deep"],
    }
    # Of members one after another, the first has no others, and no samples of p*.
    sequential = {
        name: (of["sequential, deep"] + (SIZE - 1) * of[f"sequential, {name}"]) / SIZE
        for name in ("p* batch 128", "p* batch 8", "deep")
    }
    found["p* batch 8 over Deep Ensembles, sequential"] = sequential["p* batch 8"] / sequential["deep"]
    for name, mean in sequential.items():
        found[f"concurrent over sequential, {name}"] = of[f"concurrent, {name}"] / mean
    return found


def on_gpu(parts: list[str], out: Path | None) -> None:
    """Measure what is asked for and print it; write what there is after each part, where asked."""
    made = facts("engine.py --out results/engine", "cuda")
    settings = {"command": made["command"], "batch": BATCH, "size": SIZE, "steps": STEPS}
    content: dict[str, Any] = {**settings, "parts": known(out, "speed").get("parts", {})}
    for part in parts:
        found = inference(PREDICTING[part], DEVICE, 10_000, 1024) if part in PREDICTING else measure(part)
        content["parts"][part] = {**made, **found}
        publish(out, "speed", page, content)


def main() -> None:
    """Measure what this machine can."""
    options = parser(__doc__)
    options.add_argument("--parts", nargs="+", choices=[*PREDICTING, *MODELS])
    options.add_argument("--ablate", action="store_true", help="measure everything, and everything less one piece")
    arguments = options.parse_args()
    if not torch.cuda.is_available():
        if arguments.parts or arguments.ablate:
            options.error("--parts and --ablate need a GPU, and there is none here")
        import cpu

        with contextlib.suppress(KeyboardInterrupt):
            cpu.run(arguments.out)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if arguments.ablate:
            import ablation

            ablation.run(arguments.parts or list(ablation.PARTS), arguments.out)
        else:
            on_gpu(arguments.parts or [*PREDICTING, *MODELS], arguments.out)


if __name__ == "__main__":
    main()
