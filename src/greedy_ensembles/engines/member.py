"""One member under way: its model, optimizer, history and best epoch so far, and all of that as one saved state."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from greedy_ensembles.generators import Generators
from greedy_ensembles.storage import FolderError

History = list[dict[str, Any]]


@dataclass
class Finished:
    """A member that is done: its model with the selected weights, what became of it, and its row of the bank."""

    number: int  #: from 1
    model: nn.Module
    facts: dict[str, Any]
    history: History
    row: Tensor | None = None  #: None, too, where there is no bank


class Member:
    """Member `number`, counted from 1; `restore` brings it to where it was.

    The recipe is a `ge.Recipe`. After `kept_epochs` weights are kept beside those of the best epoch.
    """

    def __init__(
        self,
        number: int,
        seed: int,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Any,
        kept_epochs: Sequence[int] = (),
    ) -> None:
        self.number, self.seed, self.model, self.optimizer = number, seed, model, optimizer
        self.recipe, self.device = recipe, next(model.parameters()).device
        self.generators = Generators.current(self.device)  # as making the model left them: its own from here on
        self.epoch = 0  #: epochs finished
        self.history: History = []
        self.stopped = False  #: whether its patience is at an end
        #: Averaged weights, with which it is judged and kept, where the recipe has a decay of them.
        self.average = [p.detach().clone() for p in model.parameters()] if recipe.ema is not None else []
        self._best: dict[str, Any] | None = None
        self.kept_epochs = kept_epochs
        self.kept: list[dict[str, Tensor]] = []
        # Masks of attention are minus infinity by design; what started out finite has to stay so.
        state = model.state_dict().items()
        self._finite = [name for name, v in state if v.is_floating_point() and bool(torch.isfinite(v).all())]

    @contextmanager
    def random_state(self) -> Iterator[None]:
        """Give the global generators this member's states inside the block, and keep what they are at its end."""
        self.generators.restore(self.device)
        try:
            yield
        finally:
            self.generators = Generators.current(self.device)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model its averaged weights inside the block, where there are any, in the memory that it has."""
        if not self.average:
            yield
            return
        with torch.no_grad():
            parameters = [p.detach() for p in self.model.parameters()]
            trained = [p.clone() for p in parameters]
            torch._foreach_copy_(parameters, self.average)
        try:
            yield
        finally:
            torch._foreach_copy_(parameters, trained)

    def end_epoch(self, record: dict[str, Any]) -> None:
        """Note a finished epoch; keep its weights if none before was better, or always without a score.

        A member that has not improved for as many epochs as it has patience stops: what it does afterwards, while
        others go on, is not kept.
        """
        self.epoch += 1
        if self.stopped:
            return
        self.history.append(record)
        score: float | None = record["validation_score"]
        best = None if self._best is None else self._best["score"]
        is_best = score is None or best is None or score >= best or math.isnan(best)
        needed = is_best and (score is not None or self.recipe.ema is not None)  # else it is the model as it is
        weights: dict[str, Tensor] | None = None
        if needed or self.epoch in self.kept_epochs:
            with self.averaged():
                weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        if is_best:
            self._best = {"epoch": self.epoch, "score": score, "weights": weights if needed else None}
        if weights is not None and self.epoch in self.kept_epochs:
            self.kept.append(weights)
        if self.recipe.patience is not None and score is not None:
            scores = [-math.inf if math.isnan(s := past["validation_score"]) else s for past in self.history]
            self.stopped = self.epoch - (1 + scores.index(max(scores))) >= self.recipe.patience

    def finish(
        self, size: int, members: Callable[[nn.Module, list[dict[str, Tensor]]], list[nn.Module]] | None = None
    ) -> list[Finished]:
        """Give the model the weights of its best epoch, for good, and return what came of it: one member, mostly.

        `members` makes several of the model and its kept weights; None: the model is the member. `size` is M.
        """
        self.optimizer.zero_grad()  # the model outlives training, gradients need not
        assert self._best is not None
        if self._best["weights"] is not None:
            self.model.load_state_dict(self._best["weights"])
        for parameter in self.model.parameters():
            if parameter.untyped_storage().nbytes() > parameter.nbytes:  # a part of a stack of all members' weights
                parameter.data = parameter.data.clone()
        finished = []
        for position, model in enumerate([self.model] if members is None else members(self.model, self.kept)):
            selected, start = self._best["epoch"], 0
            if self.kept:  # the member is of a part of the training
                selected, start = self.kept_epochs[position], (0, *self.kept_epochs)[position]
            history = self.history[start : selected if self.kept else None]
            facts = {
                "number": self.number + position,
                "seed": self.seed,
                "size": size,
                "selected_epoch": selected,
                "validation_accuracy": self.history[selected - 1]["validation_accuracy"],
                "last_loss": history[-1]["loss"],
                "seconds": round(sum(record["seconds"] for record in history), 3),
            }
            finished.append(Finished(facts["number"], model.eval(), facts, history))
        return finished

    def state(self) -> dict[str, Any]:
        """Return everything that the rest of the training depends on."""
        return {
            "number": self.number,
            "epoch": self.epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": self.generators.state(),
            "best": self._best,
            "kept": self.kept,
            "stopped": self.stopped,
            "average": self.average,
            "history": json.dumps(self.history),  # text: it grows, and is rewritten after every epoch
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a saved state, after a look at all of it."""
        try:
            history = json.loads(state["history"])
            state["best"].setdefault("score", None)  # 0.1 had none, and went on where nothing was held out
            for record in history:
                record.setdefault("validation_score", None)
            _check_course(state, history)
            # Version 0.1 had no averages, no kept weights, and no member that stopped.
            average, kept = state.get("average", []), state.get("kept", [])
            due = sum(epoch <= state["epoch"] for epoch in self.kept_epochs)
            if len(kept) != due:
                raise ValueError(f"weights of {len(kept)} epochs were kept, not of {due}")
            _check_like("average", average, self.average)
            for weights in (state["model"], state["best"]["weights"], *kept):
                if weights is not None:  # the best ones are not kept where nothing is held out
                    _check_like("weights", weights, self.model.state_dict())
            self._restore_optimizer(state["optimizer"])
            self.epoch, self.history, self._best = state["epoch"], history, state["best"]
            self.kept, self.stopped = kept, state.get("stopped", False)
            self.average = [value.to(self.device) for value in average]
            self.model.load_state_dict(state["model"])
            restored = Generators.from_state(state["generators"])
            if restored.cuda is None:  # saved on a CPU: on a GPU the member goes on with numbers of its own seed
                restored = restored._replace(cuda=self.generators.cuda)
            self.generators = restored
            with self.random_state():  # fails now rather than later
                pass
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, RecursionError) as error:
            raise FolderError(
                f"{state.get('file', 'the checkpoint')} does not fit member {self.number} ({type(error).__name__}: "
                f"{error}). Delete it to train this member again from its first epoch"
            ) from error

    def _restore_optimizer(self, saved: dict[str, Any]) -> None:
        """Refuse what the optimizer would not have made of these parameters, or take it: fused updates check nothing.

        What it makes of them is seen in a step, after which weights must be restored. Other names that it saved are its
        own affair: some optimizers add them later.
        """
        for ours, theirs in zip(self.optimizer.state_dict()["param_groups"], saved["param_groups"], strict=True):
            if theirs["params"] != ours["params"]:
                raise ValueError("the optimizer has other parameters")
            for name in ours.keys() & theirs.keys():
                if ours[name] is not None:
                    _check_like(f"{name!r} of the optimizer", theirs[name], ours[name])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        with suppress(RuntimeError, TypeError, ValueError):  # of one that cannot take such a step nothing is known
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            self.optimizer.step()
        self.optimizer.zero_grad()
        made = self.optimizer.state_dict()["state"]
        for index, values in saved["state"].items():
            if type(index) is not int or not 0 <= index < len(parameters):
                raise ValueError(f"the optimizer's state is of parameter {index!r}")
            for name, value in made.get(index, {}).items() if values else ():
                if isinstance(value, Tensor):
                    _check_like(f"{name!r} of the optimizer", values[name], value, parameters[index].dtype)
        self.optimizer.load_state_dict(saved)
        for parameter, values in self.optimizer.state.items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameter.shape:
                    # In the layout of the parameter, which files do not keep and fused updates need.
                    values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

    def is_finite(self) -> bool:
        """Return whether all weights and statistics of the model that were finite at the start still are."""
        state = self.model.state_dict()
        largest = torch._foreach_norm([state[name] for name in self._finite if state[name].numel()], float("inf"))
        return bool(torch.stack([one.double() for one in largest]).isfinite().all())


