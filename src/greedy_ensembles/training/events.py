"""What training tells those who watch it: callbacks and the progress bar."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Epoch:
    """One member finished one epoch; numbers count from 1."""

    member: int
    size: int
    epoch: int
    epochs: int
    learning_rate: float  #: at the end of the epoch
    loss: float  #: mean over the training examples, without the diversity term
    diversity: float | None  #: mean of the diversity term over the steps; None where there is none
    validation_accuracy: float | None  #: None without a validation split
    seconds: float  #: of this member; those of members that train together are shared out
    done: int  #: epochs of the whole run that are finished, of its size * epochs
    model: nn.Module | None  #: the model itself, as it is now; None if the event came from another process


Callback = Callable[[Epoch], object]
