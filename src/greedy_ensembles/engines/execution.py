"""How training is carried out: on which device, in which arithmetic, and where every random number comes from.

The validation split and p* come from the run's seed alone; initialisation, shuffling, augmentation and dropout of
member k (from 1) come from ``seed + k - 1``, as in Algorithm 2. What can be is drawn from a generator of its own, made
afresh from whole numbers such as (seed, step), so that nothing depends on what was drawn before; initialisation,
augmentation and dropout use the global generators, whose states are part of a checkpoint.
"""

import functools
import itertools
import math
import os
import random
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn

from greedy_ensembles.checks import check_choice
from greedy_ensembles.inputs import Inputs, logits_of, move

Precision = Literal["float32", "tf32", "bf16"]
#: Multiplications of a step's forward pass below which one thread trains. Where other processes keep the cores busy,
#: threads wait for each other in every operation. Two cores of an AMD EPYC at a load of 9, a step with one thread and
#: with two: MLP of two moons (4e6 multiplications) 4.4 and 52 ms, MLP 64-512-512 (8e7) 27 and 220 ms, CNN of two layers
#: on 28x28 pixels (6e7) 21 and 770 ms. On cores of its own a network of this size takes some milliseconds a step with
#: one thread, so that others save little; larger ones need them.
FEW_MULTIPLICATIONS = 1e8
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_LONG, _MOST = 100, 10_000  # items of a list, and objects, among which generators of a Dataset are looked for
_PLAIN = (torch.Tensor, np.ndarray, str, bytes, int, float, type, types.ModuleType)
# The first key of a generator: what it is for.
WEIGHTING_SET, WEIGHTING_BATCH, SHUFFLE, READ = 1, 2, 3, 4


@dataclass(frozen=True)
class Execution:
    """Device and arithmetic of a training."""

    device: torch.device
    precision: Precision = "float32"
    deterministic: bool = False  #: whether to use only kernels that give the same result every time
    threads: int | None = None  #: of the CPU; None: as many as torch has

    def run(self, model: nn.Module, inputs: Inputs, call: Callable[..., Any] | None = None) -> Any:
        """Return a model's logits, or what `call` makes of the inputs: in this layout and this arithmetic."""
        call = call or model
        inputs = move(inputs, memory_format=self.layout(model))
        if self.precision != "bf16":
            return logits_of(call, inputs)
        # Without the cache of cast weights, which a captured step could not share with another.
        with torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False):
            return logits_of(call, inputs)

    def layout(self, model: nn.Module) -> torch.memory_format:
        """Return how a model's images lie in memory: channels last where tensor cores want them so."""
        if self.device.type != "cuda" or self.precision == "float32":
            return torch.preserve_format
        images = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
        return torch.channels_last if images else torch.preserve_format

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Set what is global in PyTorch inside the block: TF32, deterministic kernels, the search for fast ones.

        Threads and whether gradients are on, which may change there, are afterwards as before.
        """
        gradients = torch.is_grad_enabled()
        deterministic = torch.are_deterministic_algorithms_enabled()
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        benchmark = torch.backends.cudnn.benchmark
        threads, on_gpu = torch.get_num_threads(), self.device.type == "cuda"
        try:
            if self.deterministic:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS is first used
                torch.use_deterministic_algorithms(True)
            if on_gpu:
                # Shapes stay the same for thousands of steps, so a search for the fastest convolutions pays.
                torch.backends.cudnn.benchmark = not self.deterministic
            with tf32_inside(self.precision == "tf32") if on_gpu else nullcontext():
                yield
        finally:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
            torch.backends.cudnn.benchmark = benchmark
            self.use(threads)
            torch.set_grad_enabled(gradients)  # an interrupt may leave it off

    def use(self, threads: int | None) -> None:
        """Compute with so many threads from here on; None: as they are."""
        if threads not in (None, torch.get_num_threads()):
            torch.set_num_threads(threads)


def choose_threads(parameters: Mapping[str, Sequence[int]], shape: Sequence[int], rows: int) -> int:
    """Return how many threads train a network on the CPU: one for a small step, otherwise as many as torch has.

    Args:
        parameters: names and shapes of the network's.
        shape: of an input.
        rows: examples and samples of p* in a step.

    >>> choose_threads({"weight": [128, 128], "bias": [128]}, [2], rows=256)
    1
    """
    positions = math.prod(shape[1:])  # where a kernel is applied, unless strides skip some
    weights = (math.prod(own) * (positions if len(own) > 2 else 1) for own in parameters.values())
    return 1 if rows * sum(weights) < FEW_MULTIPLICATIONS else torch.get_num_threads()


def as_device(device: torch.device | str | None) -> torch.device:
    """Return the device to train on; None: CUDA where there is one, a process of `torchrun` its own, or the CPU."""
    if device is None and torch.cuda.is_available():
        local = os.environ.get("LOCAL_RANK")  # which torchrun sets
        return torch.device("cuda" if local is None else f"cuda:{int(local) % torch.cuda.device_count()}")
    if device is None:
        return torch.device("cpu")
    name = str(device)
    check_choice("device", name.partition(":")[0].lower(), ["cpu", "cuda"], {"gpu": "cuda"})
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return torch.device(name)


def generator(*keys: int) -> torch.Generator:
    """Return a CPU generator that depends on the keys and on nothing else."""
    state = np.random.SeedSequence(keys).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]))


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
        state: dict[str, Any] = {
            "torch": self.cpu,
            "numpy": [str(kind), _as_tensor(keys), int(position), int(has_gauss), float(cached)],
            "python": [version, _as_tensor(internal), gauss],
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


def _as_tensor(words: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(words, np.int64))  # 32-bit words without a sign, which fit


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


def seed_generators(seed: int, host_alone: bool = False) -> None:
    """Seed the global generators, which models and augmentations use; those of GPUs, too, if not the host's alone."""
    (torch.default_generator if host_alone else torch).manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global generator is what users' transforms draw from)
    random.seed(seed)


