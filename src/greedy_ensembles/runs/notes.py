"""What a training says of itself: data, method and accuracy, on the card of its ensemble; and which members failed."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from greedy_ensembles.method import Coupling

#: A member is weak where it is this much below another, and chance alone would show such a gap in one of 300 ensembles.
GAP, CHANCE = 0.02, 1 / 300
_RIGHT = 0.1  # of the loss of guessing among equal classes: below that, a guess is nearly right


class WeakMemberWarning(UserWarning):
    """A member is clearly less accurate than the best one, or its training failed."""


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

    `validation` is the share of the examples that was held out; None: data of their own. `at_once` members trained
    together, if that is known.
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


def clearly_below(accuracy: float, other: float, held_out: int, comparisons: int) -> bool:
    """Say whether an accuracy on held-out examples is below another by more than chance explains, and by two points.

    The arcsine of the root of a share of n has a standard error of about 1 / (2 root n), whatever the share. Two such
    figures are compared, as one of so many pairs that each could have been the one told of (Bonferroni).

    >>> clearly_below(0.84, 0.98, held_out=100, comparisons=10), clearly_below(0.93, 0.98, held_out=100, comparisons=10)
    (True, False)
    """
    if not held_out or other - accuracy < GAP:
        return False
    low, high = (math.asin(math.sqrt((share * held_out + 3 / 8) / (held_out + 3 / 4))) for share in (accuracy, other))
    deviations = NormalDist().inv_cdf(1 - CHANCE / comparisons / 2)
    return high - low > deviations * math.sqrt(2) / (2 * math.sqrt(held_out))


def weak_members(members: Sequence[Mapping[str, Any]], held_out: int) -> str:
    """Return who is clearly below the best member on the held-out examples, which an ensemble's mean hides; or "".

    >>> facts = [{"number": 1, "validation_accuracy": 0.93}, {"number": 2, "validation_accuracy": 0.71}]
    >>> weak_members(facts, held_out=1000)
    'member 2 is right on 71.00% of the 1,000 held-out examples, and the best member on 93.00%'
    """
    known = {m["number"]: found for m in members if (found := m.get("validation_accuracy")) is not None}
    best, pairs = max(known.values(), default=0.0), math.comb(len(known), 2)
    weak = {n: accuracy for n, accuracy in known.items() if clearly_below(accuracy, best, held_out, pairs)}
    if not weak:
        return ""
    each = ", ".join(f"{accuracy:.2%}" for accuracy in weak.values())
    who = f"{_told(list(weak))} {'is' if len(weak) == 1 else 'are'}"
    return f"{who} right on {each} of the {held_out:,} held-out examples, and the best member on {best:.2%}"


def guessing(counts: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """Return the mean cross-entropy of the best guess that looks at no input, from the count of each class.

    `weights` are the sum of each class's weights; None: examples weigh 1.

    >>> round(guessing([50, 50]), 3), round(guessing([50, 50], [100.0, 0.0]), 3)
    (0.693, 0.0)
    """
    masses = [float(mass) for mass in (counts if weights is None else weights)]
    return sum(mass * math.log(sum(masses) / mass) for mass in masses if mass) / sum(counts)


def exploded_members(
    members: Sequence[Mapping[str, Any]],
    counts: Sequence[int],
    held_out: int = 0,
    *,
    long: bool = True,
    weights: Sequence[float] | None = None,
) -> str:
    """Return whose mean loss of the last epoch is more than five times that of guessing among equal classes; or "".

    Of a short training, whose last epoch may hold its first steps, it is told where accuracy is that of guessing, too.
    `long`: it had a hundred steps, or twenty epochs. Counts and weights are as `guessing` takes them.

    >>> exploded_members([{"number": 1, "last_loss": 13797.0}, {"number": 2, "last_loss": 0.2}], [50, 50])
    'the loss of member 1 exploded: at the end its mean is 13797, and that of guessing 0.693'
    """
    weight = 1.0 if weights is None else sum(weights) / sum(counts)
    losses, at_chance = _last_losses(members), _at_chance(members, counts, held_out)
    exploded = [n for n, loss in losses.items() if loss > 5 * math.log(len(counts)) * weight]
    exploded = [n for n in exploded if long or (held_out and n in at_chance)]
    if not exploded:
        return ""
    worst, guessed = max(losses[number] for number in exploded), guessing(counts, weights)
    at_the_end = f"at the end its mean is {worst:.5g}, and that of guessing {guessed:.3g}"
    return f"the loss of {_told(exploded)} exploded: {at_the_end}"


def idle_members(
    members: Sequence[Mapping[str, Any]],
    counts: Sequence[int],
    held_out: int,
    *,
    long: bool = True,
    weights: Sequence[float] | None = None,
) -> str:
    """Return who has learnt next to nothing; or "".

    The loss is not below that of guessing by 1 %, and accuracy, where it is known, is not above the share of the most
    frequent class by two standard errors. Short trainings are not judged, nor are those where weights make a guess
    nearly right. Arguments are as `exploded_members` takes them.
    """
    losses, guessed, at_chance = _last_losses(members), guessing(counts, weights), _at_chance(members, counts, held_out)
    if weights is not None and guessed < _RIGHT * math.log(len(counts)) * sum(weights) / sum(counts):
        return ""
    idle = [n for n, loss in losses.items() if loss >= 0.99 * guessed > 0 and n in at_chance]
    if not idle or not long:
        return ""
    best = min(losses[number] for number in idle)
    at_the_end = f"at the end the mean loss is {best:.3g}, and that of guessing {guessed:.3g}"
    return f"{_told(idle)} learnt next to nothing: {at_the_end}"


def _at_chance(members: Sequence[Mapping[str, Any]], counts: Sequence[int], held_out: int) -> set[int]:
    """Return whose accuracy is not above the share of the most frequent class by two standard errors, or not known."""
    most = max(counts) / sum(counts)
    bound = most + 2 * math.sqrt(most * (1 - most) / held_out) if held_out else 1.0
    return {member["number"] for member in members if (member.get("validation_accuracy") or 0.0) <= bound}


def _last_losses(members: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    return {member["number"]: member["last_loss"] for member in members if member.get("last_loss") is not None}


def _told(numbers: Sequence[int]) -> str:
    return ("members " if len(numbers) > 1 else "member ") + ", ".join(map(str, numbers))


def _data(data: Mapping[str, Any] | None) -> str:
    if not data:
        return "arrays, which have no name"
    note = f" ({data['note']})" if data.get("note") else ""
    unit = "rows" if "rows" in data else "images"
    return f"{data['name']}, {data[unit]:,} {unit}{note}"


def non_finite(number: int, size: int, epoch: int, loss: float, coupling: Coupling, distance: str, scale: str) -> str:
    """Return what is said of a training that left the range of numbers; `scale` is advice on that of the inputs."""
    coupled = coupling.sees == "all" or (coupling.sees == "earlier" and number > 1)
    remedies = ["a smaller lr", "warmup_epochs"]
    if coupled:
        remedies.insert(0, "a smaller strength (lambda_M)")
    if coupled and distance == "logits":
        remedies.append("distance='probabilities', since the distance of logits has no bound")
    at = "" if coupling.sees == "none" else f" at lambda_M = {coupling.strength:g}"
    return (
        f"training left the range of numbers in member {number} of {size}, epoch {epoch}{at} (mean loss {loss}). Try "
        f"{scale or ', or '.join(remedies)}. What was saved before this epoch is kept in the run folder, if there is "
        "one; the next try needs another"
    )
