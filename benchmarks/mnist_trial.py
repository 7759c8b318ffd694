"""What benchmarks that train on MNIST share: their options, the data, and the facts that stand beside figures."""

import argparse
import datetime
from pathlib import Path
from typing import Any

import torch

import greedy_ensembles as ge

_EPOCHS = 20


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the options; `description` is a module's docstring."""
    options = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    options.add_argument("--out", type=Path)
    options.add_argument("--epochs", type=int, default=_EPOCHS)
    options.add_argument("--images", type=int)
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return options


def load(arguments: argparse.Namespace) -> tuple[ge.data.ImageSet, ge.data.ImageSet] | None:
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


def facts(command: str, arguments: argparse.Namespace, train: ge.data.ImageSet) -> dict[str, Any]:
    """Return what has to stand beside the figures."""
    fewer = [] if arguments.images is None else [f"--images {arguments.images}"]
    fewer += [] if arguments.epochs == _EPOCHS else [f"--epochs {arguments.epochs}"]
    return {
        "command": " ".join([command, *fewer]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "examples": len(train),
        "epochs": arguments.epochs,
    }
