"""How much memory is left on a device, and whether the examples fit there, known before they are moved."""

import contextlib
import os
from pathlib import Path

import torch

from greedy_ensembles.training.examples import ArrayExamples, Examples


def check_examples(examples: Examples, device: torch.device) -> None:
    """Refuse examples that a GPU cannot hold; a Dataset stays where it is."""
    if device.type == "cpu" or not isinstance(examples, ArrayExamples):
        return
    needed = examples.x.nbytes + examples.labels.nbytes
    available = available_memory(device)
    if examples.device.type == "cpu" and available is not None and needed > available:
        floats = " or uint8 images, a quarter of the size" if examples.dtype == torch.float32 else ""
        raise ValueError(
            f"{len(examples)} examples need {gib(needed)}, and {gib(available)} are free on {device}; give fewer"
            f"{floats}, or a Dataset, which is read item by item"
        )


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on a device, or None where the system does not say."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by PyTorch, for the next one
        return int(torch.cuda.mem_get_info(device)[0]) + held
    limits = []
    with contextlib.suppress(OSError), Path("/proc/meminfo").open() as lines:
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # of a container; the file says "max" where there is none
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    if not limits and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=None)


def gib(count: float) -> str:
    """Return a number of bytes as one reads it.

    >>> gib(3 * 2**29)
    '1.5 GiB'
    """
    return f"{count / 2**30:.1f} GiB"
