"""Algorithm 2 with its members shared out over processes, as `torchrun` starts them.

All members train at the same time, each process its own. The result is that of one process: the same members, seeds,
examples and samples, and in every step the same outputs on p*. The first process has the run folder and tells watchers;
all of them return the whole ensemble.
"""

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from greedy_ensembles.engines.captured import CapturedEngine, why_not_captured
from greedy_ensembles.engines.execution import Exchange, Ranks
from greedy_ensembles.engines.graphs import CannotCapture
from greedy_ensembles.engines.member import Finished, History, Member
from greedy_ensembles.engines.plain import PlainEngine
from greedy_ensembles.method import Bank
from greedy_ensembles.runs.configuration import differences
from greedy_ensembles.runs.folder import RunFolder
from greedy_ensembles.training.algorithm import Algorithm, NonFiniteLossError, Notify


def check_ranks(ranks: Ranks, algorithm: Algorithm, configuration: dict[str, Any]) -> None:
    """Refuse what cannot be shared out, and processes that were asked for different things."""
    asked = ranks.gather({**configuration, "size": algorithm.size})  # first of all, so that all say the same
    for rank, theirs in enumerate(asked):
        if differ := differences(asked[0], theirs):
            where, one, other = differ[0]
            raise ValueError(
                f"processes were started with different arguments or data: {where} is {one} in rank 0 and {other} in "
                f"rank {rank}"
            )
    coupling, left = algorithm.method.coupling, algorithm.size - len(algorithm.earlier or ())
    why = ""
    if coupling.one_network or coupling.recipe(algorithm.recipe, 1, algorithm.seed) != algorithm.recipe:
        why = "its members are not trained alike; start one process"
    elif coupling.sees != "none" and not algorithm.schedule.together:
        why = "each member waits for the one before it; use schedule='concurrent'"
    if why:
        raise ValueError(f"{ranks.world} processes cannot share the members of {coupling.label!r}: {why}")
    if ranks.world > left:
        raise ValueError(f"{ranks.world} processes are more than the {left} members that are to train; start fewer")
    if algorithm.recipe.members_at_once is not None:
        raise ValueError("members_at_once is for one process; leave it out: processes share the members")