# PyTorch has two generations of switches for TF32. Where one of the newer kind (``fp32_precision``) was set, the older
# ones (``allow_tf32``) can refuse to be read; and what the older ones forbid, a newer one can still allow. Whoever uses
# either must be able to train and predict here, get the precision asked for, and read all switches later as before.
_NEWER = hasattr(torch.backends.cudnn, "conv")  # whether this PyTorch has both kinds


def tf32_in_convolutions() -> bool:
    """Return whether convolutions in single precision may round factors to TF32, as PyTorch lets them by default."""
    allowed: bool = torch.backends.cudnn.conv.fp32_precision == "tf32" if _NEWER else torch.backends.cudnn.allow_tf32  # type: ignore[attr-defined]
    return allowed


def tf32_settings() -> tuple[object, ...]:
    """Return all switches, for telling whether one has changed."""
    return _older_of_convolutions(), _older_of_products(), *(part.fp32_precision for part in _tf32_parts())


@contextmanager
def tf32_inside(allowed: bool) -> Iterator[None]:
    """Allow TF32, or forbid it, inside the block."""
    convolutions, products, *newer = tf32_settings()
    try:
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = allowed
        if products is not None:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        for part in _tf32_parts():
            if (part.fp32_precision == "tf32") != allowed:
                part.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        if convolutions is not None:
            torch.backends.cudnn.allow_tf32 = convolutions  # type: ignore[assignment]
        if products is not None:
            torch.set_float32_matmul_precision(products)  # type: ignore[arg-type]
        for part, before in zip(_tf32_parts(), newer, strict=True):
            if part.fp32_precision != before:
                part.fp32_precision = before


def _tf32_parts() -> list[Any]:
    """Return what has a switch of the newer kind: its setting, or what it takes from a more general one."""
    if not _NEWER:
        return []
    return [torch.backends.cudnn.conv, torch.backends.cudnn.rnn, torch.backends.cuda.matmul]  # type: ignore[attr-defined]


def _older_of_convolutions() -> bool | None:
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:  # a newer switch was set to something else
        return None


def _older_of_products() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None
