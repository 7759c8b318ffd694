"""What a training says of itself: data, method and accuracy, on the card of its ensemble; and which members failed."""

from collections.abc import Mapping, Sequence
from typing import Any

_ENOUGH = 100  # held-out examples to tell a member from chance


def training_notes(
    method: str,
    schedule: str,
    seed: int,
    validation: float | None,
    data: Mapping[str, Any] | None,
    members: Sequence[Mapping[str, Any]],
    at_once: int | None = None,
) -> dict[str, str]:
    """Return lines by title.

    Args:
        method: its label and strength.
        schedule: its name.
        seed: of the run.
        validation: the share of the examples that was held out; None: data of their own.
        data: as `describe_data` has it.
        members: their facts.
        at_once: how many members trained together, if that is known.
    """
    before = sum(member.get("origin") == "earlier" for member in members)
    groups = f" in groups of {at_once}" if at_once and at_once < len(members) - before else ""
    notes = {"Data": _data(data), "Training": f"{method}; {schedule} schedule{groups}, seed {seed}"}
    if before:
        notes["Training"] += f"; {before} of the members were there before, from elsewhere"
    accuracies = [found for member in members if (found := member.get("validation_accuracy")) is not None]
    if accuracies:
        low, high = min(accuracies), max(accuracies)
        each = f"{low:.2%}" if low == high else f"{low:.2%} to {high:.2%}"
        whom = "a member that was trained here" if before else "a member"
        on = "data of their own" if validation is None else f"{validation:.0%} of the examples, held out"
        notes["Validation accuracy"] = f"{each} {whom}, on {on}"
    return notes


def idle_members(members: Sequence[Mapping[str, Any]], classes: int, held_out: int) -> str:
    """Return who learnt next to nothing while others learnt much, which the mean of an ensemble hides; or nothing.

    Next to nothing: less than a tenth of what the best has over chance. Much: a third of all there is. Of few held-out
    examples neither can be told.

    >>> facts = [{"number": 1, "validation_accuracy": 0.93}, {"number": 2, "validation_accuracy": 0.11}]
    >>> idle_members(facts, classes=10, held_out=1000)
    'member 2 learnt next to nothing: it is right on 11.00% of the held-out examples, and the best member on 93.00%'
    """
    chance = 1 / classes
    above = {
        member["number"]: found - chance
        for member in members
        if (found := member.get("validation_accuracy")) is not None
    }
    best = max(above.values(), default=0.0)
    idle = [number for number, gain in above.items() if gain < 0.1 * best]
    if held_out < _ENOUGH or not idle or best < (1 - chance) / 3:
        return ""
    most = max(above[number] for number in idle) + chance
    who = f"member {idle[0]} learnt" if len(idle) == 1 else f"members {', '.join(map(str, idle))} learnt"
    right = f"it is right on {most:.2%}" if len(idle) == 1 else f"they are right on {most:.2%} at most"
    return f"{who} next to nothing: {right} of the held-out examples, and the best member on {best + chance:.2%}"


def _data(data: Mapping[str, Any] | None) -> str:
    if not data:
        return "arrays, which have no name"
    note = f" ({data['note']})" if data.get("note") else ""
    return f"{data['name']}, {data['images']:,} images{note}"
