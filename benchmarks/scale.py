"""How one ensemble grows over processes: what a step's exchange takes, a model of the step, and GPUs by that model.

    python benchmarks/scale.py [--out FOLDER] [--rounds 6] [--calls 100] [--epochs 4]
    python benchmarks/scale.py --one-gpu [--out FOLDER] [--calls 100] [--epochs 4]

1, 2 and 4 processes of this machine (gloo, one thread each) exchange outputs as `ge.fit` does, and train a small
network concurrently with it. Rounds of all three take turns, so that a busy spell of the machine meets all of them, and
every step is timed by itself: of what else runs, first deciles see little, and times on a processor less.
The model of a step is

    max over ranks of members x member-step + exchange,

where cores are shared: 4 processes on 2 cores take twice as long for a member. It is held against what was measured,
and read out for GPUs with the step times of `results/engine/records/speed.json` and NCCL's own latencies. FOLDER's
`records/reading.md`, written by hand, begins the page.

With `--one-gpu`, two processes share a GPU (gloo carries the exchange through the CPU, since NCCL wants a GPU for each)
and train what one process trains on it alone, VGG16BN in recorded steps: what the exchange and the second process cost.
"""

import datetime
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from result import facts, how, parser, publish
from torch import distributed, nn

import greedy_ensembles as ge
from greedy_ensembles import machine
from greedy_ensembles.engines.execution import Exchange, Ranks
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.sweeps.executor import Processes

PROCESSES = (1, 2, 4)
MEMBERS, BATCH, STEPS, CLASSES = 8, 32, 10, 10  # of the training that is timed; as many samples of p* as examples
GPU_BATCH = 128
SIZES = ((BATCH, CLASSES), (128, 10), (128, 100), (128, 1000))  # n x classes
CLOCKS = ("wall", "processor")
SPEED = Path(__file__).parents[1] / "results/engine/records/speed.json"
NETWORKS = ("VGG16BN", "WideResNet28x10")
#: What is read out: members, and GPUs to share them.
READ_OUT = ((11, 1), (11, 8), (11, 11), (64, 1), (64, 8), (64, 64))

#: NCCL's model of its own all-gather, by which it chooses between algorithms: ring, the protocol for small messages,
#: Hopper, nodes of eight on NVLink. Microseconds and GB/s. Of its figures for kinds of hosts, the slower.
SOURCE = "https://github.com/NVIDIA/nccl/blob/b6475625fbcaa2c3c0e50eed2fa1255d7514d4a2/src/graph/tuning.cc"
CALL, HOP, HOP_BESIDE_NETWORK, HOP_OVER_NETWORK = 6.6, 0.6, 2.0, 2.7
IN_A_NODE, BETWEEN_NODES = 87.7, 19.0
NODE = 8


