"""What a study is: data. Which ensembles are trained, in which sections their figures stand, and what is expected.

A study names the cases, a `Protocol` says how they are trained, and `jobs` gives one run for each case and seed, with a
name that a person can read. Two studies that want the same run have the same name for it, and share it.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from greedy_ensembles.checks import check_choice, check_count
from greedy_ensembles.data.image_set import Resize
from greedy_ensembles.training import Recipe

#: What tables call the method without a diversity term.
DEEP = "Deep Ensembles"
#: Seeds of repetitions are so far apart, whatever M: member k takes seed + k - 1, and repetitions that shared members
#: would hide their spread.
SPACING = 100
#: The paper's networks.
MODELS = ("PreResNet164", "VGG16BN", "WideResNet28x10")
#: OOD sets that may choose between ways to train or to score, by in-domain set.
NOISE = ("uniform", "bernoulli", "gaussian")
CHOOSING = {
    "cifar10": (*NOISE, "dtd", "svhn"),
    "svhn": (*NOISE, "dtd", "cifar10"),
    "mnist": (*NOISE, "dtd"),
}
#: How ours is trained, whatever the protocol. `p-star-batch` chose the batch.
OURS: dict[str, Any] = {"statistics": "batch", "schedule": "concurrent", "weighting_batch": 32}
#: The share of the training images that selects each member's best epoch.
VALIDATION = 0.1
_QUICK: dict[str, Any] = {"model": "PreResNet8", "size": 2, "epochs": 1}
_QUICK_STRENGTHS, _QUICK_BATCH = 2, 50

Item = TypeVar("Item")


@dataclass(frozen=True)
class Case:
    """One configuration, trained once for each seed."""

    dataset: str
    model: str
    size: int
    strength: float | None = None  #: lambda_M; None: Deep Ensembles
    weighting: str = "wrap"  #: p*, by its name (`images.named_weighting`); Deep Ensembles have none
    epochs: int | None = None  #: None: the paper's
    ours: bool = False  #: trained as `OURS` says, whatever the protocol
    images: int | None = None  #: the first so many training images alone; None: all
    batch: int | None = None  #: samples of p* a step; None: as the protocol says

    @property
    def method(self) -> str:
        """The method, as `ge.fit` calls it."""
        return "deep" if self.strength is None else "greedy"

    def recipe(self, **changes: Any) -> Recipe:
        """Return the paper's recipe, as long as the case has it; other networks are trained like PreResNet20."""
        row = self.model if self.dataset == "mnist" or self.model in MODELS else "PreResNet20"
        if self.epochs is not None:
            changes["epochs"] = self.epochs
        return Recipe.paper(self.dataset, row, **changes)

    @property
    def published_epochs(self) -> int:
        """For how many epochs the paper trains it."""
        return replace(self, epochs=None).recipe().epochs


@dataclass(frozen=True)
class Target:
    """What a section is to reach: at least `least`, or at least `gain` above Deep Ensembles."""

    metric: str  #: accuracy, nll (whose minus counts), auc, or auc_predictive_entropy
    sets: tuple[str, ...] = ()  #: OOD sets, each of which must reach it; none: all in the mean
    least: float | None = None
    gain: float | None = None
    mean: bool = False  #: whether it is the mean over the sets that must reach it


