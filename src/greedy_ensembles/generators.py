"""Where every random number comes from.

The validation split and p* come from the run's seed alone; initialisation, shuffling, augmentation and dropout of
member k (from 1) come from ``seed + k - 1``, as in Algorithm 2. What can be is drawn from a generator of its own, made
afresh from whole numbers such as (seed, step), so that nothing depends on what was drawn before; initialisation,
augmentation and dropout use the global generators, whose states are part of a checkpoint.
"""

import functools
import itertools
import random
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import torch

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LONG, _MOST = 100, 10_000  # items of a list, and objects, among which generators of a Dataset are looked for
_PLAIN = (torch.Tensor, np.ndarray, str, bytes, int, float, type, types.ModuleType)
# The first key of a generator: what it is for.
WEIGHTING_SET, WEIGHTING_BATCH, SHUFFLE, READ = 1, 2, 3, 4


def generator(*keys: int) -> torch.Generator:
    """Return a CPU generator that depends on the keys and on nothing else."""
    state = np.random.SeedSequence(keys).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def seed_generators(seed: int, host_alone: bool = False) -> None:
    """Seed the global generators, which models and augmentations use; those of GPUs, too, if not the host's alone."""
    (torch.default_generator if host_alone else torch).manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global generator is what users' transforms draw from)
    random.seed(seed)


class Generators(NamedTuple):
    """The states of the global generators: those of torch, on a GPU where there is one, numpy and Python."""

    cpu: torch.Tensor
    cuda: torch.Tensor | None
    numpy: Any
    python: Any

    @classmethod
    def current(cls, device: torch.device) -> "Generators":
        """Return the states as they are now."""
        cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
        return cls(torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())  # noqa: NPY002

    def restore(self, device: torch.device) -> None:
        """Put the global generators back to these states."""
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)
        np.random.set_state(self.numpy)  # noqa: NPY002
        random.setstate(self.python)

    def state(self) -> dict[str, Any]:
        """Return the states as tensors, numbers and lists, to be saved."""
        kind, keys, position, has_gauss, cached = self.numpy
        version, internal, gauss = self.python

        def signed(words: Any) -> torch.Tensor:  # 32-bit words without a sign, which fit
            return torch.from_numpy(np.array(words, np.int64))

        state: dict[str, Any] = {
            "torch": self.cpu,
            "numpy": [str(kind), signed(keys), int(position), int(has_gauss), float(cached)],
            "python": [version, signed(internal), gauss],
        }
        return state if self.cuda is None else {**state, "cuda": self.cuda}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Generators":
        """Return what `state` was made of."""
        kind, keys, position, has_gauss, cached = state["numpy"]
        version, internal, gauss = state["python"]
        if len(keys) != 624 or type(position) is not int or not 0 <= position <= 624:  # numpy reads wherever it points
            raise ValueError(f"the state of numpy's generator is at {position!r} of {len(keys)} words")
        numpy = (kind, keys.numpy().astype(np.uint32), position, has_gauss, cached)
        return cls(state["torch"], state.get("cuda"), numpy, (version, tuple(internal.tolist()), gauss))


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Leave the global generators as they were found, whatever happens inside the block."""
    found = Generators.current(device)
    try:
        yield
    finally:
        found.restore(device)


def own_generators(holder: object) -> list[Any]:
    """Return the generators of random numbers that a Dataset keeps, itself or in what it keeps, transforms included."""
    waiting: list[Any] = [holder]
    known: dict[int, Any] = {}
    while waiting and len(known) < _MOST:
        value = waiting.pop()
        if id(value) in known or isinstance(value, _PLAIN):
            continue
        known[id(value)] = value
        if isinstance(value, _GENERATORS):
            continue
        if isinstance(value, list | tuple | dict):
            items = value.values() if isinstance(value, dict) else value
            waiting += itertools.islice(items, _LONG)  # longer ones are of paths or items, and all alike
        elif isinstance(value, types.FunctionType):
            for cell in value.__closure__ or ():
                with suppress(ValueError):  # of a cell that is empty
                    waiting.append(cell.cell_contents)
        elif isinstance(value, types.MethodType | types.BuiltinMethodType):
            waiting.append(value.__self__)
        elif isinstance(value, functools.partial):
            waiting += [value.func, value.args, value.keywords]
        else:
            waiting += getattr(value, "__dict__", {}).values()
    return [value for value in known.values() if isinstance(value, _GENERATORS)]


def seed_own_generators(holder: object, seed: int) -> None:
    """Seed the generators that a Dataset keeps."""
    for one in own_generators(holder):
        if isinstance(one, torch.Generator):
            one.manual_seed(seed)
        elif isinstance(one, np.random.Generator):
            one.bit_generator.state = type(one.bit_generator)(seed).state
        else:
            one.seed(seed)
