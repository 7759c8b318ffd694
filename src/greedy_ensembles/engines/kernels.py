"""Where kernels of our own can run, and what they ask of who runs them.

They are written in Triton, which is installed with PyTorch on Linux and compiles them when they are first needed.
"""

import functools
import importlib.util
import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def can_launch(x: Tensor) -> bool:
    """Return whether kernels can take a tensor: it lies on a GPU, has values of its own, and there is a compiler."""
    return x.is_cuda and not _is_traced() and has_kernels()


@functools.cache
def has_kernels() -> bool:
    """Return whether there is a compiler for the kernels, and whether it works for the GPU that is here."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        from triton.runtime import driver

        driver.active.get_current_target()
    except Exception as error:  # of any kind: most often, there is no C compiler
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(f"Triton does not work here ({reason}); PyTorch's own kernels are slower", stacklevel=2)
        return False
    return True


def _is_traced() -> bool:
    """Return whether tensors stand for others: for compilers, inside torch.vmap and torch.func, or torch.jit.trace."""
    if torch.compiler.is_compiling():
        return True
    return torch._C._are_functorch_transforms_active() or torch._C._is_tracing()


def on_device_of(x: Tensor) -> AbstractContextManager[object]:
    """Return the block in which kernels are launched where x lies: left alone, Triton takes the current device."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def refuse_second_derivatives(x: Tensor) -> None:
    """Raise where a gradient by kernels is to be differentiated again: what they compute has no history."""
    if x.is_cuda and torch.is_grad_enabled():
        raise RuntimeError(
            "gradients of this layer cannot be differentiated again (create_graph=True) where it runs kernels of our "
            "own: on a GPU, on images that lie channels last. Give them in PyTorch's usual layout, or use the CPU"
        )
