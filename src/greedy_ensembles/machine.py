"""What every record of a run names: the version of this package, and the machine, as far as the system says."""

import contextlib
import os

__version__ = "0.2.0"  # packaging reads it from here


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the processor's name and the number of its cores."""
    import platform  # slow to import, as pathlib is, and everything imports this file
    from pathlib import Path

    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores"
