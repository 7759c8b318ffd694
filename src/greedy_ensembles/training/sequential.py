"""The paper's schedule: one member after another, each against a frozen bank of those before it (Algorithm 2)."""

import time
from collections.abc import Callable

from torch import Tensor, nn

from greedy_ensembles.inputs import device_of
from greedy_ensembles.training.eager import count_correct, outputs_on_set, train_epoch
from greedy_ensembles.training.events import Epoch
from greedy_ensembles.training.member import Member
from greedy_ensembles.training.problem import Problem
from greedy_ensembles.training.store import Finished, Store
from greedy_ensembles.training.weighting_set import WeightingSet


class NonFiniteLossError(ArithmeticError):
    """Training left the range of numbers; the state before that epoch is kept."""


def train_sequentially(problem: Problem, store: Store, notify: Callable[[Epoch], None]) -> None:
    """Train the members that the store does not have yet."""
    if store.finished >= problem.size:
        return
    weighting = None if problem.weighting is None else WeightingSet(problem, problem.weighting)
    if weighting is not None:
        for row in store.rows():
            weighting.bank.append(row)
    _take_over_earlier(problem, store, weighting)
    for number in range(store.finished + 1, problem.size + 1):
        _train_member(number, problem, store, weighting, notify)


def _train_member(
    number: int, problem: Problem, store: Store, weighting: WeightingSet | None, notify: Callable[[Epoch], None]
) -> None:
    member = Member(problem, number)
    if (state := store.checkpoint()) is not None:
        member.restore(state)
    while member.epoch < problem.recipe.epochs:
        notify(_train_one_epoch(member, problem, store, weighting))
    member.select_best()
    store.add(member.finished(problem.size, _enter(member.model, problem, weighting)))


def _enter(model: nn.Module, problem: Problem, weighting: WeightingSet | None) -> Tensor | None:
    """Put a finished member's outputs into the bank, where there is one, and return them."""
    if weighting is None:
        return None
    row = outputs_on_set(model, problem, weighting)
    weighting.bank.append(row)
    return row


def _train_one_epoch(member: Member, problem: Problem, store: Store, weighting: WeightingSet | None) -> Epoch:
    start = time.perf_counter()
    losses = train_epoch(member, problem, weighting)
    if not (_finite(losses.loss, losses.diversity) and member.is_finite()):
        raise NonFiniteLossError(_explain(member, problem, losses.loss))
    correct = count_correct(member.model, problem)
    record = {
        "epoch": member.epoch + 1,
        "learning_rate": float(member.optimizer.param_groups[0]["lr"]),
        "loss": losses.loss,
        "diversity": losses.diversity,
        "validation_accuracy": None if correct is None else correct / len(problem.validation),
        "seconds": round(time.perf_counter() - start, 6),
    }
    member.end_epoch(record, correct)
    store.save_checkpoint(member.state())
    return Epoch(
        member=member.number,
        size=problem.size,
        epochs=problem.recipe.epochs,
        model=member.model,
        **record,  # type: ignore[arg-type]
    )


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
    remedies = ["a smaller lr", "warmup_epochs"]
    if strength:
        remedies.append("a smaller strength (lambda_M)")
    if strength and problem.configuration["distance"] == "logits":
        remedies.append("distance='probabilities', since the distance of logits has no bound")
    return (
        f"training left the range of numbers in member {member.number} of {problem.size}, epoch {member.epoch + 1}"
        f"{of_strength} (mean loss {loss}). Try {', or '.join(remedies)}. What was saved "
        "before this epoch is kept in run_dir, if there is one; the next try needs another"
    )
