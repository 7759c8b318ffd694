"""When members train: in groups, one group after another, each against a frozen bank of the members before it.

The paper's schedule (Algorithm 2) has groups of one. In the concurrent schedule a group is all members, or as many as
memory holds: member k of it is repelled from the outputs, at the same step, of those before it in the group, detached.
Earlier members never depend on later ones, so as they settle, member k's objective becomes the greedy one. Their best
epochs are selected at the end, and the bank is written from those.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack

from torch import Tensor, nn

from greedy_ensembles.inputs import device_of
from greedy_ensembles.training.engine import Engine
from greedy_ensembles.training.engines import make_engine
from greedy_ensembles.training.events import Epoch
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.memory import fitting_members, members_at_once, with_evaluation_rows
from greedy_ensembles.training.outputs import outputs_on_set
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.step import Losses
from greedy_ensembles.training.store import Finished, Store
from greedy_ensembles.training.weighting_set import WeightingSet

Notify = Callable[[list[Epoch]], None]  # an epoch of all members that train together


class NonFiniteLossError(ArithmeticError):
    """Training left the range of numbers; the state before that epoch is kept."""


def train(problem: Problem, store: Store, notify: Notify) -> None:
    """Train the members that the store does not have yet."""
    if store.finished >= problem.size:
        return
    at_once = _group_size(problem, store)
    problem = with_evaluation_rows(problem, at_once)
    weighting = None if problem.weighting is None else WeightingSet(problem, problem.weighting)
    if weighting is not None:
        for row in store.rows():
            weighting.bank.append(row)
    _take_over_earlier(problem, store, weighting)
    while store.finished < problem.size:
        _train_group(_next_group(problem, store, at_once), problem, store, weighting, notify)


def _group_size(problem: Problem, store: Store) -> int:
    """Return how many members train together, which is decided once for all that a run was asked for.

    Who is in a group changes what its members become, so a run that was interrupted goes on in the same groups.
    """
    if problem.configuration["schedule"] == "sequential":
        return 1
    at_once, left = store.members_at_once, problem.size - max(store.finished, len(problem.earlier or ()))
    if at_once is None:
        at_once = members_at_once(problem, left)
        store.keep_members_at_once(at_once)
        return at_once
    next_ones = min(at_once, left)
    if next_ones > (fitting := fitting_members(problem)):
        raise ValueError(
            f"this run goes on with {next_ones} members together, and {fitting} fit into the memory that is free on "
            f"{problem.device}; free some, and go on then"
        )
    return at_once


def _next_group(problem: Problem, store: Store, at_once: int) -> list[Member]:
    """Return the members under way as they were saved, or else those that are next, at their initialisation."""
    state = store.checkpoint()
    if state is None:
        last = min(store.finished + at_once, problem.size)
        return [Member(problem, number) for number in range(store.finished + 1, last + 1)]
    saved = [item for item in state["members"] if item["number"] > store.finished]
    members = [Member(problem, item["number"]) for item in saved]
    for member, item in zip(members, saved, strict=True):
        member.restore(item)
    return members


def _train_group(
    members: list[Member], problem: Problem, store: Store, weighting: WeightingSet | None, notify: Notify
) -> None:
    if members[0].epoch < problem.recipe.epochs:
        engine = make_engine(members, problem, weighting)
        while members[0].epoch < problem.recipe.epochs:
            notify(_train_one_epoch(engine, members, problem, store))
        engine.close()
        del engine  # and what it keeps on the device
    for member in members:
        member.select_best()
        store.add(member.finished(problem.size, _enter(member.model, problem, weighting)))
    store.drop_checkpoint()


def _enter(model: nn.Module, problem: Problem, weighting: WeightingSet | None) -> Tensor | None:
    """Put a finished member's outputs into the bank, where there is one, and return them."""
    if weighting is None:
        return None
    row = outputs_on_set(model, problem, weighting)
    weighting.bank.append(row)
    return row


def _train_one_epoch(engine: Engine, members: list[Member], problem: Problem, store: Store) -> list[Epoch]:
    start = time.perf_counter()
    with ExitStack() as stack:
        if len(members) == 1:
            stack.enter_context(members[0].at_work())
        losses = engine.train_epoch()
        for member, means, finite in zip(members, losses, engine.are_finite(), strict=True):
            if not (_finite(means.loss, means.diversity) and finite):
                raise NonFiniteLossError(_explain(member, problem, means.loss))
        correct = engine.count_correct()
    seconds = (time.perf_counter() - start) / len(members)
    records = [
        _record(member, means, right, problem, seconds)
        for member, means, right in zip(members, losses, correct, strict=True)
    ]
    for member, record, right in zip(members, records, correct, strict=True):
        member.end_epoch(record, right)
    last = members[0].epoch == problem.recipe.epochs
    store.save_checkpoint(lambda: {"members": [member.state() for member in members]}, last)
    return [
        Epoch(
            member=member.number,
            size=problem.size,
            epochs=problem.recipe.epochs,
            done=_done(members, position, problem),
            model=member.model,
            **record,  # type: ignore[arg-type]
        )
        for position, (member, record) in enumerate(zip(members, records, strict=True))
    ]


def _done(members: list[Member], position: int, problem: Problem) -> int:
    """Return how many epochs of the run are finished with this one of the group, which is reported member by member."""
    before = (members[0].number - 1) * problem.recipe.epochs
    return before + (members[0].epoch - 1) * len(members) + position + 1


def _record(
    member: Member, losses: Losses, correct: int | None, problem: Problem, seconds: float
) -> dict[str, float | int | None]:
    return {
        "epoch": member.epoch + 1,
        "learning_rate": float(member.optimizer.param_groups[0]["lr"]),
        "loss": losses.loss,
        "diversity": losses.diversity,
        "validation_accuracy": None if correct is None else correct / len(problem.validation),
        "seconds": round(seconds, 6),
    }


def _take_over_earlier(problem: Problem, store: Store, weighting: WeightingSet | None) -> None:
    """Put members that came from elsewhere into the store and the bank, as if they had been trained here."""
    for number, model in enumerate(problem.earlier or (), start=1):
        if number <= store.finished:
            continue
        home = device_of(model)
        model.to(problem.device)
        row = _enter(model, problem, weighting)
        model.to(home)
        store.add(Finished(number, model, {"number": number, "origin": "earlier"}, [], row))


def _finite(*values: float | None) -> bool:
    return all(value is None or abs(value) < float("inf") for value in values)


def _explain(member: Member, problem: Problem, loss: float) -> str:
    strength = problem.configuration["strength"]
    of_strength = "" if strength is None else f" at lambda_M = {strength:g}"
    repelled = strength and member.number > 1  # the first has none to differ from
    remedies = ["a smaller lr", "warmup_epochs"]
    if repelled:
        remedies.append("a smaller strength (lambda_M)")
    if repelled and problem.configuration["distance"] == "logits":
        remedies.append("distance='probabilities', since the distance of logits has no bound")
    return (
        f"training left the range of numbers in member {member.number} of {problem.size}, epoch {member.epoch + 1}"
        f"{of_strength} (mean loss {loss}). Try {', or '.join(remedies)}. What was saved "
        "before this epoch is kept in the run folder, if there is one; the next try needs another"
    )
