"""A part of a study, chosen by options; and its tiny version, which has all its steps and no meaning."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.paper.runner import published_epochs
from greedy_ensembles.paper.study import Case, Section, Study

_QUICK = {"model": "PreResNet8", "size": 2, "epochs": 1}
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

    size : one of the study's sizes, or another one where the study has one size alone.
    strengths : values of lambda_M in the place of those of each section; Deep Ensembles stay.
    """
    if models:
        study = _of_models(study, models)
    if size is not None:
        study = _of_size(study, size)
    if strengths:
        study = _of_strengths(study, strengths)
    if epochs is not None:
        check_count("--epochs", epochs, least=1)
        if any(published_epochs(case) != epochs for case in study.cases):
            study = _without_targets(study)
        study = study.with_cases(lambda case: [dataclasses.replace(case, epochs=epochs)])
    if seeds is not None:
        check_count("--seeds", seeds, least=1)
        study = dataclasses.replace(study, seeds=seeds)
    return study


def _of_models(study: Study, models: Sequence[str]) -> Study:
    known = list(dict.fromkeys(case.model for case in study.cases))
    for model in models:
        check_choice("--model", model, known)
    return study.with_cases(lambda case: [case] if case.model in models else [])


def _of_size(study: Study, size: int) -> Study:
    check_count("--size", size, least=1)
    sizes = list(dict.fromkeys(case.size for case in study.cases))
    if size in sizes:
        return study.with_cases(lambda case: [case] if case.size == size else [])
    if len(sizes) > 1:
        raise ValueError(f"--size must be one of the study's sizes, {', '.join(map(str, sizes))}, got {size}")
    resized = _without_targets(study.with_cases(lambda case: [dataclasses.replace(case, size=size)]))
    sections = (
        dataclasses.replace(section, title=section.title.replace(f"M = {sizes[0]}", f"M = {size}"))
        for section in resized.sections
    )
    return dataclasses.replace(resized, sections=tuple(sections))


def _without_targets(study: Study) -> Study:
    """Return the study without what it is to reach, which is asked of the paper's own sizes and epochs."""
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
    small = study.with_cases(lambda case: [dataclasses.replace(case, **_QUICK)])  # type: ignore[arg-type]
    sections: dict[tuple[tuple[Case, ...], bool], Section] = {}
    for section in small.sections:
        cases = tuple(_few_strengths(section.cases))
        kept = dataclasses.replace(section, title=f"{cases[0].dataset}, quick", cases=cases, targets=())
        sections.setdefault((cases, section.curve), kept)  # sections that have become the same are shown once
    numbered = [
        dataclasses.replace(section, title=f"{section.title} {number}")
        for number, section in enumerate(sections.values(), start=1)
    ]
    return dataclasses.replace(small, sections=tuple(numbered), seeds=seeds)


def _few_strengths(cases: Sequence[Case]) -> Iterable[Case]:
    """Return the cases of Deep Ensembles, of every p*, and of the first values of lambda_M."""
    allowed = list(dict.fromkeys(case.strength for case in cases if case.strength is not None))[:_QUICK_STRENGTHS]
    return (case for case in cases if case.strength is None or case.strength in allowed)


def only(items: Sequence[Item], part: str) -> list[Item]:
    """Return the N-th of K parts, for "N/K": items N, N + K, N + 2K, ..., counted from 1.

    >>> only("abcdefg", "2/3")
    ['b', 'e']
    """
    number, slash, parts = part.partition("/")
    if not slash or not number.isdecimal() or not parts.isdecimal() or not 1 <= int(number) <= int(parts):
        raise ValueError(f"--only must be N/K, the N-th of K parts, as in 1/3; got {part!r}")
    return list(items[int(number) - 1 :: int(parts)])
