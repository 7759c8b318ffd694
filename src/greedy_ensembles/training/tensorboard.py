"""A callback that shows training in TensorBoard: one curve a member in each of four charts."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from greedy_ensembles.training.events import Epoch

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


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
        self.folder = Path(folder).expanduser()
        self._writers: dict[int, SummaryWriter] = {}

    def __call__(self, event: Epoch) -> None:
        """Write what an epoch was like."""
        writer = self._writer(event.member)
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

    def _writer(self, member: int) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter  # slow to import, and an extra

        if member not in self._writers:
            self._writers[member] = SummaryWriter(self.folder / f"member-{member:02d}")
        return self._writers[member]
