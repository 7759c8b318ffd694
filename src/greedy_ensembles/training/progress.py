"""Progress bars that show member, epoch, loss and time left; in a log file, a line for each member instead."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from greedy_ensembles.training.events import Epoch


class ProgressBars:
    """One bar a run, over all epochs of all its members, on standard error."""

    def __init__(self, console: Console | None = None) -> None:
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

    def show(self, event: Epoch, run: str = "training") -> None:
        """Show an epoch of a run that has ended."""
        total = event.size * event.epochs
        if run not in self._tasks:
            # A run that goes on starts its bar where it is, so that the time left follows from what is done now.
            self._tasks[run] = self._bars.add_task(run, total=total, completed=event.done - 1, state="")
        state = f"member {event.member}/{event.size}  epoch {event.epoch}/{event.epochs}  loss {event.loss:.4f}"
        self._bars.update(self._tasks[run], completed=event.done, state=state)
        if not self._console.is_terminal and event.epoch == event.epochs:
            self._console.print(f"{run}: {state}", highlight=False, soft_wrap=True)

    def __enter__(self) -> "ProgressBars":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()
