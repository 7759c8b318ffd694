"""What every process of a `torchrun` does in tests/training/test_ranks.py: ``ranks_script.py FOLDER CASE [...]``."""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
from torch import distributed, nn

import greedy_ensembles as ge
from greedy_ensembles.cli import application

CALLS = {"passes": 0}


class Net(nn.Sequential):
    """A small convolutional network with BatchNorm and dropout, which counts its passes in training."""

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 16, 3)
        )

    def forward(self, x):
        CALLS["passes"] += self.training
        if os.environ.get("DIES") == os.environ.get("RANK", "") and CALLS["passes"] == 5:  # in the second epoch
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def data(seed=0):
    y = torch.arange(45) % 3
    return torch.randn(45, 1, 6, 6, generator=torch.Generator().manual_seed(seed)) + y[:, None, None, None], y


def fit(data_seed=0, **options):
    recipe = ge.Recipe(**{"epochs": 3, "batch_size": 16, "lr": 0.05, **options.pop("recipe", {})})
    weighting = ge.weighting.Gaussian(0.0, 3 * torch.ones(1, 6, 6))
    default = {"size": 5, "schedule": "concurrent", "validation": 0.2, "progress": False, "device": "cpu"}
    options = {"strength": 2.0, "weighting": weighting, **default, **options}
    if options.get("method") in ("deep", "snapshot"):
        options.pop("weighting")
    return ge.fit(Net, data(data_seed), recipe=recipe, **options)


#: Trainings that are the same in any number of processes.
CASES = {
    "greedy": {},
    "repulsive": {"method": "repulsive", "strength": 0.1},
    "deep": {"method": "deep", "schedule": "sequential"},
    "patience": {"recipe": {"epochs": 6, "patience": 1, "ema": 0.5, "clip": 1.0}},
}


def predictions(ensemble):
    return ensemble.predict_proba(torch.randn(20, 1, 6, 6, generator=torch.Generator().manual_seed(1)))


def main(folder, *cases):
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    found, told = {}, {}
    for case in cases:
        if case == "resumed":
            events = []
            found[case] = predictions(fit(run_dir=folder / "run", callbacks=[events.append]))
            told[case] = [(event.member, event.epoch, event.done) for event in events]
            continue
        if case == "command":
            arguments = [str(folder / "table.csv"), "--out", str(folder / "command"), "--target", "class"]
            arguments += ["--size", "3", "--strength", "1", "--schedule", "concurrent", "--device", "cpu"]
            application()(
                ["train", *arguments, "--set", "lr=1e-9", "--set", "epochs=34", "--set", "batch_size=16"],
                standalone_mode=False,
            )
            continue
        if case == "refused":
            wrong = {
                "concurrent": {"schedule": "sequential"},
                "one process": {"method": "snapshot", "schedule": "sequential", "recipe": {"epochs": 5}},
                "start fewer": {"size": 1},
                "seed": {"seed": rank},
                ": data": {"data_seed": rank, "weighting": None},  # of which the default p* is made
                "schedule": {"schedule": ["concurrent", "sequential"][rank]},
                "size": {"size": 5 + rank},
                "members_at_once": {"recipe": {"members_at_once": 2}},
                "members that are left": {"size": 3, "run_dir": folder / "finished"},
                "go on with one process": {**CASES["deep"], "run_dir": folder / "under-way"},
            }
            for named, options in wrong.items():
                try:
                    fit(**options)
                except ValueError as error:
                    told[named] = named in str(error)
            continue
        CALLS["passes"] = 0
        found[case] = predictions(fit(**CASES[case]))
        told[case] = CALLS["passes"]
    torch.save(found, folder / f"found-{rank}.pt")
    (folder / f"told-{rank}.json").write_text(json.dumps(told))


def fit_plainly(device):
    """Train by steps that no engine records or stacks, the same to the bit in every repetition."""
    own = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.05), "deterministic": True}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "trained step by step")
        return fit(device=device, recipe=own).predict_proba(data(1)[0]).cpu()


def fit_recorded():
    """Train on a GPU by steps that are recorded, which a warning would deny."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "trained step by step")
        return fit(device="cuda", recipe={"deterministic": True}).predict_proba(data(1)[0]).cpu()


def share_a_device(device, folder, rank, tell):
    """Train in one of two processes on a device, which meet by gloo: NCCL wants a GPU for each."""
    distributed.init_process_group("gloo", f"file://{folder}/meeting", world_size=2, rank=rank)
    return fit_plainly(device), fit_recorded() if device == "cuda" else None


def take_part(folder, variables, tell):
    """Train in a process that has no `torchrun` above it, only the variables by which it would have been told."""
    os.environ.update(variables)
    main(folder, "resumed")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
