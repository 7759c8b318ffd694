"""How training is carried out: on which device, in which arithmetic, by how many threads, and by which processes.

Processes are those that `torchrun` started. Members meet in their outputs on a batch of p* and nowhere else, numbers
(members, n, classes) a step. So every process trains its own members, and a step exchanges these numbers; everything
else travels at the end of an epoch.
"""

import atexit
import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, distributed, nn

from greedy_ensembles.checks import check_choice, first_line
from greedy_ensembles.inputs import Inputs, logits_of, move

Value = TypeVar("Value")
Precision = Literal["float32", "tf32", "bf16"]
#: Multiplications of a step's forward pass below which one thread trains. Where other processes keep the cores busy,
#: threads wait for each other in every operation. Two cores of an AMD EPYC at a load of 9, a step with one thread and
#: with two: MLP of two moons (4e6 multiplications) 4.4 and 52 ms, MLP 64-512-512 (8e7) 27 and 220 ms, CNN of two layers
#: on 28x28 pixels (6e7) 21 and 770 ms. On cores of its own a network of this size takes some milliseconds a step with
#: one thread, so that others save little; larger ones need them.
FEW_MULTIPLICATIONS = 1e8


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
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            torch.set_grad_enabled(gradients)  # an interrupt may leave it off


def choose_threads(parameters: Mapping[str, Sequence[int]], shape: Sequence[int], rows: int) -> int:
    """Return how many threads train a network on the CPU: one for a small step, otherwise as many as torch has.

    `parameters` are names and shapes, `shape` is that of an input, `rows` counts samples of p* as well.

    >>> choose_threads({"weight": [128, 128], "bias": [128]}, [2], rows=256)
    1
    """
    positions = math.prod(shape[1:])  # where a kernel is applied, unless strides skip some
    weights = (math.prod(size) * (positions if len(size) > 2 else 1) for size in parameters.values())
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
        raise ValueError(f"device {name!r} cannot be used here: {first_line(error)}") from None
    return torch.device(name)


# PyTorch has two generations of switches for TF32. Where one of the newer kind (``fp32_precision``) was set, the older
# ones (``allow_tf32``) can refuse to be read; and what the older ones forbid, a newer one can still allow. Whoever uses
# either must be able to train and predict here, get the precision asked for, and read all switches later as before.
_BACKENDS: Any = torch.backends
#: What has a switch of the newer kind: convolutions, recurrent layers, products.
_NEWER = [_BACKENDS.cudnn.conv, _BACKENDS.cudnn.rnn, _BACKENDS.cuda.matmul] if hasattr(_BACKENDS.cudnn, "conv") else []


def tf32_in_convolutions() -> bool:
    """Return whether convolutions in single precision may round factors to TF32, as PyTorch lets them by default."""
    allowed: bool = _NEWER[0].fp32_precision == "tf32" if _NEWER else _BACKENDS.cudnn.allow_tf32
    return allowed


def tf32_settings() -> tuple[Any, ...]:
    """Return all switches, for telling whether one has changed; of the older two, None for one that cannot be read."""
    older: list[Any] = []
    for read in (lambda: _BACKENDS.cudnn.allow_tf32, torch.get_float32_matmul_precision):
        try:
            older.append(read())
        except RuntimeError:  # a newer switch was set to something else
            older.append(None)
    return *older, *(part.fp32_precision for part in _NEWER)


@contextmanager
def tf32_inside(allowed: bool) -> Iterator[None]:
    """Allow TF32, or forbid it, inside the block."""
    convolutions, products, *newer = tf32_settings()
    try:
        if convolutions is not None:
            _BACKENDS.cudnn.allow_tf32 = allowed
        if products is not None:
            _BACKENDS.cuda.matmul.allow_tf32 = allowed
        for part in _NEWER:
            if (part.fp32_precision == "tf32") != allowed:
                part.fp32_precision = "tf32" if allowed else "ieee"
        yield
    finally:
        if convolutions is not None:
            _BACKENDS.cudnn.allow_tf32 = convolutions
        if products is not None:
            torch.set_float32_matmul_precision(products)
        for part, before in zip(_NEWER, newer, strict=True):
            if part.fp32_precision != before:
                part.fp32_precision = before


@dataclass(frozen=True)
class Ranks:
    """The processes of a training, of which this is number `rank`, counted from 0."""

    rank: int = 0
    world: int = 1

    def shares(self, count: int) -> list[slice]:
        """Return which of `count` members each process trains: neighbours, as many as the others or one more.

        >>> Ranks(0, 3).shares(5)
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
        """
        least, more = divmod(count, self.world)
        ends = [rank * least + min(rank, more) for rank in range(self.world + 1)]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def gather(self, value: Value) -> list[Value]:
        """Return what every process has, in the order of ranks."""
        if self.world == 1:
            return [value]
        found: list[Any] = [None] * self.world
        with _connected():
            distributed.all_gather_object(found, value)
        return found

    def share(self, value: Value | None) -> Value:
        """Return what the first process has."""
        if self.world == 1:
            return value  # type: ignore[return-value]
        values = [value]
        with _connected():
            distributed.broadcast_object_list(values, src=0)
        return values[0]  # type: ignore[return-value]


ALONE = Ranks()


@dataclass(frozen=True)
class Exchange:
    """Every step's exchange of outputs on p*, between the processes that train `count` members."""

    ranks: Ranks
    count: int
    simulated: bool = False  #: whether to make up the others' outputs, so that a step can be tried

    @property
    def own(self) -> slice:
        """Which of the members this process trains."""
        return self.ranks.shares(self.count)[self.ranks.rank]

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return all members' outputs (members, n, classes) from those of one's own, without gradients."""
        if self.simulated:
            return torch.stack([outputs[k % len(outputs)].roll(k, dims=-1) for k in range(self.count)])
        shares = self.ranks.shares(self.count)
        most = max(share.stop - share.start for share in shares)
        padded = outputs.new_zeros(most, *outputs.shape[1:])  # processes may differ by one member
        padded[: len(outputs)] = outputs
        found = [torch.empty_like(padded) for _ in shares]
        with _connected():
            distributed.all_gather(found, padded)
        return torch.cat([one[: share.stop - share.start] for one, share in zip(found, shares, strict=True)])


@contextmanager
def _connected() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise ConnectionError(
            "another process of this training ended, or does not answer; its own message says why. With run_dir, the "
            f"same command goes on after the last epoch that was saved ({first_line(error)})"
        ) from error


def backend_for(device: torch.device) -> str:
    """Return what carries tensors of a device between processes; states and members go from CPU to CPU."""
    return "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"


def join(device: torch.device) -> Ranks:
    """Join the processes that `torchrun` started, if it did; once in a process, since a second start would not meet."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if not distributed.is_available() or (world == 1 and not distributed.is_initialized()):
        return ALONE
    if not distributed.is_initialized():
        distributed.init_process_group(backend_for(device))
        atexit.register(distributed.destroy_process_group)
    return Ranks(distributed.get_rank(), distributed.get_world_size())
