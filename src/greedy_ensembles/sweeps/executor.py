"""The contract of whatever runs independent jobs, and the choice among those there are.

A job keeps what it has done in files that are whole or absent. So an executor may kill it at any time, and the same
job started again, here or on another machine, goes on from there.
"""

import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from greedy_ensembles.checks import check_choice, check_count, check_number

#: Does one part of the work, calling what it is given with each thing to tell. What it returns and tells is pickled.
Job = Callable[[Callable[[Any], None]], object]
Hear = Callable[[str, Any], None]  #: called with a job's name and what it tells
Fail = Callable[[str, Exception], None]  #: called with a job's name and the error that ended it


def at_once(name: str, error: Exception) -> None:
    """End all jobs with the first error."""
    raise error


class Executor(Protocol):
    """Runs jobs somewhere."""

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs and return by name what those returned that did not fail.

        `hear` and `fail` are called here, in the process that asked. What they raise ends all jobs.
        """
        ...


class Here:
    """One job after another, in this process."""

    def run(self, jobs: Mapping[str, Job], hear: Hear, fail: Fail = at_once) -> dict[str, Any]:
        """Run all jobs, as an `Executor` does."""
        values: dict[str, Any] = {}
        for name, job in jobs.items():
            settle(name, attempt(job, lambda event, name=name: hear(name, event)), values, fail)  # type: ignore[misc]
        return values


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    value: Any = None
    error: Exception | None = None
    warned: tuple[tuple[type[Warning], str], ...] = ()


def attempt(job: Job, tell: Callable[[Any], None]) -> Outcome:
    """Do a job where it runs; its warnings and the error that ended it, if one did, are part of what comes of it."""
    value = error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            value = job(tell)
        except Exception as raised:
            error = raised
    return Outcome(value, error, tuple((found.category, str(found.message)) for found in caught))


def portable(outcome: Outcome) -> bytes:
    """Return an outcome as bytes for another process, where tracebacks do not go: an error's is then its note."""
    if outcome.error is None:
        return cloudpickle.dumps(outcome)  # type: ignore[no-any-return]
    outcome.error.add_note("".join(traceback.format_exception(outcome.error)))
    try:
        sent: bytes = cloudpickle.dumps(outcome)
        cloudpickle.loads(sent)  # not every error survives it
    except Exception:
        told = RuntimeError(f"{type(outcome.error).__name__}: {outcome.error}")
        sent = cloudpickle.dumps(Outcome(None, told, outcome.warned))
    return sent


def settle(name: str, outcome: Outcome, values: dict[str, Any], fail: Fail) -> None:
    """Note what came of a job, in the process that asked for it."""
    for category, text in outcome.warned:
        warnings.warn(f"{name}: {text}", category, stacklevel=3)
    if outcome.error is not None:
        fail(name, outcome.error)
    else:
        values[name] = outcome.value


#: What the address of a cluster looks like.
ADDRESS = r"(ray://)?[^/:\s]+:\d+"


@contextmanager
def open_executor(
    on: str | None, *, storage: Path | None = None, cpus: int = 1, gpus: float | None = None, device: object = None
) -> Iterator[Executor]:
    """Give an executor inside the block, after all that can be checked was checked.

    Args:
        on: None (one after another, in this process), "processes" (of this machine), "ray" (the cluster that Ray finds,
            or else one of its own on this machine), or the address of a cluster, "ray://HOST:PORT" or "HOST:PORT".
        storage: the folder that jobs write to, which all machines must see.
        cpus: how many cores a job needs, and threads it has.
        gpus: how many GPUs a job needs, or what share of one; None: one where there are any.
        device: what was asked for; jobs on a CPU need no GPU.
    """
    check_count("cpus", cpus, least=1)
    if gpus is None and str(device) == "cpu":
        gpus = 0
    if gpus is not None:
        check_number("gpus", gpus, least=0)
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"gpus must be a share of one GPU or a whole number of them, got {gpus}")
    if on is None:
        yield Here()
        return
    if not isinstance(on, str):
        raise TypeError(f"on must be text, such as 'processes', 'ray' or 'ray://HOST:PORT'; got {on!r}")
    if on == "processes":
        from greedy_ensembles.sweeps.processes import Processes

        processes = Processes.needing(cpus, gpus)
        if storage is not None:
            storage.mkdir(parents=True, exist_ok=True)  # or every job would fail there
        yield processes
        return
    address = None if on == "ray" else on
    if address is not None and not re.fullmatch(ADDRESS, address):
        check_choice("on", on, ("processes", "ray", "ray://HOST:PORT", "HOST:PORT"))
    if storage is None:
        raise ValueError(f"on={on!r} needs a folder that all machines see, for runs to survive in")
    from greedy_ensembles.sweeps.cluster import connected

    with connected(address, storage, cpus, gpus) as cluster:
        yield cluster
