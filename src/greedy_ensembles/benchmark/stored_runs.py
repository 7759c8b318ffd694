"""Runs to be evaluated, as they lie on disk: a run folder, or predictions that were packed elsewhere.

Either gives predictions, on the in-domain set first. Image sets are read once for all runs; predictions are kept in
`predictions/` beside each run's weights; an ensemble is in memory only while it predicts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from greedy_ensembles.benchmark.evaluation import Evaluation
from greedy_ensembles.benchmark.judging import judge
from greedy_ensembles.benchmark.packing import PackedPredictions, pack_predictions, unpack_predictions
from greedy_ensembles.benchmark.predictions import Predictions, predict
from greedy_ensembles.benchmark.presets import PRESETS, load_named, load_preset, noise_for
from greedy_ensembles.benchmark.runs import RunFacts, group
from greedy_ensembles.checks import check_choice
from greedy_ensembles.data import SETS, ImageSet, LabelledSet, load
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.inputs import as_tensor
from greedy_ensembles.runs import Run, load_run
from greedy_ensembles.runs.reading import KEPT
from greedy_ensembles.saving import read_held_out
from greedy_ensembles.storage import digest_of_tensor

#: From an ensemble, a set and a run's folder to what the members say of it.
Predict = Callable[[Ensemble, LabelledSet, Path], Predictions]


@dataclass(frozen=True)
class Bench:
    """The sets around one in-domain set, in memory; `missing` are those of a preset that could not be found."""

    in_domain: LabelledSet
    ood: Mapping[str, LabelledSet]
    missing: tuple[str, ...] = ()


def lay_out(
    dataset: str,
    ood: Sequence[str] = (),
    root: str | Path | None = None,
    shape: tuple[int, int, int] | None = None,
) -> Bench:
    """Return the test split of an in-domain set and the OOD sets asked for, or else those of its preset.

    Args:
        dataset: name of the in-domain set.
        ood: names or paths of OOD sets; empty: the preset's.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        shape: that of the images that runs were trained on, where it is known; None: the set's own.
    """
    if not ood and dataset not in PRESETS:
        raise ValueError(f"there is no preset of OOD sets for {dataset}, only for {', '.join(PRESETS)}; name some sets")
    channels, size = (None, None) if shape is None else shape[:2]
    in_domain = load(dataset, "test", root, size, channels)
    if ood:
        return Bench(in_domain, load_named(ood, in_domain, root))
    return Bench(in_domain, *load_preset(dataset, in_domain, root))


def lay_out_own(in_domain: LabelledSet, ood: Sequence[str] = (), root: str | Path | None = None) -> Bench:
    """Return data of one's own, noise, and the OOD sets asked for."""
    noise = noise_for(in_domain)
    return Bench(in_domain, {**noise, **load_named([name for name in ood if name not in noise], in_domain, root)})


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run that can be evaluated, from its folder or from packed predictions."""

    facts: RunFacts
    sets: tuple[tuple[str, int], ...]  #: names and counts of images, of the in-domain set first
    missing: tuple[str, ...]  #: sets that the preset has and we have not
    predictions: Callable[[], Iterator[Predictions]]  #: on each of the sets, in that order
    bench: Bench | None = None  #: the images; None: packed predictions come without


def kept_beside_the_run(batch_size: int | None = None, fresh: bool = False) -> Predict:
    """Return a way to predict that keeps what it computes in the run's folder; `fresh`: and reads nothing there."""
    return lambda ensemble, images, folder: predict(
        ensemble, images, batch_size=batch_size, cache=folder / "predictions", fresh=fresh
    )


def open_runs(
    paths: Sequence[Path],
    predict: Predict,
    *,
    ood: Sequence[str] = (),
    on: LabelledSet | None = None,
    make_model: ModelFactory | None = None,
    device: torch.device | str = "cpu",
    root: str | Path | None = None,
) -> list[StoredRun]:
    """Return runs that can be compared, or refuse them before anything is predicted.

    Args:
        paths: run folders, and files that `pack_predictions` wrote.
        predict: from an ensemble, an image set and a run's folder to predictions.
        ood: names or paths of OOD sets; empty: those of the in-domain set's preset, or all that were packed. Beside
            data of one's own there is always noise.
        on: labelled in-domain data; None: what runs on data of one's own held out, else the test split of a set with a
            name.
        make_model: of runs with a model of one's own.
        device: where the members go.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
    """
    packed = {path: unpack_predictions(path) for path in paths if path.suffix == ".npz" and path.is_file()}
    facts = {
        path: RunFacts(str(path), packed[path].information)
        if path in packed
        else facts_of(finished_run(path, make_model, device))
        for path in paths
    }
    if len(facts) < len(paths):
        raise ValueError(f"{next(path for path in paths if paths.count(path) > 1)} is named twice")
    own = on if on is not None else _held_out([path for path in paths if path not in packed])
    datasets = {"": ""} if on is not None else {run.dataset: run.source for run in facts.values()}
    if len(datasets) > 1:
        listed = ", ".join(f"{source} on {dataset}" for dataset, source in datasets.items())
        raise ValueError(f"runs must share their in-domain set to be compared; got {listed}")
    group(list(facts.values()))  # refuses runs that share members
    shape = _shape(list(facts.values()))
    bench = None
    if own is not None:
        bench = lay_out_own(own, ood, root)
    elif len(packed) < len(paths):
        dataset, source = next(iter(datasets.items()))
        if dataset not in SETS:
            raise ValueError(f"{source} was trained on {dataset} and held nothing out; name labelled data with --on")
        bench = lay_out(dataset, ood, root, shape)
    runs = [
        from_packed(facts[path], packed[path], ood)
        if bench is None or path in packed
        else from_folder(facts[path], bench, predict, make_model, device)
        for path in paths
    ]
    _check_same_sets(runs)
    return runs


