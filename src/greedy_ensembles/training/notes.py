"""What a training says of itself on the card of its ensemble: data, method, and accuracy on held-out examples."""

from collections.abc import Mapping, Sequence
from typing import Any


def training_notes(
    configuration: Mapping[str, Any], data: Mapping[str, Any] | None, members: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """Return lines by title, from a run's configuration, its data as `describe_data` has it, and its members' facts."""
    notes = {"Data": _data(data), "Training": _training(configuration)}
    before = sum(member.get("origin") == "earlier" for member in members)
    if before:
        notes["Training"] += f"; {before} of the members were there before, from elsewhere"
    accuracies = [found for member in members if (found := member.get("validation_accuracy")) is not None]
    if accuracies:
        low, high = min(accuracies), max(accuracies)
        each = f"{low:.2%}" if low == high else f"{low:.2%} to {high:.2%}"
        share = float(configuration["validation"])
        whom = "a member that was trained here" if before else "a member"
        notes["Validation accuracy"] = f"{each} {whom}, on {share:.0%} of the examples, held out"
    return notes


def _data(data: Mapping[str, Any] | None) -> str:
    if not data:
        return "arrays, which have no name"
    note = f" ({data['note']})" if data.get("note") else ""
    return f"{data['name']}, {data['images']:,} images{note}"


def _training(configuration: Mapping[str, Any]) -> str:
    strength = configuration["strength"]
    method = "Deep Ensembles" if not strength else f"greedy, lambda_M = {strength:g}"
    return f"{method}; {configuration['schedule']} schedule, seed {configuration['seed']}"
