"""Runs to be evaluated, as they lie on disk: a run folder, or predictions that were packed elsewhere.

Image sets are read once for all runs; an ensemble is in memory only while it predicts. Which examples a run held out
follows from the labels, the share and the seed; that the data are the same, from their hash in run.json.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from greedy_ensembles.benchmark.evaluation import Evaluation, InDomain
from greedy_ensembles.benchmark.judging import judge
from greedy_ensembles.benchmark.packing import PackedPredictions, pack_predictions, unpack_predictions
from greedy_ensembles.benchmark.predictions import Predictions, predict
from greedy_ensembles.benchmark.presets import Bench, lay_out, lay_out_own
from greedy_ensembles.benchmark.runs import RunFacts, check_strength_alone_differs, group
from greedy_ensembles.benchmark.selection import Trial
from greedy_ensembles.checks import check_choice
from greedy_ensembles.data import SETS, ImageSet, LabelledSet, TableSet, load
from greedy_ensembles.data.image_set import Bytes
from greedy_ensembles.engines.execution import as_device
from greedy_ensembles.ensemble import Ensemble, ModelFactory
from greedy_ensembles.inputs import as_tensor
from greedy_ensembles.runs import Run, load_run
from greedy_ensembles.runs.configuration import KEPT
from greedy_ensembles.saving import HELD_OUT, VALIDATION, read_held_out
from greedy_ensembles.storage import digest_of_tensor
from greedy_ensembles.sweeps.executor import Executor, Hear, Here, Job
from greedy_ensembles.training.validate import as_examples, split

SPLITS = ("validation", "test")
NO_TEST = "test examples: lambda_M is chosen on them, so that figures on them are no test of the choice"
#: From an ensemble, a set and a run's folder to what the members say of it.
Predict = Callable[[Ensemble, LabelledSet, Path], Predictions]


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

    Paths are of run folders, and of files that `pack_predictions` wrote. Without `ood`, OOD sets are those of the
    in-domain set's preset, or all that were packed; beside data of one's own there is always noise. Without `on`,
    in-domain data are what runs on data of one's own held out, else the test split of a set with a name.
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
        _check_same_names([facts[path] for path in paths if path not in packed])
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
    by_content = {
        "" if own is None else "".join(digest_of_tensor(as_tensor(each)) for each in (own.inputs, own.labels)): folder
        for folder, own in found.items()
    }
    if len(by_content) > 1:
        one, other = sorted(by_content.values())[:2]
        raise ValueError(
            f"{one} and {other} did not hold out the same examples, so they cannot be compared on them; name labelled "
            "data that neither was trained on with --on"
        )
    return next(iter(found.values()), None)


def _check_same_names(runs: Sequence[RunFacts]) -> None:
    """Refuse runs whose classes or columns differ: a label, or a number of a row, would mean another thing to each."""
    for key in ("classes", "columns"):
        known: dict[tuple[str, ...], str] = {}
        for run in runs:
            data = run.information["data"]  # of whoever wrote it
            names = data.get(key) if isinstance(data, Mapping) else None
            known.setdefault(tuple(map(str, names)) if isinstance(names, list) else (), run.source)
        if len(known) > 1:
            listed = " and ".join(
                f"{', '.join(names) or 'without names'} in {source}" for names, source in list(known.items())[:2]
            )
            raise ValueError(
                f"runs must have the same {key}, in the same order, to be judged on the same data; they are {listed}. "
                "Name such runs one at a time"
            )


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
    known = {run.image_shape: run.source for run in runs if run.image_shape is not None}
    if len(known) > 1:
        listed = ", ".join(f"{source} on {'x'.join(map(str, shape))}" for shape, source in known.items())
        raise ValueError(f"runs must be trained on images of one shape to be compared; got {listed}")
    return next(iter(known), None)


def _check_same_sets(runs: Sequence[StoredRun]) -> None:
    """Raise ValueError where packed predictions are on other sets than the rest."""
    told = [
        ", ".join([*(f"{name} ({count:,})" for name, count in run.sets), *(f"no {name}" for name in run.missing)])
        for run in runs
    ]
    for run, sets in zip(runs, told, strict=True):
        if sets != told[0]:
            raise ValueError(
                f"runs must be compared on the same sets, but {runs[0].facts.source} has {told[0]}, and "
                f"{run.facts.source} {sets}; name those that all have (--ood)"
            )


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


def images_of(runs: Sequence[StoredRun]) -> dict[str, Bytes]:
    """Return the images of all sets by name, where one of the runs has them: packed predictions come without."""
    bench = next((run.bench for run in runs if run.bench is not None), None)
    every = () if bench is None else (bench.in_domain, *bench.ood.values())
    return {each.name: each.images for each in every if isinstance(each, ImageSet)}


def pack_run(run: StoredRun, file: str | Path) -> list[Path]:
    """Write a run's predictions to files that can be moved and evaluated elsewhere."""
    predictions = run.predictions()
    return pack_predictions(
        file, next(predictions), predictions, missing=run.missing, information=run.facts.information
    )