def _held_out(folders: Sequence[Path]) -> LabelledSet | None:
    """Return what runs on data of one's own held out, which must be the same for all; None where none has anything."""
    found = {folder: read_held_out(folder) for folder in folders}
    digests = {
        folder: None if own is None else digest_of_tensor(as_tensor(own.inputs)) for folder, own in found.items()
    }
    if len(set(digests.values())) > 1:
        one, other = (
            next(f for f, d in digests.items() if d == each) for each in sorted(set(digests.values()), key=str)[:2]
        )
        raise ValueError(
            f"{one} and {other} did not hold out the same examples, so they cannot be compared on them; name labelled "
            "data that neither was trained on with --on"
        )
    return next(iter(found.values()), None)


def from_folder(
    facts: RunFacts,
    bench: Bench,
    predict: Predict,
    make_model: ModelFactory | None = None,
    device: torch.device | str = "cpu",
) -> StoredRun:
    """Return a run in its folder, to be evaluated on some image sets."""
    every = (bench.in_domain, *bench.ood.values())

    def predictions() -> Iterator[Predictions]:
        folder = Path(facts.source)
        ensemble = finished_run(folder, make_model, device).ensemble
        for images in every:
            try:
                made = predict(ensemble, images, folder)
            except ArithmeticError as error:  # weights that no training leaves
                raise ValueError(f"{folder} cannot be evaluated on {images.name}: {error}") from error
            yield made

    return StoredRun(facts, tuple((images.name, len(images)) for images in every), bench.missing, predictions, bench)


def from_packed(facts: RunFacts, packed: PackedPredictions, ood: Sequence[str] = ()) -> StoredRun:
    """Return a run of which predictions were packed; `ood` names those of its OOD sets that are asked for, else all."""
    by_name = {predictions.name: predictions for predictions in packed.ood}
    for name in ood:
        check_choice(f"ood (in {facts.source})", name, by_name)
    every = (packed.in_domain, *(by_name[name] for name in ood or by_name))
    missing = () if ood else packed.missing
    return StoredRun(facts, tuple((each.name, len(each)) for each in every), missing, lambda: iter(every))


def _shape(runs: Sequence[RunFacts]) -> tuple[int, int, int] | None:
    """Return the shape of the images that runs were trained on, where one of them tells it."""
    known = {run.image_shape: run.source for run in runs if run.image_shape is not None}
    if len(known) > 1:
        listed = ", ".join(f"{source} on {'x'.join(map(str, shape))}" for shape, source in known.items())
        raise ValueError(f"runs must be trained on images of one shape to be compared; got {listed}")
    return next(iter(known), None)


def _check_same_sets(runs: Sequence[StoredRun]) -> None:
    """Raise ValueError where packed predictions are on other sets than the rest."""
    (first, sets), *others = [(run.facts.source, _spelled(run)) for run in runs]
    for other, theirs in others:
        if theirs != sets:
            raise ValueError(
                f"runs must be compared on the same sets, but {first} has {sets}, and {other} {theirs}; "
                "name those that all have (--ood)"
            )


def _spelled(run: StoredRun) -> str:
    there = [f"{name} ({count:,})" for name, count in run.sets]
    return ", ".join([*there, *(f"no {name}" for name in run.missing)])


def finished_run(folder: Path, make_model: ModelFactory | None = None, device: torch.device | str = "cpu") -> Run:
    """Return a run whose members are all there, or refuse it."""
    run = load_run(folder, device=device).completed_by(make_model)
    if not run.finished:
        raise ValueError(f"{folder} has {len(run.members)} of {run.size} members; train the others first")
    return run


def facts_of(run: Run) -> RunFacts:
    """Return what is known of a run without its weights."""
    return RunFacts(str(run.folder), {key: run.information.get(key) for key in KEPT})


def evaluate_run(run: StoredRun, score: str) -> Evaluation:
    """Evaluate a run, from its folder or from packed predictions."""
    predictions = run.predictions()
    return judge(next(predictions), predictions, score=score, missing=run.missing)


def ood_images(runs: Sequence[StoredRun]) -> dict[str, Bytes]:
    """Return the OOD images by name, where one of the runs has them: packed predictions come without."""
    bench = next((run.bench for run in runs if run.bench is not None), None)
    return {} if bench is None else {n: each.images for n, each in bench.ood.items() if isinstance(each, ImageSet)}


def pack_run(run: StoredRun, file: str | Path) -> list[Path]:
    """Write a run's predictions to files that can be moved and evaluated elsewhere."""
    predictions = run.predictions()
    return pack_predictions(
        file, next(predictions), predictions, missing=run.missing, information=run.facts.information
    )
