"""What benchmarks have in common: options, the facts that stand beside figures, and a page with its figures as JSON."""

import argparse
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import greedy_ensembles as ge
from greedy_ensembles import machine
from greedy_ensembles.runs.configuration import git_commit

_EPOCHS = 20


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options that all have; `description` is a module's docstring."""
    options = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    options.add_argument("--out", type=Path, help="a folder for the page and its figures")
    return options


def facts(command: str, device: str = "cpu") -> dict[str, Any]:
    """Return by which command, when, where and of what figures are made."""
    return {
        "command": f"python benchmarks/{command}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name() if device == "cuda" else machine.processor(),
        "torch": torch.__version__,
        "commit": git_commit(),
    }


def publish(out: Path | None, stem: str, page: Callable[[dict[str, Any], str], str], content: dict[str, Any]) -> None:
    """Print a page and, where asked, write it; it begins with NAME-reading.md or reading.md of its records.

    Args:
        out: the folder, if any.
        stem: the name of the page.
        page: from the content and what a person wrote to the page.
        content: what it is made of, which is written as JSON.
    """
    readings = [] if out is None else [out / "records" / name for name in (f"{stem}-reading.md", "reading.md")]
    text = page(content, next((file.read_text() for file in readings if file.exists()), ""))
    print(text)
    if out is not None:
        (out / "records").mkdir(parents=True, exist_ok=True)
        (out / "records" / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
        (out / f"{stem}.md").write_text(text)


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
    if arguments.images is not None:
        train = train.replace(images=train.images[: arguments.images], labels=train.labels[: arguments.images])  # type: ignore[index]
    return train, test


def mnist_facts(command: str, arguments: argparse.Namespace, train: ge.data.ImageSet) -> dict[str, Any]:
    """Return the facts of a training on MNIST."""
    fewer = "" if arguments.images is None else f" --images {arguments.images}"
    fewer += "" if arguments.epochs == _EPOCHS else f" --epochs {arguments.epochs}"
    return {**facts(command + fewer, arguments.device), "examples": len(train), "epochs": arguments.epochs}
