"""The p* set: drawn once per seed, of fixed size; every step takes some of its samples by index."""

import contextlib
import math
import os
from pathlib import Path

import torch
from torch import Tensor

from greedy_ensembles.inputs import as_stored
from greedy_ensembles.method import Bank
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.seeds import WEIGHTING_BATCH, WEIGHTING_SET, generator


class WeightingSet:
    """Samples of p*, as the data is stored, the bank of members' outputs on them, and which of them a step uses."""

    def __init__(self, problem: Problem, weighting: Weighting) -> None:
        self._seed = problem.seed
        self._batch_size = problem.recipe.weighting_batch_size or problem.recipe.batch_size
        count = weighting_samples(problem)
        samples = weighting.sample(count, generator(WEIGHTING_SET, problem.seed))
        if len(samples) != count or not all(bool(torch.isfinite(part).all()) for part in samples.split(1024)):
            raise ValueError(f"weighting must draw {count} finite samples when asked to; NaN, infinity or fewer came")
        self.samples = as_stored(samples, problem.examples.dtype).to(problem.device)
        self.bank = Bank(problem.size, count, problem.classes, problem.device)

    def indices(self, step: int) -> Tensor:
        """Return the samples of a step, drawn with replacement: the same for every member and schedule."""
        chosen = generator(WEIGHTING_BATCH, self._seed, step)
        return torch.randint(len(self.samples), (self._batch_size,), generator=chosen).to(self.samples.device)


def weighting_samples(problem: Problem) -> int:
    """Return the size of the p* set."""
    return problem.recipe.weighting_samples or len(problem.train)


def check_memory(problem: Problem) -> None:
    """Refuse a p* set and bank that memory cannot hold, before anything is made or written."""
    if problem.weighting is None:
        return
    count, numbers = weighting_samples(problem), math.prod(problem.examples.shape)
    bank = Bank.nbytes(problem.size, count, problem.classes)
    needed, available = 4 * numbers * count + bank, available_memory(problem.device)
    if available is not None and needed > available:
        raise ValueError(
            f"{count} samples of p* and the bank of {problem.size} members' outputs on them need {_gib(needed)} "
            f"({_gib(bank)} for the bank), and {_gib(available)} are free on {problem.device}; "
            "use a smaller p* set: Recipe(weighting_samples=...)"
        )


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on a device, or None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    limits = []
    with contextlib.suppress(OSError), Path("/proc/meminfo").open() as lines:
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # of a container; the file says "max" where there is none
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    if not limits and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
