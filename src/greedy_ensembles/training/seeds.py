"""Where every random number comes from.

The validation split and p* come from the run's seed alone; initialisation, shuffling, augmentation and dropout of
member k (from 1) come from ``seed + k - 1``, as in Algorithm 2. What can be is drawn from a generator of its own, made
afresh from whole numbers such as (seed, step), so that nothing depends on what was drawn before; initialisation,
augmentation and dropout use the global generators, whose states are part of a checkpoint.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

# The first key of a generator: what it is for.
WEIGHTING_SET = 1
WEIGHTING_BATCH = 2
SHUFFLE = 3


def generator(*keys: int) -> torch.Generator:
    """Return a CPU generator that depends on the keys and on nothing else."""
    state = np.random.SeedSequence(keys).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


def seed_global_generators(seed: int) -> None:
    """Set the global generators of torch (all devices), numpy and Python, which models and augmentations use."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global generator is what users' transforms draw from)
    random.seed(seed)


def global_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the global generators as tensors, numbers and lists."""
    kind, keys, position, has_gauss, cached = np.random.get_state()  # noqa: NPY002
    version, internal, gauss = random.getstate()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [str(kind), _as_tensor(keys), int(position), int(has_gauss), float(cached)],
        "python": [version, _as_tensor(internal), gauss],
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def restore_global_state(state: dict[str, Any], device: torch.device) -> None:
    """Put the global generators back to a state that `global_state` returned."""
    kind, keys, position, has_gauss, cached = state["numpy"]
    torch.set_rng_state(state["torch"])
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))  # noqa: NPY002
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Leave the global generators as they were found, whatever happens inside the block."""
    state = global_state(device)
    try:
        yield
    finally:
        restore_global_state(state, device)


def _as_tensor(words: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(words, np.int64))  # 32-bit words without a sign, which fit
