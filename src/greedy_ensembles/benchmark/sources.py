"""Runs to be evaluated, as they lie on disk: a run folder, or predictions that were packed elsewhere.

Either gives a stream of predictions, on the in-domain set first. Image sets are read once for all runs; predictions
are kept in `predictions/` beside each run's weights; an ensemble is in memory only while its stream runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from greedy_ensembles.benchmark.evaluation import Evaluation, judge
from greedy_ensembles.benchmark.predictions import Predictions, predict
from greedy_ensembles.benchmark.presets import PRESETS, load_named, load_preset
from greedy_ensembles.benchmark.runs import KEPT, RunFacts, group
from greedy_ensembles.benchmark.transport import PackedPredictions, pack_predictions, unpack_predictions
from greedy_ensembles.checks import check_choice
from greedy_ensembles.data import ImageSet, load
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.training import Run, load_run

#: From an ensemble, an image set and a run's folder to what the members say of it.
Predict = Callable[[Ensemble, ImageSet, Path], Predictions]


@dataclass(frozen=True)
class Bench:
    """The image sets of one in-domain set, in memory; `missing` are those of a preset that could not be found."""

    in_domain: ImageSet
    ood: dict[str, ImageSet]
    missing: tuple[str, ...] = ()


def lay_out(
    dataset: str,
    ood: Sequence[str] = (),
    root: str | Path | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Bench:
    """Return the test split of an in-domain set and the OOD sets asked for, or else those of its preset.

    `shape` is that of the images that runs were trained on, where it is known; else it is the set's own.
    """
    if not ood and dataset not in PRESETS:
        raise ValueError(f"there is no preset of OOD sets for {dataset}, only for {', '.join(PRESETS)}; name some sets")
    channels, size = (None, None) if shape is None else shape[:2]
    in_domain = load(dataset, "test", root, size, channels)
    if ood:
        return Bench(in_domain, load_named(ood, in_domain, root))
    return Bench(in_domain, *load_preset(dataset, in_domain, root))


class Source(Protocol):
    """Something that can be evaluated."""

    @property
    def facts(self) -> RunFacts:
        """What is known of the run."""
        ...

    def predictions(self) -> Iterator[Predictions]:
        """Return the predictions on the in-domain set, and then on each OOD set."""
        ...

    @property
    def sets(self) -> list[tuple[str, int]]:
        """The names and counts of images of what `predictions` are on."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of sets that the preset has and we have not."""
        ...


@dataclass(frozen=True)
class FolderSource:
    """A run folder, with the image sets that it is to be evaluated on."""

    facts: RunFacts
    bench: Bench
    load: Callable[[], Ensemble]
    predict: Predict

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of sets that the preset has and the data folder has not."""
        return self.bench.missing

    @property
    def sets(self) -> list[tuple[str, int]]:
        """The names and counts of the image sets."""
        return [(images.name, len(images)) for images in (self.bench.in_domain, *self.bench.ood.values())]

    def predictions(self) -> Iterator[Predictions]:
        """Return the predictions on the in-domain set, and then on each OOD set."""
        ensemble = self.load()
        for images in (self.bench.in_domain, *self.bench.ood.values()):
            yield self.predict(ensemble, images, Path(self.facts.source))


@dataclass(frozen=True)
class PackedSource:
    """A file of packed predictions; `ood` names those of its OOD sets that are asked for, all if it is empty."""

    facts: RunFacts
    packed: PackedPredictions
    ood: Sequence[str] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The names of sets that the preset has and that were not there when the predictions were packed."""
        return () if self.ood else self.packed.missing

    def predictions(self) -> Iterator[Predictions]:
        """Return the predictions on the in-domain set, and then on each OOD set."""
        by_name = {predictions.name: predictions for predictions in self.packed.ood}
        for name in self.ood:
            check_choice(f"ood (in {self.facts.source})", name, by_name)
        return iter([self.packed.in_domain, *(by_name[name] for name in self.ood or by_name)])

    @property
    def sets(self) -> list[tuple[str, int]]:
        """The names and counts of images of what was packed, and is asked for."""
        return [(predictions.name, len(predictions)) for predictions in self.predictions()]


