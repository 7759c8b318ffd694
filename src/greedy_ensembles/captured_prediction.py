"""Predictions of all members as one CUDA graph, side by side: a loop over them would wait for launches, not the GPU."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import is_

import torch
from torch import Tensor, nn

from greedy_ensembles import tf32
from greedy_ensembles.cuda_graphs import Result, record, warm_up
from greedy_ensembles.hidden_state import attributes
from greedy_ensembles.inputs import Normalize, device_of
from greedy_ensembles.prediction import Statement

#: Full batches from which on recording, which takes about as long as predicting two of them, pays.
WORTH_CAPTURING = 3
_LANES = 4  # members side by side: each of them nearly fills a GPU


class CapturedPrediction:
    """Predicts batches of one shape; fails to be made where the members cannot be recorded."""

    def __init__(
        self, say: Statement, members: Sequence[nn.Module], normalize: Normalize | None, batch: Tensor
    ) -> None:
        self._say, self._members, self._normalize = say, list(members), normalize
        self._device = device_of(members[0])
        self._where, self._switches = _addresses(members), _switches()
        self._lanes = [torch.cuda.Stream(self._device) for _ in range(min(_LANES, len(self._members)))]
        with torch.inference_mode(False), torch.no_grad():  # tensors of inference mode could not be written to outside
            self._input = batch.to(self._device, copy=True)
            warm_up(self._predict, self._device)
            self._graph, self._output = record(self._predict, self._device)
        self._attributes = attributes(members)

    def fits(self, say: Statement, members: Sequence[nn.Module], normalize: Normalize | None, batch: Tensor) -> bool:
        """Return whether this is a recording of what these members say, where their weights lie now, for such a batch.

        Kernels are chosen when they are recorded: what chose them must not have changed since.
        """
        now = say, normalize, _addresses(members), _switches(), batch.shape, batch.dtype
        then = self._say, self._normalize, self._where, self._switches, self._input.shape, self._input.dtype
        found = attributes(members)
        return now == then and len(found) == len(self._attributes) and all(map(is_, found, self._attributes))

    def over(self, batches: Iterable[Tensor], target: torch.device) -> Iterator[Tensor]:
        """Yield what every member says of each batch, (members, n, classes), on the device `target`."""
        return one_ahead(self._start(batch, target) for batch in batches)

    def _start(self, batch: Tensor, target: torch.device) -> Callable[[], Tensor]:
        """Have a batch predicted, and return what waits for the result."""
        rows = len(batch)  # where it is not full, what is left there of the one before is predicted once more
        # From and to memory that the GPU reads and writes by itself, the host need not wait for a copy's turn.
        given = batch.contiguous().pin_memory() if batch.device.type == "cpu" else batch
        self._input[:rows].copy_(given, non_blocking=True)
        self._graph.replay()
        result = torch.empty_like(self._output[:, :rows], device=target, pin_memory=target.type == "cpu")
        result.copy_(self._output[:, :rows], non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(self._device))

        def finish() -> Tensor:
            done.synchronize()
            return result

        return finish

    def _predict(self) -> Tensor:
        current = torch.cuda.current_stream(self._device)
        for lane in self._lanes:
            lane.wait_stream(current)
        outputs = []
        for position, member in enumerate(self._members):
            with torch.cuda.stream(self._lanes[position % len(self._lanes)]):
                outputs.append(self._say(member, self._input, self._normalize))
        for lane in self._lanes:
            current.wait_stream(lane)
        return torch.stack(outputs)


def one_ahead(started: Iterator[Callable[[], Result]]) -> Iterator[Result]:
    """Yield what each piece of work gives when it is finished, always after the next one was started."""
    waiting: Callable[[], Result] | None = None
    for finish in started:
        if waiting is not None:
            yield waiting()
        waiting = finish
    if waiting is not None:
        yield waiting()


def can_capture(members: Sequence[nn.Module]) -> bool:
    """Return whether all members lie on one GPU."""
    device = device_of(members[0])
    return device.type == "cuda" and all(device_of(member) == device for member in members)


def _switches() -> tuple[object, ...]:
    """Return PyTorch's switches that decide in what precision members run."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return *tf32.settings(), autocast


def _addresses(members: Sequence[nn.Module]) -> tuple[int, ...]:
    """Return where all weights and statistics lie: a recording reads them there, whatever they are by then."""
    return tuple(value.data_ptr() for member in members for value in (*member.parameters(), *member.buffers()))
