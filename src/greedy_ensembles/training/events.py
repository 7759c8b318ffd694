"""What training tells those who watch it: callbacks, progress bars, and curves for TensorBoard."""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import nn

from greedy_ensembles.checks import as_path

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
    validation_accuracy: float | None  #: None without held-out examples
    validation_score: float | None  #: what the best epoch is selected by, larger being better
    seconds: float  #: of this member; those of members that train together are shared out
    done: int  #: epochs of the whole run that are finished, of its size * epochs
    model: nn.Module | None  #: the model itself, as it is now; None if the event came from another process


Callback = Callable[[Epoch], object]
_PAUSE = 30.0  # seconds after which there is a line in the middle of a member, where there are no bars


class ProgressBars:
    """One bar a run, over all epochs of all its members, on standard error; of many runs, one that counts them."""

    def __init__(self, console: Console | None = None, runs: int | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self._console,
            refresh_per_second=4,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_line = time.monotonic()  # when one was printed, where there are no bars
        self._ended = None if runs is None else self._bars.add_task(f"all {runs} runs", total=runs, state="")

    def show(self, event: Epoch, run: str = "training") -> None:
        """Show an epoch of a run that has ended."""
        total = event.size * event.epochs
        if run not in self._tasks:
            # A run that goes on starts its bar where it is, so that the time left follows from what is done now.
            self._tasks[run] = self._bars.add_task(run, total=total, completed=event.done - 1, state="")
        state = f"member {event.member}/{event.size}  epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}"
        self._bars.update(self._tasks[run], completed=event.done, state=state)
        due = event.epoch == event.epochs or time.monotonic() - self._last_line >= _PAUSE
        if not self._console.is_terminal and due:  # as in a file
            self._last_line = time.monotonic()
            self._console.print(f"{run}: {state}", highlight=False, soft_wrap=True)

    def hear(self, run: str, event: Epoch | None) -> None:
        """Show an epoch of one of many runs; None: it has ended, so count it, and take its bar away."""
        if event is not None:
            self.show(event, run)
            return
        if run in self._tasks:
            self._bars.update(self._tasks.pop(run), visible=False)
        if self._ended is not None:
            self._bars.advance(self._ended)

    def __enter__(self) -> "ProgressBars":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()


class TensorBoard:
    """Write loss, diversity, validation accuracy and learning rate of every epoch for TensorBoard to read.

    As in ``ge.fit(..., callbacks=[ge.TensorBoard("logs")])``; ``tensorboard --logdir logs`` then shows them. Each
    member has a folder of its own in `folder`, `member-01` and so on, so that members are curves of the same charts.
    It needs the extra ``greedy-ensembles[tensorboard]``.
    """

    def __init__(self, folder: str | Path) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ImportError(
                "ge.TensorBoard needs tensorboard: install it with pip install 'greedy-ensembles[tensorboard]'"
            )
        self.folder = as_path("folder", folder)
        self._writers: dict[int, SummaryWriter] = {}

    def __call__(self, event: Epoch) -> None:
        """Write what an epoch was like."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        if event.member not in self._writers:
            self._writers[event.member] = SummaryWriter(self.folder / f"member-{event.member:02d}")
        writer = self._writers[event.member]
        values = {
            "loss": event.loss,
            "diversity": event.diversity,
            "validation accuracy": event.validation_accuracy,
            "learning rate": event.learning_rate,
        }
        for name, value in values.items():
            if value is not None:
                writer.add_scalar(name, value, event.epoch)
        writer.flush()  # to be seen now, and kept should the run be killed
        if event.epoch == event.epochs:
            self._writers.pop(event.member).close()