def all_gather(gpus: int, size: int) -> float:
    """Return NCCL's milliseconds to have `size` bytes in all on every one of so many GPUs."""
    if gpus == 1:
        return 0.0
    between = -(-gpus // NODE) - 1
    hop, bandwidth = (HOP_BESIDE_NETWORK, BETWEEN_NODES) if between else (HOP, IN_A_NODE)
    latency = CALL + (gpus - 1 - between) * hop + between * HOP_OVER_NETWORK
    return (latency + size / (1e3 * bandwidth) * (gpus - 1) / gpus) / 1e3


def step(members: int, ranks: int, member_step: float, exchange: float) -> float:
    """Return what a step takes: the rank with the most members, and the exchange."""
    return max(len(range(members)[share]) for share in Ranks(0, ranks).shares(members)) * member_step + exchange


def read_out(speed: dict[str, Any]) -> list[dict[str, Any]]:
    """Return steps on GPUs by the model; `speed` has milliseconds of a member's step, by network and by how."""
    rows = []
    for network, times in speed.items():
        for members, gpus in READ_OUT:
            exchange = all_gather(gpus, members * 128 * CLASSES * 4)
            most = -(-members // gpus)
            # Members fill a GPU together better than alone; fewer than were measured are taken to be as slow as alone.
            captured = step(members, gpus, times["together" if most >= times["size"] else "alone"], exchange)
            tenfold = step(members, gpus, 0.0, 10 * exchange) / captured
            rows.append(
                {
                    **{"network": network, "members": members, "gpus": gpus, "most": most, "exchange": exchange},
                    **{"captured": captured, "tenfold": tenfold},
                    "faster": members * times["together"] / captured,
                }
            )
    return rows


def speed_of_members() -> dict[str, Any]:
    """Return milliseconds of a member's step on an H200, as `results/engine` has them."""
    content = json.loads(SPEED.read_text())
    kinds = {"together": "concurrent, p* batch 128", "alone": "sequential, p* batch 128"}
    parts = {network: content["parts"][network]["times"] for network in NETWORKS}
    return {
        network: {**{kind: times[name]["milliseconds"] for kind, name in kinds.items()}, "size": content["size"]}
        for network, times in parts.items()
    }


def now() -> tuple[float, float]:
    """Return the time, and this process's time on a processor, in which it does not wait for others; milliseconds."""
    return 1e3 * time.perf_counter(), 1e3 * time.process_time()


def between(ends: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Return by clock how long each took of what lies between two times."""
    pairs = list(itertools.pairwise(ends))
    return {clock: [later[k] - earlier[k] for earlier, later in pairs] for k, clock in enumerate(CLOCKS)}


def exchanges(ranks: Ranks, n: int, classes: int, calls: int) -> dict[str, list[float]]:
    """Return how long exchanges took in this process, by clock, in milliseconds; the first ones are left out."""
    exchange, ends = Exchange(ranks, MEMBERS), []
    outputs = torch.rand(len(range(MEMBERS)[exchange.own]), n, classes)
    for _ in range(calls + calls // 10 + 1):
        exchange(outputs)
        ends.append(now())
    return between(ends[-calls - 1 :])


def network() -> nn.Module:
    """Return a small network, whose steps are short enough for an exchange to be seen beside them."""
    body = nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(32 * 8 * 8, CLASSES))


def steps(ranks: Ranks, epochs: int) -> dict[str, list[float]]:
    """Return how long steps of `ge.fit` took, by clock, in milliseconds; those of the first epoch are left out."""
    ends: list[tuple[float, float]] = []

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ends.append(now())
        return nn.functional.cross_entropy(logits, targets)

    y = torch.arange(STEPS * BATCH) % CLASSES
    x = (
        torch.rand(STEPS * BATCH, 1, 12, 12, generator=torch.Generator().manual_seed(0))
        + y[:, None, None, None] / CLASSES
    )
    ge.fit(
        network,
        (x, y),
        size=MEMBERS,
        weighting=ge.weighting.FromData(x),
        recipe=ge.Recipe(epochs=epochs + 1, batch_size=BATCH, loss=loss),
        schedule="concurrent",
        validation=0,
        device="cpu",
        progress=False,
    )
    own = len(range(MEMBERS)[Exchange(ranks, MEMBERS).own])  # by the first of them each step is known
    return between(ends[-own * STEPS * epochs :: own])


def work(rank: int, tell: object, *, world: int, meeting: str, calls: int, epochs: int) -> dict[str, Any]:
    """Take part in a group of processes, and return times by what was timed."""
    limit = datetime.timedelta(minutes=5)
    distributed.init_process_group("gloo", f"file://{meeting}", limit, world, rank)
    found = {f"{n} x {classes}": exchanges(Ranks(rank, world), n, classes, calls) for n, classes in SIZES}
    return {**found, "step": steps(Ranks(rank, world), epochs)}


def first_of(world: int, work: Callable[..., dict[str, Any]], calls: int, epochs: int) -> dict[str, Any]:
    """Return what the first of so many processes returns, which do the work together."""
    with tempfile.TemporaryDirectory() as folder:
        asked = {"world": world, "meeting": f"{folder}/meeting", "calls": calls, "epochs": epochs}
        jobs = {str(rank): functools.partial(work, rank, **asked) for rank in range(world)}
        found: dict[str, Any] = Processes(places=(None,) * world).run(jobs, print)["0"]
    return found


def measure(processes: tuple[int, ...], rounds: int, calls: int, epochs: int) -> dict[str, Any]:
    """Return first deciles of the first process by how many there are, what was timed, and clock."""
    every: dict[str, Any] = {str(world): {} for world in processes}
    for _ in range(rounds):
        for world in processes:
            for name, clocks in first_of(world, work, calls, epochs).items():
                for clock, times in clocks.items():
                    every[str(world)].setdefault(name, {}).setdefault(clock, []).extend(times)
    for found in every.values():
        for name, clocks in found.items():
            found[name] = {
                clock: {"decile": statistics.quantiles(times, n=10)[0], "count": len(times)}
                for clock, times in clocks.items()
            }
    return every


def predicted(measured: dict[str, Any], world: str, clock: str, cores: int) -> float:
    """Return a step in so many processes of this machine by the model, a member's from that of one process."""
    slower = max(1, int(world) / cores) if clock == "wall" else 1
    member_step = slower * measured["1"]["step"][clock]["decile"] / MEMBERS
    return step(MEMBERS, int(world), member_step, measured[world][f"{BATCH} x {CLASSES}"][clock]["decile"])


def page(content: dict[str, Any]) -> Page:
    """Return what was measured beside the model, exchanges, and GPUs by the model."""
    measured, checked = content["measured"], []
    counts = measured["1"][f"{BATCH} x {CLASSES}"]["wall"]["count"], measured["1"]["step"]["wall"]["count"]
    made = {
        "processes": "gloo, one thread each",
        "load": f"{content['load']:.1f} processes at work or waiting for a core in the minute before",
        "counts": f"{counts[0]:,} exchanges of each size, {counts[1]} steps, in each column or row",
        "figures": "first deciles",
        "processor time": "that of the first process, which has the most members, without what it waits",
        "steps": f"ms; {MEMBERS} members: two convolutions on 12 x 12 images, batch {BATCH}, as many samples of p*",
        "model": f"a member: one process over {MEMBERS}; by the wall, times processes over cores, where more than 1",
        "GPUs": "by the model; step times of one H200 ([speed](../engine/speed.md)), batch 128, p* batch 128",
        "members on a GPU": "fewer than were measured together: as slow as one alone",
        "exchange on GPUs": f"[NCCL's own model]({SOURCE}) of an all-gather, nodes of {NODE}; networks not included",
        "times faster": "than one GPU",
    }
    exchanged = [
        [f"{n} x {classes}", f"{4 * MEMBERS * n * classes / 1e3:,.0f} kB"]
        + [f"{1e3 * one[f'{n} x {classes}']['wall']['decile']:,.0f}" for one in measured.values()]
        for n, classes in SIZES
    ]
    for (world, found), clock in itertools.product(list(measured.items())[1:], CLOCKS):
        model, took = predicted(measured, world, clock, content["cores"]), found["step"][clock]["decile"]
        one = measured["1"]["step"][clock]["decile"]
        checked.append([world, clock, f"{one:.1f}", f"{took:.1f}", f"{model:.1f}", f"{took / model:.2f}"])
    heading = ["processes", "time", "one process", "measured", "model", "measured over model"]
    parts = [
        f"## The exchange of a step, {MEMBERS} members, microseconds",
        markdown_table(["n x classes", "in all", *(f"processes: {world}" for world in measured)], exchanged),
        "## GPUs, by the model, not measured",
        _gpus(content["speed"]),
        *how(content, made),
    ]
    return Page("How an ensemble grows over processes", parts, markdown_table(heading, checked))


def _gpus(speed: dict[str, Any]) -> str:
    """Return the table of GPUs."""
    rows = [
        [
            *(row["network"], str(row["members"]), str(row["gpus"]), str(row["most"]), f"{1e3 * row['exchange']:.0f}"),
            *(f"{row['captured']:.1f}", f"{row['faster']:.1f}", f"{row['tenfold']:.0%}"),
        ]
        for row in read_out(speed)
    ]
    headings = ["network", "M", "GPUs", "members on the fullest", "exchange, us", "step, ms", "times faster"]
    return markdown_table([*headings, "ten times the exchange, of it"], rows)


def work_on_gpu(rank: int, tell: object, *, world: int, meeting: str, calls: int, epochs: int) -> dict[str, Any]:
    """Take part in a training on one GPU, and return milliseconds of a step of all members, and of an exchange."""
    if world > 1:
        distributed.init_process_group("gloo", f"file://{meeting}", datetime.timedelta(minutes=5), world, rank)
    events: list[ge.Epoch] = []
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20 * GPU_BATCH, 3, 32, 32), dtype=torch.uint8, generator=draw)
    changes: dict[str, Any] = {"epochs": epochs + 2, "warmup_epochs": 0, "weighting_batch_size": GPU_BATCH}
    ge.fit(
        ge.models.VGG16BN,
        (x, torch.randint(0, CLASSES, (len(x),), generator=draw)),
        size=MEMBERS,
        recipe=ge.Recipe.paper("cifar10", "VGG16BN", precision="bf16", weighting_statistics="batch", **changes),
        schedule="concurrent",
        validation=0,
        device="cuda",
        progress=False,
        callbacks=[events.append],
    )
    exchange, ends = Exchange(Ranks(rank, world), MEMBERS), []
    own = len(range(MEMBERS)[exchange.own])
    found = {"step": [1e3 * one.seconds * own / 20 for one in events if one.member == 1 and one.epoch > 2]}
    if world > 1:
        outputs = torch.rand(own, GPU_BATCH, CLASSES, device="cuda")
        for _ in range(calls + 11):
            exchange(outputs)
            torch.cuda.synchronize()
            ends.append(now())
        found["exchange"] = between(ends[-calls - 1 :])["wall"]
    return found


def on_one_gpu(out: Path | None, calls: int, epochs: int) -> None:
    """Measure one process and two on a GPU, print, and write where asked."""
    content: dict[str, Any] = {**facts("scale.py --one-gpu --out results/scale", "cuda"), "measured": {}}
    for world in (1, 2):
        content["measured"][str(world)] = {
            name: {"median": statistics.median(times), "least": min(times), "most": max(times), "count": len(times)}
            for name, times in first_of(world, work_on_gpu, calls, epochs).items()
        }
    publish(out, "one-gpu", page_of_one_gpu, content)


def page_of_one_gpu(content: dict[str, Any]) -> Page:
    """Return what two processes on one GPU take beside one."""
    rows = [
        [name, world, *(f"{one[kind]:.2f}" for kind in ("median", "least", "most")), str(one["count"])]
        for world, found in content["measured"].items()
        for name, one in found.items()
    ]
    one, two = (content["measured"][world]["step"]["median"] for world in ("1", "2"))
    table = markdown_table(["", "processes", "median, ms", "least", "most", "of"], rows)
    summary = f"{table}\n\nTwo processes over one: {two / one:.2f}; {two - one:+.2f} ms a step."
    made = {
        "a step": f"of all {MEMBERS} members of VGG16BN, bf16, batch {GPU_BATCH} and as many samples of p*, recorded",
        "counts": "epochs of 20 steps, after two that do not count; exchanges, one by one",
    }
    return Page("Two processes on one GPU", how(content, made), summary)


def run(out: Path | None, **asked: int) -> None:
    """Measure, print, and write where asked."""
    content = {
        **facts("scale.py --out results/scale"),
        "asked": asked,
        "cores": machine.cores(),
        "load": os.getloadavg()[0],
        "measured": measure(PROCESSES, **asked),
        "speed": speed_of_members(),
    }
    publish(out, "scale", page, content)


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=6)
    options.add_argument("--calls", type=int, default=100)
    options.add_argument("--epochs", type=int, default=4)
    options.add_argument("--one-gpu", action="store_true", help="two processes on a GPU beside one")
    given = vars(options.parse_args())
    if given.pop("one_gpu"):
        del given["rounds"]
        on_one_gpu(**given)
    else:
        run(**given)