def _check_course(state: dict[str, Any], history: Any) -> None:
    """Refuse a saved state whose epochs are none that training passes through."""
    epoch, best, stopped = state["epoch"], state["best"], state.get("stopped", False)
    if type(epoch) is not int or type(stopped) is not bool or not isinstance(history, list):
        raise ValueError("epoch, stopped or history is of another kind")
    if not 0 < len(history) <= epoch or (len(history) < epoch and not stopped):
        raise ValueError(f"the history has {len(history)} epochs of {epoch}")
    for record in history:
        for name in ("loss", "seconds", "validation_accuracy", "validation_score"):
            may_lack = record[name] is None and name.startswith("validation")
            if not may_lack and type(record[name]) not in (int, float):
                raise ValueError(f"{name!r} in the history is {record[name]!r}")
    if type(best["epoch"]) is not int or not 0 < best["epoch"] <= len(history):
        raise ValueError(f"the best epoch is {best['epoch']!r}")
    _check_like("the best score", best["score"], history[best["epoch"] - 1]["validation_score"])


def _check_like(what: str, found: Any, expected: Any, dtype: torch.dtype | None = None) -> None:
    """Refuse a saved value that is of another kind than the one expected: in names, lengths, shapes or types.

    Tensors may also be of `dtype`, and must be finite where those expected are. A number may be whole or not.
    """
    if isinstance(expected, Tensor):
        if not isinstance(found, Tensor) or found.shape != expected.shape or found.dtype not in (expected.dtype, dtype):
            kind = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{what} is {kind}, not {expected.dtype} of shape {tuple(expected.shape)}")
        if bool(expected.isfinite().all()) and not bool(found.isfinite().all()):
            raise ValueError(f"{what} holds NaN or infinity")
        return
    numbers = isinstance(found, int | float) and isinstance(expected, int | float) and not isinstance(found, bool)
    if isinstance(found, Tensor) and isinstance(expected, float):  # a learning rate of steps that were captured
        numbers = found.ndim == 0 and found.is_floating_point()
    mappings = isinstance(found, dict) and isinstance(expected, dict)
    if not (type(found) is type(expected) or numbers or mappings):
        raise ValueError(f"{what} is {found!r}")
    if isinstance(expected, dict | list | tuple):
        found, expected = (one if mappings else dict(enumerate(one)) for one in (found, expected))
        if found.keys() != expected.keys():
            raise ValueError(f"{what} has other entries: {sorted(map(str, found.keys() ^ expected.keys()))[0]!r}")
        for name, value in expected.items():
            _check_like(f"{name!r} of {what}", found[name], value)
