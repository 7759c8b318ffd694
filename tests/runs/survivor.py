"""A training process to be killed: imports once, then forks a child for every request line on standard input.

A request is JSON: run_dir, size, epochs; hold = true lets the child wait for ever after its first epoch, once it has
said so; crash = {at, when} kills the child at its n-th file, before, after or in the
middle of writing it; file_limit bounds the size of files as a full disk would. The answers are the child's process
number and, when it has ended, its exit status.
"""

import json
import os
import pathlib
import random
import resource
import signal
import sys
import tempfile
import traceback

import numpy as np
import torch
from torch import nn

import greedy_ensembles as ge


def make_model():
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def augment(batch):
    """Noise from all three generators, so that a resumed run needs all three states."""
    return batch + 0.01 * torch.randn_like(batch) + 0.01 * float(np.random.randn()) + 0.01 * random.gauss(0, 1)  # noqa: NPY002


def hold_on(event):
    print("holding", flush=True)
    signal.pause()


def train(run_dir, size, epochs, hold=False):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) % 2
    x = torch.randn(40, 2, generator=generator) + y[:, None]
    recipe = ge.Recipe(epochs=epochs, batch_size=16, augment=augment)
    options = {"run_dir": run_dir, "device": "cpu", "progress": False, "callbacks": [hold_on] if hold else []}
    return ge.fit(make_model, (x, y), size=size, strength=2.0, recipe=recipe, **options)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def crash(at, when):
    """Arrange for this process to die at the at-th file that it writes."""
    replace, open_file, count = pathlib.Path.replace, pathlib.Path.open, 0

    def dying_replace(self, target):
        nonlocal count
        count += 1
        if count == at and when == "before":
            die()
        result = replace(self, target)
        if count == at and when == "after":
            die()
        return result

    def dying_open(self, mode="r", *arguments, **options):
        file = open_file(self, mode, *arguments, **options)
        if mode == "xb" and count == at - 1 and when == "during":
            file.write(b"half of what should be here")
            file.flush()
            die()
        return file

    pathlib.Path.replace, pathlib.Path.open = dying_replace, dying_open


def child(request):
    """Train, and end this process whatever happens: it must not go on to read requests."""
    try:
        if "crash" in request:
            crash(**request.pop("crash"))
        if limit := request.pop("file_limit", None):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        train(**request)
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(folder, size=1, epochs=1)  # what torch imports at first use is then there for all children
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
