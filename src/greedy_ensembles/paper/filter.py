"""A part of a study, chosen by options; and its tiny version, which has all its steps and no meaning."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.paper.study import Case, Section, Study

_QUICK: dict[str, Any] = {"model": "PreResNet8", "size": 2, "epochs": 1}
_QUICK_STRENGTHS = 2

Item = TypeVar("Item")


def filter_study(
    study: Study,
    *,
    models: Sequence[str] = (),
    size: int | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    strengths: Sequence[float] = (),
) -> Study:
    """Return the study with some of its networks, another number of seeds or epochs, and so on.

    Args:
        study: The whole of it.
        models: Names of networks; none: all of them.
        size: One of the study's sizes, or another one where the study has one size alone.
        seeds: How many repetitions.
        epochs: Of training. Targets are those of the paper's sizes and epochs, and go with them.
        strengths: Values of lambda_M in the place of those of each section; Deep Ensembles stay.
    """
    for model in models:
        check_choice("--model", model, list(dict.fromkeys(case.model for case in study.cases)))
    if models:
        study = study.with_cases(lambda case: [case] if case.model in models else [])
    if size is not None:
        study = _of_size(study, size)
    if strengths:
        study = _of_strengths(study, strengths)
    if epochs is not None:
        check_count("--epochs", epochs, least=1)
        if any(case.published_epochs != epochs for case in study.cases):
            study = _without_targets(study)
        study = study.with_cases(lambda case: [dataclasses.replace(case, epochs=epochs)])
    if seeds is not None:
        check_count("--seeds", seeds, least=1)
        study = dataclasses.replace(study, seeds=seeds)
    return study


def _of_size(study: Study, size: int) -> Study:
    check_count("--size", size, least=1)
    sizes = list(dict.fromkeys(case.size for case in study.cases))
    if size in sizes:
        return study.with_cases(lambda case: [case] if case.size == size else [])
    if len(sizes) > 1:
        raise ValueError(f"--size must be one of the study's sizes, {', '.join(map(str, sizes))}, got {size}")
    resized = _without_targets(study.with_cases(lambda case: [dataclasses.replace(case, size=size)]))
    titles = (section.title.replace(f"M = {sizes[0]}", f"M = {size}") for section in resized.sections)
    named = (dataclasses.replace(own, title=title) for own, title in zip(resized.sections, titles, strict=True))
    return dataclasses.replace(resized, sections=tuple(named))


def _without_targets(study: Study) -> Study:
    sections = (dataclasses.replace(section, targets=()) for section in study.sections)
    return dataclasses.replace(study, sections=tuple(sections))


def _of_strengths(study: Study, strengths: Sequence[float]) -> Study:
    for strength in strengths:
        if not 0 < strength < math.inf:
            raise ValueError(f"--strengths must be numbers above 0, got {strength:g}; Deep Ensembles are there anyway")

    def changed(case: Case) -> Iterable[Case]:
        if case.strength is None:
            return [case]
        return [dataclasses.replace(case, strength=strength) for strength in strengths]

    return study.with_cases(changed)


def quick(study: Study, seeds: int = 2) -> Study:
    """Return the tiny version of a study: the smallest network, M = 2, one epoch, two values of lambda_M."""
    sections: dict[tuple[tuple[Case, ...], bool], Section] = {}
    for section in study.with_cases(lambda case: [dataclasses.replace(case, **_QUICK)]).sections:
        strengths = list(dict.fromkeys(case.strength for case in section.cases if case.strength is not None))
        kept = (None, *strengths[:_QUICK_STRENGTHS])
        cases = tuple(case for case in section.cases if case.strength in kept)  # of every p*
        title = f"{cases[0].dataset}, quick {len(sections) + 1}"
        small = dataclasses.replace(section, title=title, cases=cases, targets=())
        sections.setdefault((cases, section.curve), small)  # sections that have become the same are shown once
    return dataclasses.replace(study, sections=tuple(sections.values()), seeds=seeds)


def only(items: Sequence[Item], part: str) -> list[Item]:
    """Return the N-th of K parts, for "N/K": items N, N + K, N + 2K, ..., counted from 1.

    >>> only("abcdefg", "2/3")
    ['b', 'e']
    """
    number, slash, parts = part.partition("/")
    if not slash or not number.isdecimal() or not parts.isdecimal() or not 1 <= int(number) <= int(parts):
        raise ValueError(f"--only must be N/K, the N-th of K parts, as in 1/3; got {part!r}")
    return list(items[int(number) - 1 :: int(parts)])
