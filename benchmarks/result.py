"""What benchmarks have in common: options, the facts that stand beside figures, and a page with its figures as JSON."""

import argparse
import datetime
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

import greedy_ensembles as ge
from greedy_ensembles import machine
from greedy_ensembles.paper import pages
from greedy_ensembles.report.table import markdown_table
from greedy_ensembles.runs.configuration import git_commit

_EPOCHS = 20


def in_turn(
    *runs: Callable[[], object], repeats: int = 5, typical: Callable[[list[float]], float] = statistics.median
) -> list[float]:
    """Return the typical time of each call, after one that does not count; a busy spell of the machine meets all."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(repeats):
        for run, own in zip(runs, times, strict=True):
            synchronize()
            start = time.perf_counter()
            run()
            synchronize()
            own.append(time.perf_counter() - start)
    return [typical(own) for own in times]


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options that all have; `description` is a module's docstring."""
    options = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    options.add_argument("--out", type=Path, help="a folder for the page and its figures")
    return options


def facts(command: str, device: str = "cpu") -> dict[str, Any]:
    """Return by which command, when, where and of what figures are made."""
    return {
        "command": f"python benchmarks/{command}",
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}",
        "machine": torch.cuda.get_device_name() if device == "cuda" else machine.processor(),
        "torch": torch.__version__,
        "commit": git_commit(),
    }


def told(made: Mapping[str, Any]) -> str:
    """Return when, where and of what figures were made."""
    commit = f", commit {made['commit'][:12]}" if made.get("commit") else ""
    return f"{made['date']}, {made['machine']}, torch {made['torch']}{commit}"


def how(content: Mapping[str, Any], more: Mapping[str, str]) -> list[str]:
    """Return the last part of a page: how its figures were made, and what else is to be known of them."""
    rows = {"command": f"`{content['command']}`", **({"run": told(content)} if "date" in content else {}), **more}
    return ["## How it was measured", markdown_table(["", ""], [list(row) for row in rows.items()])]


def judged(value: float, sign: str, target: float, shown: str = "") -> str:
    """Return a target, >= or <= so much, and whether a figure meets it."""
    met = value >= target if sign == ">=" else value <= target
    return f"target {sign} {shown or target}: {'met' if met else 'missed'}"


def publish(out: Path | None, stem: str, page: Callable[[dict[str, Any]], pages.Page], content: dict[str, Any]) -> None:
    """Print the page of this content and, where asked, write both into a folder."""
    print(page(content).text() if out is None else pages.publish(out, stem, page(content), content))


def known(out: Path | None, stem: str) -> dict[str, Any]:
    """Return the content that a page of the folder has already, empty where there is none."""
    file = None if out is None else out / "records" / f"{stem}.json"
    return json.loads(file.read_text()) if file is not None and file.exists() else {}


def mnist_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options of what trains on MNIST."""
    options = parser(description)
    options.add_argument("--epochs", type=int, default=_EPOCHS)
    options.add_argument("--images", type=int)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return options


def mnist(arguments: argparse.Namespace) -> tuple[ge.data.ImageSet, ge.data.ImageSet] | None:
    """Return the images to train on and the test images, or say why there is nothing to measure."""
    try:
        train, test = (ge.data.load("mnist", split) for split in ("train", "test"))
    except FileNotFoundError as error:
        print(f"not measured: {error}")
        return None
    if arguments.images is None and arguments.device == "cpu":
        print("not measured: without a GPU this takes hours; --images 2000 --epochs 1 tries it out")
        return None
    return train.take(np.arange(min(arguments.images or len(train), len(train)))), test


def mnist_facts(command: str, arguments: argparse.Namespace, train: ge.data.ImageSet) -> dict[str, Any]:
    """Return the facts of a training on MNIST."""
    fewer = "" if arguments.images is None else f" --images {arguments.images}"
    fewer += "" if arguments.epochs == _EPOCHS else f" --epochs {arguments.epochs}"
    return {**facts(command + fewer, arguments.device), "examples": len(train), "epochs": arguments.epochs}