def training_images(facts: RunFacts, root: str | Path | None = None) -> ImageSet:
    """Return the images that a run was trained on, the held-out ones among them, or refuse other ones."""
    known = facts.information["data"]
    images, count = load(facts.dataset, "train", root).replace(note=known["note"]), int(known["images"])
    if count < len(images):
        images = images.take(np.arange(count))
    if as_examples(images).digest() != facts.configuration["data"]:
        raise ValueError(
            f"{facts.source} was trained on other images than those of {images.source} (their hashes differ), so what "
            "it held out cannot be known; name the data folder that it was trained from"
        )
    return images


def held_out(facts: RunFacts, images: ImageSet) -> ImageSet:
    """Return those of its training images that a run held out."""
    share = facts.configuration["validation"]
    if not share or images.labels is None:
        raise ValueError(f"{facts.source} held out no validation images; there is nothing to choose lambda_M on")
    if isinstance(share, str):
        raise ValueError(f"{facts.source} had validation data of its own, which it does not keep; name the images")
    _, indices = split(torch.from_numpy(images.labels), share, facts.seed)
    return images.take(indices.numpy()).replace(name=f"{images.name}, held out")


def _kept(facts: RunFacts, split: str) -> ImageSet | TableSet:
    found = read_held_out(Path(facts.source), HELD_OUT if split == "test" else VALIDATION)
    if found is None:
        raise ValueError(
            f"{facts.source} keeps no {split} part of what it was trained on; `greedy-ensembles train` keeps it, and "
            "ge.select chooses lambda_M for any data, in Python"
        )
    return found.with_note(NO_TEST) if split == "test" else found


def try_strengths(
    folders: Sequence[Path],
    predict: Predict,
    *,
    split: str = "validation",
    make_model: ModelFactory | None = None,
    device: torch.device | str | None = "cpu",
    root: str | Path | None = None,
    executor: Executor | None = None,
    hear: Hear = lambda run, event: None,
) -> tuple[list[Trial], InDomain, list[RunFacts]]:
    """Return the in-domain figures of each strength over its seeds, those of one run, for the set, and all runs.

    Runs may differ in lambda_M and seed alone; Deep Ensembles must be among them, and two seeds of each. `split` is
    "validation", what each run held out, or "test". `hear` is called with the name of a run once it is predicted.
    """
    check_choice("split", split, SPLITS)
    facts = [facts_of(finished_run(folder, make_model)) for folder in folders]
    groups = list(group(facts).values())
    check_strength_alone_differs(groups)
    images: dict[str, ImageSet | TableSet]
    if facts[0].dataset not in SETS:
        images = {run.source: _kept(run, split) for run in facts}
    elif split == "test":
        test = load(facts[0].dataset, "test", root).with_note(NO_TEST).with_note(facts[0].training_note)
        images = {run.source: test for run in facts}
    else:
        every = training_images(facts[0], root)
        images = {run.source: held_out(run, every) for run in facts}
    jobs: dict[str, Job] = {
        source: partial(_judge, Path(source).absolute(), predict, own, make_model, device)
        for source, own in images.items()
    }
    results: dict[str, InDomain] = (executor or Here()).run(jobs, hear)
    trials = []
    for own in groups:
        sources = [run.source for run in own]
        labels = [np.asarray(images[source].labels) for source in sources]
        trials.append(Trial.of(own[0].strength, [results[source] for source in sources], labels))
    return trials, results[facts[0].source], [run for repetitions in groups for run in repetitions]


def _judge(
    folder: Path,
    predict: Predict,
    images: LabelledSet,
    make_model: ModelFactory | None,
    device: torch.device | str | None,
    tell: Callable[[None], None],
) -> InDomain:
    ensemble = finished_run(folder, make_model, as_device(device)).ensemble
    found = judge(predict(ensemble, images, folder), []).in_domain
    tell(None)
    return found
