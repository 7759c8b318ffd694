"""Algorithm 2: members are trained in groups, one group after another, each against the bank of those before it.

The paper's schedule has groups of one. In the concurrent schedule a group is all members, or as many as memory holds:
a member of it meets the outputs, at the same step, of those before it in the group. Earlier members never depend on
later ones, so as they settle, member k's objective becomes the greedy one. Their best epochs are selected at the end,
and the bank is written from those.
"""

import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from greedy_ensembles.engines.captured import CapturedEngine, why_not_captured
from greedy_ensembles.engines.execution import Exchange, Execution
from greedy_ensembles.engines.graphs import CannotCapture
from greedy_ensembles.engines.member import Finished, Member
from greedy_ensembles.engines.plain import Losses, PlainEngine, Plan, Step, in_pieces
from greedy_ensembles.engines.stacked import StackedEngine, why_not_stacked
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.generators import WEIGHTING_BATCH, generator, seed_generators
from greedy_ensembles.inputs import as_stored, dtype_of, move, take, to_model
from greedy_ensembles.labels import bernoulli, log_bernoulli
from greedy_ensembles.method import Bank, Coupling, Schedule, draw_samples
from greedy_ensembles.method.weighting import Weighting
from greedy_ensembles.runs.configuration import describe
from greedy_ensembles.runs.folder import RunFolder
from greedy_ensembles.runs.notes import non_finite
from greedy_ensembles.training.events import Epoch
from greedy_ensembles.training.examples import Data
from greedy_ensembles.training.recipe import AUGMENTATIONS, Recipe, learning_rate_factor, make_optimizer, takes_targets
from greedy_ensembles.training.trial import check_model
from greedy_ensembles.training.validate import advice_on_scale

Notify = Callable[[list[Epoch]], None]  # an epoch of all members that train together
_ROWS = 1024  # inputs at once outside of training steps


class NonFiniteLossError(ArithmeticError):
    """Training left the range of numbers; the state before that epoch is kept."""


@dataclass(frozen=True)
class Method:
    """How members meet: the coupling, where they meet, and in what they differ."""

    coupling: Coupling
    weighting: Weighting | None  #: p*; None where the coupling sees no one
    outputs: Callable[[Tensor], Tensor]  #: from logits to what distances are measured between
    distance: str  #: the name of that
    one_pass: bool  #: whether examples and samples of p* can go through a model together


