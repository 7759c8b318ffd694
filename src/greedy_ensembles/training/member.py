"""One member under way: its model, optimizer, history and best epoch so far, and all of that as one saved state."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from greedy_ensembles.storage import FolderError
from greedy_ensembles.training.numerics import placed
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.recipe import make_optimizer
from greedy_ensembles.training.seeds import global_state, restore_global_state, seed_global_generators
from greedy_ensembles.training.store import Finished, History


class Member:
    """Member `number`, counted from 1, at its initialisation; `restore` brings it to where it was."""

    def __init__(self, problem: Problem, number: int) -> None:
        self.number = number
        self.seed = problem.seed + number - 1
        self._device = problem.device
        seed_global_generators(self.seed)
        self.model: nn.Module = placed(problem.make_model(), problem.device, problem.memory_format)
        self.optimizer = make_optimizer(problem.recipe, self.model)
        self.generators = global_state(self._device)  #: as this member left them
        self.epoch = 0  #: epochs finished
        self.history: History = []
        self._best: dict[str, Any] | None = None
        # Masks of attention are minus infinity by design; what started out finite has to stay so.
        self._numbers = [name for name, value in _floats(self.model) if torch.isfinite(value).all()]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the global generators be this member's inside the block."""
        restore_global_state(self.generators, self._device)
        try:
            yield
        finally:
            self.generators = global_state(self._device)  #: as this member left them

    def end_epoch(self, record: dict[str, Any], correct: int | None) -> None:
        """Note a finished epoch; keep its weights if none before had as many correct, or always without validation."""
        self.epoch += 1
        self.history.append(record)
        if correct is None:
            self._best = {"epoch": self.epoch, "correct": None, "weights": None}
        elif self._best is None or correct > self._best["correct"]:
            self._best = {"epoch": self.epoch, "correct": correct, "weights": _copy(self.model.state_dict())}

    def select_best(self) -> None:
        """Give the model the weights of its best epoch, for good."""
        self.optimizer.zero_grad()  # the model outlives training, gradients need not
        assert self._best is not None
        if self._best["weights"] is not None:
            self.model.load_state_dict(self._best["weights"])
        self.model.eval()

    def finished(self, size: int, row: Tensor | None) -> Finished:
        """Return the member as it is kept, for an ensemble of this size."""
        assert self._best is not None
        accuracy = self.history[self._best["epoch"] - 1]["validation_accuracy"]
        facts = {
            "number": self.number,
            "seed": self.seed,
            "size": size,
            "selected_epoch": self._best["epoch"],
            "validation_accuracy": accuracy,
            "seconds": round(sum(record["seconds"] for record in self.history), 3),
        }
        return Finished(self.number, self.model, facts, self.history, row)

    def state(self) -> dict[str, Any]:
        """Return everything that the rest of the training depends on."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": self.generators,
            "best": self._best,
            "history": json.dumps(self.history),  # text: it grows, and is rewritten after every epoch
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
        try:
            self.epoch, self.history, self._best = state["epoch"], json.loads(state["history"]), state["best"]
            self.model.load_state_dict(state["model"])
            self._restore_optimizer(state["optimizer"])
            self.generators = state["generators"]
            with self.at_work():  # fails now rather than later
                pass
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, RecursionError) as error:
            raise FolderError(
                f"the checkpoint does not fit member {self.number} ({type(error).__name__}: {error}). Delete "
                "checkpoint.safetensors in run_dir to train this member again from its first epoch"
            ) from error

    def _restore_optimizer(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # In the layout of the parameter, which files do not keep and fused updates need.
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    def is_finite(self) -> bool:
        """Return whether all weights and statistics of the model that were finite at the start still are."""
        state = self.model.state_dict()
        # A sum is finite only where its terms are; in double precision, those of single precision cannot overflow.
        sums = [state[name].sum(dtype=torch.float64) for name in self._numbers]
        return bool(torch.stack(sums).isfinite().all())


def _floats(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in model.state_dict().items() if value.is_floating_point()]


def _copy(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}
