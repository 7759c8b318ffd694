"""The p* set: drawn once per seed, of fixed size; every step takes some of its samples by index."""

import os

import torch
from torch import Tensor

from greedy_ensembles.method import Bank
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.seeds import WEIGHTING_BATCH, WEIGHTING_SET, generator


class WeightingSet:
    """Samples of p*, as the data is stored, and which of them a step uses."""

    def __init__(self, problem: Problem) -> None:
        assert problem.weighting is not None
        self._seed = problem.seed
        self._batch_size = problem.recipe.weighting_batch_size or problem.recipe.batch_size
        count = weighting_samples(problem)
        check_memory(problem, count)
        samples = problem.weighting.sample(count, generator(WEIGHTING_SET, problem.seed))
        self.samples = as_stored(samples, problem.examples.dtype).to(problem.device)

    def indices(self, step: int) -> Tensor:
        """Return the samples of a step, drawn with replacement: the same for every member and schedule."""
        chosen = generator(WEIGHTING_BATCH, self._seed, step)
        return torch.randint(len(self.samples), (self._batch_size,), generator=chosen).to(self.samples.device)


def as_stored(samples: Tensor, dtype: torch.dtype) -> Tensor:
    """Return samples in the form in which `inputs.to_model` takes data of this type.

    For uint8 data that is bytes where the samples are whole pixel values, and otherwise numbers on the scale [0, 1].
    """
    if dtype != torch.uint8 or samples.dtype == torch.uint8:
        return samples
    if bool(((samples >= 0) & (samples <= 255) & (samples == samples.round())).all()):
        return samples.to(torch.uint8)
    return samples / 255


def weighting_samples(problem: Problem) -> int:
    """Return the size of the p* set."""
    return problem.recipe.weighting_samples or len(problem.train)


def make_bank(problem: Problem) -> Bank:
    """Return an empty bank with room for all members."""
    return Bank(problem.size, weighting_samples(problem), problem.classes, problem.device)


def check_memory(problem: Problem, count: int) -> None:
    """Refuse a p* set and bank that memory cannot hold, before they are made."""
    numbers = 1
    for extent in problem.examples.shape:
        numbers *= extent
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
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123 (no file of ours)
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