@dataclass
class Algorithm:
    """The inputs of Algorithm 2, and what it does with them."""

    make_model: ModelFactory
    size: int
    data: Data
    method: Method
    recipe: Recipe
    execution: Execution
    schedule: Schedule
    seed: int
    earlier: Ensemble | None
    parameters: dict[str, list[int]]  #: names and shapes of a model's
    parts: "list[weakref.ref[object]]"  #: parameters and BatchNorm of the last model, which the next must not share
    members_at_once: int | None  #: how many members train together at the most
    whole: Callable[[nn.Module], nn.Module] = lambda model: model  #: from what is trained to a member
    exchange: Exchange | None = None  #: with other processes, once it is known how many members train

    def train(self, folder: RunFolder | None, notify: Notify) -> list[Finished]:
        """Train the members that are not there yet, and return them; where there is a folder, it has them instead."""
        done: list[Finished] = []
        if folder is not None and folder.finished == self.size:
            return done
        bank = self._draw_bank()
        if folder is not None and bank is not None:
            folder.fill(bank)
        keep = done.append if folder is None else folder.add
        finished = 0 if folder is None else folder.finished
        for number, model in list(enumerate(self.earlier or (), start=1))[finished:]:
            row, facts = self._enter(model, bank), {"number": number, "origin": "earlier"}
            keep(Finished(number, self.whole(model), facts, [], row))
            finished += 1
        while finished < self.size:
            members = self._next_group(finished, folder)
            self._minimise(members, bank, folder, notify)
            for member in members:
                for made in self._finish(member, bank):
                    keep(made)
                    finished = made.number
            del members, member, made  # a folder has them, and memory need not hold them beside the next
            if folder is not None:
                folder.drop_checkpoint()
        return done

    def _draw_bank(self) -> Bank | None:
        """Draw the p* set, the same for every member and schedule."""
        weighting = self.method.weighting
        if weighting is None:
            return None
        count = self.recipe.weighting_samples or self.data.examples.default_samples(len(self.data.train))
        try:
            samples = as_stored(draw_samples(weighting, count, self.seed), self.data.examples.form)
            return Bank(move(samples, self.execution.device), self.size, self.data.classes)
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):  # on the CPU
                raise
            raise ValueError(
                f"{count} samples of p*, and the outputs of {self.size} members on them, do not fit on "
                f"{self.execution.device}; use a smaller p* set: Recipe(weighting_samples=...)"
            ) from None

    def _next_group(self, finished: int, folder: RunFolder | None) -> list[Member]:
        """Return the members under way as they were saved, or else those that are next, at their initialisation."""
        state = None if folder is None else folder.checkpoint()
        if state is not None:
            one_network = self.method.coupling.one_network  # whose members are all made again, with the same weights
            saved = [item for item in state["members"] if one_network or item["number"] > finished]
            members = [self._new_member(item["number"]) for item in saved]
            for member, item in zip(members, saved, strict=True):
                member.restore(item)
            return members
        decided = None if folder is None else folder.members_at_once
        left = self.size - finished
        count = min(decided or self.members_at_once or left, left) if self.schedule.together else 1
        return [self._new_member(number) for number in range(finished + 1, finished + 1 + count)]

    def _state(self, members: list[Member]) -> dict[str, Any]:
        """Return the members under way as they are saved, and the last member that will come of them."""
        until = self.size if self.method.coupling.one_network else members[-1].number
        return {"members": [member.state() for member in members], "until": until}

    def _new_member(self, number: int) -> Member:
        """Set the seed, and initialise a member (line 9)."""
        seed, coupling = self.seed + number - 1, self.method.coupling
        seed_generators(seed)
        recipe = coupling.recipe(self.recipe, number, self.seed)
        model = coupling.build(self.make_model(), number, self.seed)
        self.parts = check_model(model, self.parts)
        model = model.to(self.execution.device, memory_format=self.execution.layout(model))  # type: ignore[call-overload]
        optimizer = make_optimizer(recipe, model)
        kept = coupling.kept_epochs(recipe.epochs) if coupling.one_network else ()
        return Member(number, seed, model, optimizer, recipe, kept)

    def _minimise(self, members: list[Member], bank: Bank | None, folder: RunFolder | None, notify: Notify) -> None:
        """Minimise losses and terms (line 10), epoch by epoch; `members` become fewer where memory is short."""
        engine: PlainEngine | None = None
        recipe: Recipe = members[0].recipe
        step = self._step(bank, recipe)
        while members[0].epoch < recipe.epochs and not all(member.stopped for member in members):
            plan, start, events, why = self._plan(members, bank, recipe), time.perf_counter(), None, ""
            try:
                engine = engine or make_engine(members, step, plan)
                events = self._end_epoch(engine, engine.train_epoch(plan), start)
            except CannotCapture as error:
                why = str(error)
            except torch.OutOfMemoryError:
                engine = None
            if why:
                warnings.warn(f"trained step by step, since steps cannot be captured: {why}", stacklevel=2)
                members[:] = self._next_group(members[0].number - 1, folder)  # what was tried may have left its marks
                engine = PlainEngine(members, step)
            elif events is None:
                self._halve(members, folder)  # here, where the error and what its frames held are gone
            if events is None:
                continue
            last = members[0].epoch == recipe.epochs or all(member.stopped for member in members)
            if folder is not None:
                if self.schedule.together and folder.members_at_once is None:
                    folder.members_at_once = len(members)
                folder.save_checkpoint(lambda: self._state(members), last)
            self.members_at_once = self.members_at_once or len(members)
            notify(events)

    def _plan(self, members: list[Member], bank: Bank | None, recipe: Recipe) -> Plan:
        """Return the examples, samples of p* (by (seed, step), the same for all members) and rates of an epoch."""
        epoch, size = members[0].epoch, recipe.batch_size
        examples = self.data.examples.epoch(self.data.train, [member.seed for member in members], epoch, size)
        steps = range(epoch * len(examples), (epoch + 1) * len(examples))
        samples: list[Tensor] = []
        together = len(members) if self.exchange is None else self.exchange.count
        if bank is not None and len(bank) + together > 1:  # the first of all meets no one
            count = recipe.weighting_batch_size or size
            drawn = (generator(WEIGHTING_BATCH, self.seed, number) for number in steps)
            samples = [torch.randint(bank.count, (count,), generator=one).to(bank.device) for one in drawn]
        return Plan(examples, samples, [learning_rate_factor(recipe, n / len(examples)) for n in steps])

    def _end_epoch(self, engine: PlainEngine, losses: list[Losses], start: float) -> list[Epoch]:
        """Note what the epoch was like, and keep the weights of members that were never better."""
        members = engine.members
        for member, means in zip(members, losses, strict=True):
            if not (member.is_finite() and all(value is None or abs(value) < float("inf") for value in means)):
                where = (member.number, self.size, member.epoch + 1, means.loss)
                scale = advice_on_scale(self.data.examples, self.recipe.normalize)
                raise NonFiniteLossError(non_finite(*where, self.method.coupling, self.method.distance, scale))
        accuracies, scores = self._judge(engine)
        seconds = round((time.perf_counter() - start) / len(members), 6)
        events = []
        # All that train together, in other processes, too, are at the same epoch; those before them are finished.
        count = len(members) if self.exchange is None else self.exchange.count
        before = members[0].number - 1 if self.exchange is None else self.size - count
        done = before * self.recipe.epochs + members[0].epoch * count
        for member, means, accuracy, score in zip(members, losses, accuracies, scores, strict=True):
            record: dict[str, Any] = {
                "epoch": member.epoch + 1,
                "learning_rate": float(member.optimizer.param_groups[0]["lr"]),
                "loss": means.loss,
                "diversity": means.term,
                "validation_accuracy": accuracy,
                "validation_score": score,
                "seconds": seconds,
            }
            member.end_epoch(record)
            trained = 1 if self.method.coupling.one_network else self.size
            of_run = {"size": trained, "epochs": self.recipe.epochs, "done": done + member.number - before}
            events.append(Epoch(member=member.number, model=self.whole(member.model), **of_run, **record))
        return events

    def _judge(self, engine: PlainEngine) -> tuple[list[float | None], list[float | None]]:
        """Return each member's accuracy and score on the held-out examples; None where none are held out."""
        held_out, select_by = self.data.validation, engine.members[0].recipe.select_by
        if len(held_out) == 0:
            nothing: list[float | None] = [None] * len(engine.members)
            return nothing, nothing
        batches = self.data.held_out.ordered(held_out, _ROWS)
        looked_up = (self.data.look_up(batch, held_out=True) for batch in batches)
        rows = [(engine.predict(inputs), targets) for inputs, targets in looked_up]
        logits, labels = torch.cat([found for found, _ in rows], dim=1), torch.cat([targets for _, targets in rows])
        probs = bernoulli(logits) if labels.ndim == 2 else logits.softmax(dim=2)
        each_probs, each_label = probs.flatten(1, -2), labels.flatten()  # every label of an example counts by itself
        accuracies = (each_probs.argmax(dim=2) == each_label).sum(dim=1).div(len(each_label)).tolist()
        if select_by == "accuracy":
            return accuracies, accuracies
        if select_by == "nll":
            logs = log_bernoulli(logits) if labels.ndim == 2 else logits.log_softmax(dim=2)  # where probs may be 0
            return accuracies, logs.flatten(1, -2)[:, torch.arange(len(each_label)), each_label].mean(dim=1).tolist()
        try:
            return accuracies, [float(select_by(of_member, labels)) for of_member in probs]
        except Exception as error:  # of any kind: it is the user's
            raise ValueError(f"select_by ended in {type(error).__name__}: {error}") from error

    def _finish(self, member: Member, bank: Bank | None) -> list[Finished]:
        """Return what came of a training, one member or all of one network, entered into the bank (line 11)."""
        coupling = self.method.coupling
        members = (lambda model, kept: coupling.members(model, kept, self.seed)) if coupling.one_network else None
        made = member.finish(self.size, members)
        common, own = vars(self.recipe), vars(member.recipe)
        changed = {name: value for name, value in own.items() if value is not common[name] and value != common[name]}
        for one in made:
            one.row = self._enter(one.model, bank)
            one.model = self.whole(one.model)
            one.facts |= {"recipe": describe(changed)} if changed else {}
        return made

    @torch.no_grad()
    def _enter(self, model: nn.Module, bank: Bank | None) -> Tensor | None:
        """Put a finished member's outputs on the p* set, in eval mode, into the bank, and return them."""
        if bank is None:
            return None
        home = next(model.parameters()).device  # of members that came from elsewhere, it may be another one
        model = model.to(self.execution.device).eval()
        rows = []
        for first in range(0, bank.count, _ROWS):
            inputs = to_model(take(bank.samples, slice(first, first + _ROWS)), self.data.normalize, dtype_of(model))
            rows.append(self.method.outputs(in_pieces(model, inputs, self.execution)).float())
        model.to(home)
        bank.append(row := torch.cat(rows))
        return row

    def _step(self, bank: Bank | None, recipe: Recipe) -> Step:
        """Return what every engine needs to know of a step."""
        data = self.data
        augment = AUGMENTATIONS[recipe.augment] if isinstance(recipe.augment, str) else recipe.augment
        return Step(
            execution=self.execution,
            recipe=recipe,
            look_up=data.look_up,
            to_model=lambda samples: to_model(samples, data.normalize, data.dtype),
            loss=recipe.loss or cross_entropy,
            augment=augment,
            mixes=augment is not None and takes_targets(augment),
            coupling=self.method.coupling,
            bank=bank,
            outputs=self.method.outputs,
            one_pass=self.method.one_pass,
            make_optimizer=None if callable(recipe.optimizer) else lambda model: make_optimizer(recipe, model),
            off_device=data.examples.off_device,
            exchange=None if bank is None else self.exchange,
        )

    def _halve(self, members: list[Member], folder: RunFolder | None) -> None:
        """Leave the second half of a group for later where memory does not hold all of it, or say that it must."""
        device, count = self.execution.device, len(members)
        if count == 1:
            raise ValueError(
                f"a member and a batch of it do not fit on {device}; use a smaller batch_size or weighting_batch_size"
            ) from None
        decided = members[0].epoch > 0 or (folder is not None and folder.members_at_once is not None)
        if decided or self.method.coupling.sees == "all":
            raise ValueError(
                f"{count} members have to train together in this run, and {device} has no room for them; free some"
            ) from None
        first, self.members_at_once = members[0].number, (count + 1) // 2
        warnings.warn(
            f"{count} members do not fit on {device} together; they train in groups of {self.members_at_once}",
            stacklevel=2,
        )
        del members[:]
        torch.cuda.empty_cache()
        members += [self._new_member(first + position) for position in range(self.members_at_once)]


def make_engine(members: list[Member], step: Step, plan: Plan) -> PlainEngine:
    """Return the fastest engine that can train these members; on a GPU, say in one line why it is not the fast one."""
    if len(members) > 1 and why_not_stacked(members, step) is None:
        return StackedEngine(members, step)
    if step.execution.device.type != "cuda":
        return PlainEngine(members, step)
    if (why := why_not_captured(step)) is not None:
        warnings.warn(f"trained step by step, since steps cannot be captured: {why}", stacklevel=2)
        return PlainEngine(members, step)
    try:
        return CapturedEngine(members, step, plan)
    except torch.OutOfMemoryError:
        if len(members) > 1:  # fewer at a time may fit
            raise
    warnings.warn("trained step by step, since memory does not hold a recorded step", stacklevel=2)
    return PlainEngine(members, step)
