"""Data that memory does not hold: what `ge.fit` takes of it, and how fast it reads, beside a plain loop.

    python benchmarks/large_data.py [--gib 2] [--files 20000] [--out results/large-data]

Two data sets are written to a temporary folder: images in one array on disk, and as PNG files. Peak memory is that of
this process and its workers above what they have before training, without pages of mapped files, which the system
takes back when it needs them. Throughput is that of a member's epoch, of the same loader and the same network.
"""

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
from result import facts, parser, publish
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

import greedy_ensembles as ge
from greedy_ensembles.paper.pages import page_text
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

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.png"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[np.ndarray, int]:
        return np.array(Image.open(self.paths[i])).transpose(2, 0, 1), i % CLASSES


def held() -> int:
    """Return the bytes that this process and its children hold for themselves, shared ones in parts."""
    total, waiting = 0, ["self"]
    while waiting:
        process = Path("/proc") / waiting.pop()
        try:
            lines = (process / "smaps_rollup").read_text().splitlines()
            for task in (process / "task").iterdir():
                waiting += (task / "children").read_text().split()
        except OSError:  # it ended meanwhile
            continue
        sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
        total += 1024 * (sizes["Pss_Anon:"] + sizes["Pss_Shmem:"])
    return total


@contextmanager
def watched(peaks: list[int]) -> Iterator[None]:
    """Append by how much memory grew at the most inside the block."""
    before, highest, done = held(), 0, threading.Event()

    def look() -> None:
        nonlocal highest
        while not done.wait(0.05):
            highest = max(highest, held())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        peaks.append(max(0, highest - before, held() - before))


def plain(make_model: Callable[[], nn.Module], loader: "DataLoader[Any]") -> float:
    """Return the seconds of an epoch of a loop as everyone writes it."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    start = time.perf_counter()
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x.float() / 255), y).backward()
        optimizer.step()
    return time.perf_counter() - start


def measure(
    make_model: Callable[[], nn.Module], data: Any, loader: "DataLoader[Any]", repeats: int
) -> dict[str, float]:
    """Return the peak memory of a greedy ensemble of two, and the fastest epochs of both loops, taken in turns."""
    recipe = ge.Recipe(epochs=1, batch_size=BATCH, lr=0.01)
    options: dict[str, Any] = {"recipe": recipe, "validation": 0, "progress": False, "device": "cpu"}
    peaks: list[int] = []
    with watched(peaks):
        ge.fit(make_model, data, size=2, strength=1.0, **options)
    loops, epochs = [], []
    for _ in range(repeats):
        loops.append(plain(make_model, loader))
        ge.fit(make_model, data, size=1, method="deep", callbacks=[lambda e: epochs.append(e.seconds)], **options)
    ours, theirs = len(loader.dataset) / min(epochs), len(loader.dataset) / min(loops)  # type: ignore[arg-type]
    return {"peak_mib": peaks[0] / 2**20, "ours_per_s": ours, "plain_per_s": theirs, "ratio": ours / theirs}


def run(gib: float, files: int, side: int, workers: int, repeats: int) -> dict[str, dict[str, float]]:
    """Write both data sets, and measure on them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", WeakMemberWarning)  # there is nothing to learn from noise
    shape = (3, side, side)

    def make_model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 16), nn.ReLU(), nn.Linear(16, CLASSES))

    with tempfile.TemporaryDirectory() as folder:
        count, rng = int(gib * 2**30 / np.prod(shape)), np.random.default_rng(0)
        path, pictures = Path(folder) / "x.npy", Path(folder) / "pictures"
        array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, *shape))
        for start in range(0, count, 4096):
            array[start : start + 4096] = rng.integers(0, 256, array[start : start + 4096].shape, np.uint8)
        array.flush()
        x = np.load(path, mmap_mode="r")
        pictures.mkdir()
        for number in range(files):
            Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).save(pictures / f"{number:06d}.png")
        mapped = DataLoader(Mapped(x), batch_size=BATCH, shuffle=True)
        decoded = DataLoader(Files(pictures), batch_size=BATCH, shuffle=True, num_workers=workers)
        size = f"{array.nbytes / 2**30:.2g} GiB"
        return {
            f"{size} on disk, DataLoader": measure(make_model, mapped, mapped, repeats),
            f"{size} on disk, a pair": measure(make_model, (x, np.arange(count) % CLASSES), mapped, repeats),
            f"{files:,} PNG files, DataLoader": measure(make_model, decoded, decoded, repeats),
        }


def page(content: dict[str, Any], reading: str = "") -> str:
    """Return the table, and how it was made."""
    rows = []
    for name, one in content["found"].items():
        rates = [f"{one[key]:,.0f}" for key in ("ours_per_s", "plain_per_s")]
        rows.append([name, f"{one['peak_mib']:.0f} MiB", *rates, f"{one['ratio']:.2f}"])
    about = (
        f"`{content['command']}`, {content['date']}, {content['machine']}, one thread. Peak memory is above what the "
        "process has before training, workers included, without pages of mapped files. Loops ran in turns, on a "
        "machine with other work: read rates beside each other."
    )
    summary = markdown_table(["data", "peak memory", "ge.fit, examples a second", "plain loop", "ratio"], rows)
    return page_text("Data that memory does not hold", reading, [about], summary)


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--gib", type=float, default=2.0, help="size of the array")
    options.add_argument("--files", type=int, default=20_000, help="PNG files")
    options.add_argument("--side", type=int, default=64, help="pixels a side")
    options.add_argument("--workers", type=int, default=2, help="processes that decode files")
    options.add_argument("--repeats", type=int, default=2, help="epochs of each loop, of which the fastest counts")
    asked = vars(options.parse_args())
    out = asked.pop("out")
    publish(out, "large-data", page, {**facts("large_data.py"), "asked": asked, "found": run(**asked)})


if __name__ == "__main__":
    main()