@dataclass
class SharedAlgorithm(Algorithm):
    """The part of one process; all members that are left train together."""

    ranks: Ranks = field(default_factory=Ranks)

    def train(self, folder: RunFolder | None, notify: Notify) -> list[Finished]:
        """Train the members of this process, and return all members."""
        bank = self._draw_bank()
        done = self._stored(folder, bank)
        for number, model in list(enumerate(self.earlier or (), start=1))[len(done) :]:
            facts = {"number": number, "origin": "earlier"}
            done.append(Finished(number, model, facts, [], self._enter(model, bank)))
            if folder is not None:
                folder.add(done[-1])
        if len(done) == self.size:
            return done
        if self.ranks.world > (left := self.size - len(done)):
            raise ValueError(
                f"{self.ranks.world} processes are more than the {left} members that are left; start fewer"
            )
        self.exchange = Exchange(self.ranks, left)
        members = self._next_group(len(done), folder)
        self._minimise(members, bank, folder, notify)
        made = [_sent(one) for member in members for one in self._finish(member, bank)]
        for one in (self._received(one) for part in self.ranks.gather(made) for one in part):
            done.append(one)
            if folder is not None:
                folder.add(one)
        if folder is not None:
            folder.drop_checkpoint()
        return done

    def _stored(self, folder: RunFolder | None, bank: Bank | None) -> list[Finished]:
        """Return the members that the first process has in its folder, and put their outputs into every bank."""
        stored: list[_Sent] = []
        if folder is not None and folder.finished:
            rows: list[Tensor | None] = [None] * folder.finished
            if bank is not None:
                folder.fill(bank)
                rows = list(bank.at(torch.arange(bank.count, device=bank.device)))
            models = zip(folder.facts(), folder.members(), rows, strict=True)
            stored = [_sent(Finished(facts["number"], model, facts, [], row)) for facts, model, row in models]
        stored = self.ranks.share(stored)
        if folder is None and bank is not None:
            for one in stored:
                assert one.row is not None
                bank.append(one.row.to(bank.device))
        return [self._received(one) for one in stored]

    def _next_group(self, finished: int, folder: RunFolder | None) -> list[Member]:
        """Return the members that this process trains, as they were saved or at their initialisation."""
        assert self.exchange is not None
        state = self.ranks.share(None if folder is None else folder.checkpoint())
        saved = {} if state is None else {item["number"]: item for item in state["members"]}
        left = range(finished + 1, self.size + 1)
        if saved and not saved.keys() >= set(left):
            raise ValueError(
                f"run_dir has member {max(saved)} of {self.size} under way without those after it, and processes train "
                "all that are left at the same time; go on with one process"
            )
        members = [self._new_member(number) for number in left[self.exchange.own]]
        for member in members:
            if saved:
                member.restore(saved[member.number])
        return members

    def _minimise(self, members: list[Member], bank: Bank | None, folder: RunFolder | None, notify: Notify) -> None:
        """Minimise losses and terms, epoch by epoch, in step with the other processes."""
        engine = self._engine(members, bank, folder)
        stopped = all(all(part) for part in self.ranks.gather([member.stopped for member in members]))
        while members[0].epoch < self.recipe.epochs and not stopped:
            start, failure, events = time.perf_counter(), "", []
            losses = engine.train_epoch(self._plan(members, bank, self.recipe))
            try:
                events = [replace(event, model=None) for event in self._end_epoch(engine, losses, start)]
            except NonFiniteLossError as error:
                failure = str(error)
            gathered = self.ranks.gather((events, failure, all(member.stopped for member in members)))
            for _, failure, _ in gathered:
                if failure:
                    raise NonFiniteLossError(failure)
            stopped = all(theirs for _, _, theirs in gathered)
            self._save(members, folder, stopped or members[0].epoch == self.recipe.epochs)
            notify([event for part, _, _ in gathered for event in part])

    def _engine(self, members: list[Member], bank: Bank | None, folder: RunFolder | None) -> PlainEngine:
        """Return the engine that all processes can have: recorded steps on GPUs, unless one of them cannot record."""
        step = self._step(bank, self.recipe)
        if self.execution.device.type != "cuda":
            return PlainEngine(members, step)
        why, engine = why_not_captured(step) or "", None
        if not why:
            try:
                engine = CapturedEngine(members, step, self._plan(members, bank, self.recipe))
            except CannotCapture as error:
                why = str(error)
        reasons = [theirs for theirs in self.ranks.gather(why) if theirs]
        if engine is not None and not reasons:
            return engine
        del engine
        if self.ranks.rank == 0:
            warnings.warn(f"trained step by step, since steps cannot be captured: {reasons[0]}", stacklevel=2)
        members[:] = self._next_group(members[0].number - 1 - self.exchange.own.start, folder)  # type: ignore[union-attr]
        return PlainEngine(members, step)

    def _save(self, members: list[Member], folder: RunFolder | None, last: bool) -> None:
        """Bring all members' states to the first process, if it is time to save them."""
        if not self.ranks.share(folder is not None and folder.is_due(last)):
            return
        gathered = self.ranks.gather([_on_cpu(member.state()) for member in members])
        if folder is not None:
            states = [state for part in gathered for state in part]
            if folder.members_at_once is None:
                folder.members_at_once = len(states)
            folder.save_checkpoint(lambda: {"members": states, "until": self.size}, last)

    def _received(self, sent: "_Sent") -> Finished:
        """Return a member that another process may have trained."""
        if sent.number <= len(self.earlier or ()):
            assert self.earlier is not None
            return Finished(sent.number, self.earlier[sent.number - 1], sent.facts, sent.history, sent.row)
        model = self.make_model()
        model.load_state_dict(sent.weights)
        model = model.to(self.execution.device).eval()
        return Finished(sent.number, model, sent.facts, sent.history, sent.row)


class _Sent(NamedTuple):
    """A finished member on its way to other processes."""

    number: int
    weights: dict[str, Tensor]
    facts: dict[str, Any]
    history: History
    row: Tensor | None


def _on_cpu(value: Any) -> Any:
    """Return a state without tensors on a GPU, which would be made anew there by every process that receives them."""
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_on_cpu(item) for item in value)
    return value.cpu() if isinstance(value, Tensor) else value


def _sent(one: Finished) -> _Sent:
    weights = {name: value.detach().cpu() for name, value in one.model.state_dict().items()}
    return _Sent(one.number, weights, one.facts, one.history, None if one.row is None else one.row.cpu())
