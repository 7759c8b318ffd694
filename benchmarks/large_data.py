"""Data that memory does not hold: what `ge.fit` takes of it, and how fast it reads, beside a plain loop.

    python benchmarks/large_data.py [--gib 2] [--files 20000] [--out results/large-data]

Two data sets are written to a temporary folder: images in one array on disk, and as PNG files. Peaks are of this
process and its workers, above what they have before training: memory of their own, and beside it the pages of mapped
files, which are the system's cache, and which it takes back when it needs them. A plain loop over the same loader maps
as many. Throughput is that of a member's epoch, of the same loader and the same network.
"""

import dataclasses
import resource
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from result import facts, how, parser, publish
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import greedy_ensembles as ge
from greedy_ensembles.paper.pages import Page
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.runs.notes import WeakMemberWarning

BATCH, CLASSES = 256, 10


class Mapped(Dataset[Any]):
    """Images of an array on disk, by index."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.array(self.x[i]), i % CLASSES


class Files(Dataset[Any]):
    """Images of PNG files, decoded when they are asked for."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.array(Image.open(self.paths[i])).transpose(2, 0, 1), i % CLASSES


def held() -> np.ndarray:
    """Return the bytes of this process and its children: memory of their own, and pages of mapped files."""
    total, waiting = np.zeros(2, np.int64), ["self"]
    while waiting:
        process = Path("/proc") / waiting.pop()
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
            for task in (process / "task").iterdir():
                waiting += (task / "children").read_text().split()
        except OSError:  # it ended meanwhile
            continue
        sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        # Of what several processes share, each counts its part.
        total += 1024 * np.array([sizes["Pss_Anon:"] + sizes["Pss_Shmem:"], sizes["Pss_File:"]])
    return total


@contextmanager
def watched(peaks: list[float]) -> Iterator[None]:
    """Append, in MiB, by how much memory of its own and mapped pages grew at the most inside the block."""
    before, done = held(), threading.Event()
    highest = before

    def look() -> None:
        nonlocal highest
        while not done.wait(0.05):
            highest = np.maximum(highest, held())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks += ((np.maximum(highest, held()) - before) / 2**20).tolist()


def clocks() -> np.ndarray:
    """Return seconds: those that passed, and those of processors, of workers that ended, too."""
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    return np.array([time.perf_counter(), time.process_time() + workers.ru_utime + workers.ru_stime])


def plain(make_model: Callable[[], nn.Module], loader: "DataLoader[Any]") -> np.ndarray:
    """Return the seconds of an epoch of a loop as everyone writes it."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    start = clocks()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x.float() / 255), y).backward()
        optimizer.step()
    taken: np.ndarray = clocks() - start
    return taken


def measure(
    make_model: Callable[[], nn.Module], opened: Callable[[int | None], tuple[Any, Any]], part: int, repeats: int
) -> dict[str, float]:
    """Return peaks of a greedy ensemble of two and of a plain loop, and how fast both read, in turns.

    `opened` opens the data anew, so that no page of it is mapped yet, and returns what `ge.fit` takes and a loader, of
    all examples or of the first ones: rates are those of a `part`.
    """
    recipe = ge.Recipe(epochs=1, batch_size=BATCH, lr=0.01)
    options: dict[str, Any] = {"validation": 0, "progress": False, "device": "cpu"}
    peaks: list[float] = []
    with watched(peaks):
        ge.fit(make_model, opened(None)[0], size=2, strength=1.0, recipe=recipe, **options)
    with watched(peaks):
        plain(make_model, opened(None)[1])
    loops: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    data, loader = opened(part)
    options |= {"recipe": dataclasses.replace(recipe, epochs=2), "callbacks": [lambda _: ends.append(clocks())]}
    for _ in range(repeats):
        loops.append(plain(make_model, loader))
        ge.fit(make_model, data, size=1, method="deep", **options)
    epochs = np.subtract(ends[1::2], ends[::2])  # second epochs, which are that and nothing else
    ours, theirs = (len(loader.dataset) / np.min(taken, axis=0) for taken in (epochs, loops))
    names = (
        "own_mib",
        "mapped_mib",
        "plain_own_mib",
        "plain_mapped_mib",
        "ours_per_s",
        "plain_per_s",
        "ratio",
        "cpu_ratio",
    )
    return dict(zip(names, [*peaks, ours[0], theirs[0], *(ours / theirs)], strict=True))


def run(gib: float, files: int, side: int, workers: int, repeats: int) -> dict[str, dict[str, float]]:
    """Write both data sets, and measure on them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", WeakMemberWarning)  # there is nothing to learn from noise
    count, rng = int(gib * 2**30 / (3 * side * side)), np.random.default_rng(0)

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    with tempfile.TemporaryDirectory() as folder:
        path, pictures = Path(folder) / "x.npy", Path(folder) / "pictures"

        def array(first: int | None) -> tuple[Any, Any]:
            x = np.load(path, mmap_mode="r")[:first]
            return (x, np.arange(len(x)) % CLASSES), DataLoader(Mapped(x), batch_size=BATCH, shuffle=True)

        def decoded(first: int | None) -> tuple[Any, Any]:
            found = Files(sorted(pictures.glob("*.png"))[:first])
            return (DataLoader(found, batch_size=BATCH, shuffle=True, num_workers=workers),) * 2

        _write_array(path, (count, 3, side, side), rng)
        pictures.mkdir()
        for number in range(files):
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(pictures / f"{number:06d}.png")
        size, part = f"{path.stat().st_size / 2**30:.2g} GiB", min(files, count)
        return {
            f"{size} on disk, DataLoader": measure(make_model, lambda first: (array(first)[1],) * 2, part, repeats),
            f"{size} on disk, a pair": measure(make_model, array, part, repeats),
            f"{files:,} PNG files, DataLoader": measure(make_model, decoded, part, repeats),
        }


def _write_array(path: Path, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    array = np.lib.format.open_memmap(path, "w+", np.uint8, shape)
    for start in range(0, len(array), 4096):
        array[start : start + 4096] = rng.integers(0, 256, array[start : start + 4096].shape, np.uint8)
    array.flush()


def page(content: dict[str, Any]) -> Page:
    """Return the table, and how it was made."""
    rows = []
    for name, one in content["found"].items():
        peaks = [f"{one[key]:,.0f} MiB" for key in ("own_mib", "mapped_mib", "plain_own_mib", "plain_mapped_mib")]
        rates = [f"{one[key]:,.0f}" for key in ("ours_per_s", "plain_per_s")]
        rows.append([name, *peaks, *rates, f"{one['ratio']:.2f}", f"{one['cpu_ratio']:.2f}"])
    heading = ["data", "`ge.fit`, own memory", "mapped pages", "plain loop, own memory", "mapped pages"]
    rated = ["`ge.fit`, examples a second", "plain loop", "ratio", "by processor time"]
    return Page("Data that memory does not hold", how(content, {}), markdown_table([*heading, *rated], rows))


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--gib", type=float, default=2.0, help="size of the array")
    options.add_argument("--files", type=int, default=20_000, help="PNG files")
    options.add_argument("--side", type=int, default=64, help="pixels a side")
    options.add_argument("--workers", type=int, default=2, help="processes that decode files")
    options.add_argument("--repeats", type=int, default=5, help="epochs of each loop, of which the fastest counts")
    asked = vars(options.parse_args())
    out = asked.pop("out")
    publish(out, "large-data", page, {**facts("large_data.py"), "asked": asked, "found": run(**asked)})


if __name__ == "__main__":
    main()
