"""What the C library does with memory that training frees, and how to stop it."""

import torch


def keep_freed_memory() -> None:
    """Let memory that a step on the CPU frees stay with the process for the next step.

    glibc returns blocks of the size of activations to the system as they are freed; getting them anew, page by page,
    took up to a fifth of a step. It stops doing so for blocks up to the size of the largest freed so far, of at most
    32 MiB.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)