def kept_beside_the_run(batch_size: int | None = None) -> Predict:
    """Return a way to predict that keeps what it computes in the run's folder."""
    return lambda ensemble, images, folder: predict(
        ensemble, images, batch_size=batch_size, cache=folder / "predictions"
    )


def open_sources(
    paths: Sequence[Path],
    predict: Predict,
    *,
    ood: Sequence[str] = (),
    make_model: ModelFactory | None = None,
    device: torch.device | str = "cpu",
    root: str | Path | None = None,
) -> list[Source]:
    """Return runs that can be compared, from folders and packed files, or refuse them before anything is predicted."""
    packed = {path: unpack_predictions(path) for path in paths if path.suffix == ".npz"}
    facts = {
        path: RunFacts(str(path), packed[path].information)
        if path in packed
        else facts_of(open_run(path, make_model, device))
        for path in paths
    }
    if len(facts) < len(paths):
        raise ValueError(f"{next(path for path in paths if paths.count(path) > 1)} is named twice")
    datasets = {run.dataset: run.source for run in facts.values()}
    if len(datasets) > 1:
        listed = ", ".join(f"{source} on {dataset}" for dataset, source in datasets.items())
        raise ValueError(f"runs must share their in-domain set to be compared; got {listed}")
    group(list(facts.values()))  # refuses runs that share members
    shape = _shape(list(facts.values()))
    bench = lay_out(next(iter(datasets)), ood, root, shape) if len(packed) < len(paths) else None
    sources: list[Source] = []
    for path in paths:
        if bench is None or path in packed:
            sources.append(PackedSource(facts[path], packed[path], ood))
        else:
            sources.append(FolderSource(facts[path], bench, partial(_ensemble, path, make_model, device), predict))
    _check_same_sets(sources)
    return sources


def _shape(runs: Sequence[RunFacts]) -> tuple[int, int, int] | None:
    """Return the shape of the images that runs were trained on, where one of them tells it."""
    known = {run.image_shape: run.source for run in runs if run.image_shape is not None}
    if len(known) > 1:
        listed = ", ".join(f"{source} on {'x'.join(map(str, shape))}" for shape, source in known.items())
        raise ValueError(f"runs must be trained on images of one shape to be compared; got {listed}")
    return next(iter(known), None)


def _check_same_sets(sources: Sequence[Source]) -> None:
    """Raise ValueError where packed predictions are on other sets than the rest."""
    (first, sets), *others = [(source.facts.source, _spelled(source)) for source in sources]
    for other, theirs in others:
        if theirs != sets:
            raise ValueError(
                f"runs must be compared on the same sets, but {first} has {sets}, and {other} {theirs}; "
                "name those that all have (--ood)"
            )


def _spelled(source: Source) -> str:
    there = [f"{name} ({count:,})" for name, count in source.sets]
    return ", ".join([*there, *(f"no {name}" for name in source.missing)])


def open_run(folder: Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu") -> Run:
    """Return a run whose members are all there, or refuse it."""
    run = load_run(folder, device=device).completed_by(make_model)
    if not run.finished:
        raise ValueError(f"{folder} has {len(run.members)} of {run.size} members; train the others first")
    return run


def _ensemble(folder: Path, make_model: ModelFactory | None, device: torch.device | str) -> Ensemble:
    return open_run(folder, make_model, device).ensemble


def facts_of(run: Run) -> RunFacts:
    """Return what is known of a run without its weights."""
    return RunFacts(str(run.folder), {key: run.information.get(key) for key in KEPT})


def evaluate_source(source: Source, score: str) -> Evaluation:
    """Evaluate a run, from its folder or from packed predictions."""
    stream = source.predictions()
    return judge(next(stream), stream, score=score, missing=source.missing)


def ood_images(sources: Sequence[Source]) -> dict[str, Bytes]:
    """Return the OOD images by name, where one of the sources has them: packed predictions come without."""
    bench = next((source.bench for source in sources if isinstance(source, FolderSource)), None)
    return {} if bench is None else {name: images.images for name, images in bench.ood.items()}


def pack_source(source: Source, file: str | Path) -> list[Path]:
    """Write a run's predictions to files that can be moved and evaluated elsewhere."""
    stream = source.predictions()
    return pack_predictions(file, next(stream), stream, missing=source.missing, information=source.facts.information)
