"""A progress bar that shows member, epoch, loss and time left."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from greedy_ensembles.training.events import Epoch


class ProgressBar:
    """A bar over all epochs of all members, on standard error; a callback of `ge.fit`."""

    def __init__(self, label: str = "training") -> None:
        self._label = label
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=Console(stderr=True),
            refresh_per_second=4,
        )
        self._task: TaskID | None = None

    def __call__(self, event: Epoch) -> None:
        """Show an epoch that has ended."""
        done = (event.member - 1) * event.epochs + event.epoch
        if self._task is None:
            # The time left is estimated from what this process does, so what was done before is not counted in.
            self._task = self._bar.add_task(self._label, total=event.size * event.epochs, completed=done - 1, state="")
        state = f"member {event.member}/{event.size}  epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}"
        self._bar.update(self._task, completed=done, state=state)

    def __enter__(self) -> "ProgressBar":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