@dataclass(frozen=True)
class Section:
    """Cases that stand in one table: all of one data set, with Deep Ensembles among them."""

    title: str
    cases: tuple[Case, ...]
    targets: tuple[Target, ...] = ()
    curve: bool = False  #: whether figures are drawn against lambda_M, too

    def label(self, case: Case) -> str:
        """Return what tables of this section call a case."""
        if case.strength is None:
            return DEEP
        several = len({one.weighting for one in self.cases if one.strength is not None and not one.ours}) > 1
        p_star = f", p* = {case.weighting}" if several or case.weighting != "wrap" else ""
        return f"{'ours' if case.ours else 'greedy'}, lambda_M = {case.strength:g}{p_star}"

    @property
    def stem(self) -> str:
        """How the files of the section begin."""
        return re.sub(r"[^a-z0-9.]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Study:
    """A study of the paper, or one that it lacks."""

    name: str
    title: str
    paper: str  #: where the paper has it, in a few words
    sections: tuple[Section, ...]
    seeds: int = 5
    grid: tuple[float, ...] = ()  #: the values of lambda_M that the paper tried
    evaluated: bool = True  #: on OOD sets
    pictures: bool = False  #: curves, histograms and examples for every set
    radar: bool = False  #: AUC over the OOD sets as a radar plot, which the paper has of CIFAR-100
    corruptions: bool = False  #: figures on CIFAR-10-C as well
    remarks: tuple[str, ...] = ()  #: what the reader of its page must know
    #: For studies with settings of their own what to run, with a folder, whether to show progress, and their options.
    special: Callable[..., object] | None = None
    takes: tuple[str, str] = ("no data set", "a minute on a CPU")  #: what `--list` says of these

    @property
    def cases(self) -> tuple[Case, ...]:
        """All cases, each once."""
        return tuple(dict.fromkeys(case for section in self.sections for case in section.cases))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The in-domain sets."""
        return tuple(dict.fromkeys(case.dataset for case in self.cases))

    @property
    def timed(self) -> bool:
        """Whether it is about what training and prediction cost."""
        return not (self.evaluated or self.corruptions)

    def with_cases(self, change: Callable[[Case], Iterable[Case]]) -> "Study":
        """Return the study with each case replaced by those that `change` makes of it; empty sections are left out."""
        sections = []
        for section in self.sections:
            cases = tuple(dict.fromkeys(new for case in section.cases for new in change(case)))
            if cases:
                sections.append(replace(section, cases=cases))
        return replace(self, sections=tuple(sections))


@dataclass(frozen=True)
class Protocol:
    """How cases are trained and evaluated, whatever the study; the defaults are the paper's."""

    schedule: str = "sequential"
    precision: str = "float32"
    weighting_batch: int | None = None  #: samples of p* a step; None: as many as there are examples in it
    statistics: str = "running"  #: what BatchNorm normalises samples of p* by
    ood_images: int | None = None  #: the first so many of each OOD set alone
    three_channels: bool = False  #: whether grey images go in as three equal channels, as in the paper's code
    resize: Resize = "whole"  #: how pictures of OOD sets become small (`data.load`), where their originals are there
    quick: bool = False  #: few images, small batches, and stand-ins for sets that are missing

    @property
    def description(self) -> str:
        """The protocol in words, as pages say it."""
        batch = "as large as the training batch" if self.weighting_batch is None else f"of {self.weighting_batch}"
        by = "running statistics" if self.statistics == "running" else "the statistics of the step's examples"
        text = f"{self.schedule} schedule, {self.precision}, p* batches {batch}, normalised by {by}"
        if self == Protocol(ood_images=self.ood_images, three_channels=self.three_channels):
            text += " (as in the paper)"
        text += "; grey images in three channels" if self.three_channels else ""
        text += "; OOD pictures cropped and antialiased" if self.resize == "crop" else ""
        return text + (f"; at most {self.ood_images:,} images of each OOD set" if self.ood_images else "")


@dataclass(frozen=True)
class Job:
    """One run: a case, with a seed, under a protocol."""

    case: Case
    seed: int
    protocol: Protocol

    @property
    def name(self) -> str:
        """What its record is called: the run with its M, and on which OOD images it was judged, if not the paper's."""
        limit = self.protocol.ood_images
        name = self._named(f"M{self.case.size}") + ("-crop" if self.protocol.resize == "crop" else "")
        return name if limit is None else f"{name}-first{limit}"

    @property
    def run(self) -> str:
        """What its folder is called: without M for Deep Ensembles, which small ones are the first members of."""
        return self._named() if self.case.strength is None else self._named(f"M{self.case.size}")

    @property
    def recipe(self) -> Recipe:
        """How its members are trained."""
        changes: dict[str, Any] = {
            "precision": self.protocol.precision,
            "weighting_batch_size": self.protocol.weighting_batch,
            "weighting_statistics": self.protocol.statistics,
        }
        if self.protocol.quick:
            changes["batch_size"] = _QUICK_BATCH
        return self.case.recipe(**changes)

    def _named(self, *size: str) -> str:
        """Return what was asked for, where it is not the paper's own, and the seed."""
        case, protocol = self.case, self.protocol
        parts = [case.dataset, case.model, *size, case.method]
        if case.strength is not None:
            parts.append(f"{case.strength:g}")
            parts += [case.weighting.replace("/", "-")] * (case.weighting != "wrap")
            parts += [f"batch{protocol.weighting_batch}"] * (protocol.weighting_batch is not None)
            parts += [f"{protocol.statistics}-statistics"] * (protocol.statistics != "running")
        parts += ["3channels"] * (protocol.three_channels and case.dataset == "mnist")
        parts += [f"{case.images}images"] * (case.images is not None)
        parts += [f"{case.epochs}epochs"] * (case.epochs is not None)
        parts += [protocol.schedule] * (protocol.schedule != "sequential")
        parts += [protocol.precision] * (protocol.precision != "float32")
        return "-".join([*parts, f"seed{self.seed}"])


def jobs(study: Study, protocol: Protocol) -> list[Job]:
    """Return all runs of a study, the first seeds of all cases before the second, so that tables fill evenly."""
    ours = replace(protocol, **OURS)
    return [
        Job(case, number * max(SPACING, case.size), replace(own, weighting_batch=case.batch or own.weighting_batch))
        for number in range(study.seeds)
        for case, own in ((case, ours if case.ours else protocol) for case in study.cases)
    ]


def members_to_train(case: Case, study: Study) -> int:
    """Return how many members a run has: M, or the largest M of the study for Deep Ensembles.

    Their members have nothing to do with M, so those of a smaller M are the first of the same.
    """
    if case.strength is not None:
        return case.size
    return max(other.size for other in study.cases if replace(other, size=case.size) == case)


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

    The size is one of the study's, or another one where it has one alone. Targets are those of the paper's sizes and
    epochs, and go with them. Strengths take the place of those of each section; Deep Ensembles and ours stay.
    """
    for model in models:
        check_choice("--model", model, list(dict.fromkeys(case.model for case in study.cases)))
    if models:
        study = study.with_cases(lambda case: [case] if case.model in models else [])
    if size is not None:
        study = _of_size(study, size)
    for strength in strengths:
        if not 0 < strength < math.inf:
            raise ValueError(f"--strengths must be numbers above 0, got {strength:g}; Deep Ensembles are there anyway")
    if strengths:
        study = study.with_cases(
            lambda case: (
                [case] if case.method == "deep" or case.ours else [replace(case, strength=s) for s in strengths]
            )
        )
    if epochs is not None:
        check_count("--epochs", epochs, least=1)
        if any(case.published_epochs != epochs for case in study.cases):
            study = _without_targets(study)
        study = study.with_cases(lambda case: [replace(case, epochs=epochs)])
    if seeds is not None:
        check_count("--seeds", seeds, least=1)
        study = replace(study, seeds=seeds)
    return study


def _of_size(study: Study, size: int) -> Study:
    check_count("--size", size, least=1)
    sizes = list(dict.fromkeys(case.size for case in study.cases))
    if size in sizes:
        return study.with_cases(lambda case: [case] if case.size == size else [])
    if len(sizes) > 1:
        raise ValueError(f"--size must be one of the study's sizes, {', '.join(map(str, sizes))}, got {size}")
    resized = _without_targets(study.with_cases(lambda case: [replace(case, size=size)]))
    old, new = f"M = {sizes[0]}", f"M = {size}"
    named = (replace(section, title=section.title.replace(old, new)) for section in resized.sections)
    return replace(resized, sections=tuple(named))


def _without_targets(study: Study) -> Study:
    return replace(study, sections=tuple(replace(section, targets=()) for section in study.sections))


def quick(study: Study, seeds: int = 2) -> Study:
    """Return the tiny version of a study: the smallest network, M = 2, one epoch, two values of lambda_M."""
    sections: dict[tuple[tuple[Case, ...], bool], Section] = {}
    for section in study.with_cases(lambda case: [replace(case, **_QUICK)]).sections:
        strengths = list(dict.fromkeys(case.strength for case in section.cases if case.strength is not None))
        kept = (None, *strengths[:_QUICK_STRENGTHS])
        cases = tuple(case for case in section.cases if case.strength in kept)  # of every p*
        title = f"{cases[0].dataset}, quick {len(sections) + 1}"
        small = replace(section, title=title, cases=cases, targets=())
        sections.setdefault((cases, section.curve), small)  # sections that have become the same are shown once
    return replace(study, sections=tuple(sections.values()), seeds=seeds)


def only(items: Sequence[Item], part: str) -> list[Item]:
    """Return the N-th of K parts, for "N/K": items N, N + K, N + 2K, ..., counted from 1.

    >>> only("abcdefg", "2/3")
    ['b', 'e']
    """
    number, slash, parts = part.partition("/")
    if not slash or not number.isdecimal() or not parts.isdecimal() or not 1 <= int(number) <= int(parts):
        raise ValueError(f"--only must be N/K, the N-th of K parts, as in 1/3; got {part!r}")
    return list(items[int(number) - 1 :: int(parts)])
