"""Which arithmetic a training uses, and leaving the process as it was found afterwards."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from greedy_ensembles.engines import tf32
from greedy_ensembles.training.recipe import Recipe


def allow_deterministic(recipe: Recipe) -> None:
    """Let cuBLAS be deterministic, where the recipe asks for it; it reads how when it is first used in a process."""
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def numerics(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set what is global in PyTorch, TF32 and deterministic kernels, as the recipe asks, inside the block."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    on_gpu = device.type == "cuda"
    try:
        if recipe.deterministic:
            torch.use_deterministic_algorithms(True)
        if on_gpu:
            # Shapes stay the same for thousands of steps, so a search for the fastest convolutions pays.
            torch.backends.cudnn.benchmark = not recipe.deterministic
        with tf32.set_inside(recipe.precision == "tf32") if on_gpu else nullcontext():
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark


def autocast(recipe: Recipe, device: torch.device) -> AbstractContextManager[object]:
    """Return the block in which models run."""
    if recipe.precision != "bf16":
        return nullcontext()
    # Without the cache of cast weights, which a captured step could not share with another.
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


def placed(model: nn.Module, device: torch.device, layout: torch.memory_format) -> nn.Module:
    """Move a model to a device, its weights in a layout."""
    return model.to(device, memory_format=layout)  # type: ignore[call-overload, no-any-return]


def memory_format(recipe: Recipe, device: torch.device, model: nn.Module) -> torch.memory_format:
    """Return how images lie in memory: channels last where tensor cores want them so."""
    images = any(isinstance(layer, nn.Conv2d) for layer in model.modules())
    tensor_cores = device.type == "cuda" and recipe.precision != "float32"
    return torch.channels_last if images and tensor_cores else torch.preserve_format
