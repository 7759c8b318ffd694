"""Data that is read while it is trained on: DataLoaders, streams, and Datasets whose items workers read.

An epoch of a member is one fresh ``iter(loader)``. All random numbers that are drawn for it, in this process or in a
worker, depend on the member's seed and the epoch alone, so that a run goes on bit for bit where it was interrupted, and
members that train together do not share an iterator. What cannot be read whole is known by a bounded sample.
"""

import hashlib
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)
from torch.utils.data import get_worker_info as worker_info

from greedy_ensembles.forms import Form, form_of, joined
from greedy_ensembles.generators import (
    READ,
    Generators,
    generator,
    own_generators,
    seed_generators,
    seed_own_generators,
)
from greedy_ensembles.inputs import Inputs, as_entries, concatenate, each, entries, split_labels
from greedy_ensembles.storage import digest_of_tensor
from greedy_ensembles.training.examples import (
    ArrayExamples,
    DatasetExamples,
    Examples,
    as_labels,
    digest_of_inputs,
    stacked,
)
from greedy_ensembles.training.recipe import Recipe

_SAMPLE, _BYTES = 4096, 1 << 26  # examples, and their size, that stand for data that is not read whole
_CPU = torch.device("cpu")
_PLAIN_SAMPLERS = (SequentialSampler, RandomSampler)


class Iteration(Iterator[Any]):
    """A fresh iteration over a loader, begun when the first batch is asked for; its random numbers are of the keys."""

    def __init__(self, loader: "DataLoader[Any]", seed: int, epoch: int = 0) -> None:
        self._loader, self._epoch = loader, epoch
        self._seed = generator(READ, seed, epoch).initial_seed() % 2**32
        self._own = own_generators(loader)
        self._states: tuple[Generators, list[Any]] | None = None
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        with self._at_work():
            if self._iterator is None:
                for part in (self._loader.sampler, self._loader.batch_sampler, self._loader.dataset):
                    if callable(set_epoch := getattr(part, "set_epoch", None)):
                        set_epoch(self._epoch)
                self._iterator = iter(self._loader)
            return next(self._iterator)

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Lend the iteration all generators, as it left them: the global ones, and those that the loader keeps."""
        outside = self._current()
        if self._states is None:
            seed_generators(self._seed, host_alone=True)
            for one in self._own:
                seed_own_generators(one, self._seed)
        else:
            self._restore(self._states)
        try:
            yield
        finally:
            self._states = self._current()
            self._restore(outside)

    def _current(self) -> tuple[Generators, list[Any]]:
        return Generators.current(_CPU), [_state(one) for one in self._own]

    def _restore(self, states: tuple[Generators, list[Any]]) -> None:
        states[0].restore(_CPU)
        for one, state in zip(self._own, states[1], strict=True):
            _set_state(one, state)


def _state(one: Any) -> Any:
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    return one.getstate() if isinstance(one, random.Random) else one.get_state()


def _set_state(one: Any, state: Any) -> None:
    if isinstance(one, np.random.Generator):
        one.bit_generator.state = state
    elif isinstance(one, random.Random):
        one.setstate(state)
    else:
        one.set_state(state)


class LoaderExamples(Examples):
    """What a DataLoader gives: read batch by batch in every epoch, and known by a sample, whose labels it has."""

    off_device = "a DataLoader is read batch by batch; give data as a pair of arrays"
    indexed = False

    def __init__(
        self, loader: "DataLoader[Any]", name: str, seed: int, steps: int | None = None, targets: str = "classes"
    ) -> None:
        self.loader, self._name, self._targets = loader, name, targets
        self.steps = _steps(loader, name, steps)
        sample = [self._parts(batch) for batch in self._read_sample(seed)]
        if not sample:
            raise ValueError(f"{name} gives no batch; training needs examples")
        self._sample = [inputs for inputs, _ in sample]
        self.labels = torch.cat([labels for _, labels in sample])
        self.form = self._form(self._sample)
        open_sides = any(None in one.shape for _, one in entries(self.form))
        self.one_shape = loader.collate_fn is default_collate and not open_sides
        self.batch_size = loader.batch_size or len(sample[0][1])
        most = self.steps * self.batch_size
        counted = type(loader.batch_sampler) is BatchSampler and not isinstance(loader.dataset, IterableDataset)
        self._count = min(len(loader.sampler), most) if counted else most  # type: ignore[arg-type]
        parts = (digest_of_inputs(inputs) + digest_of_tensor(labels) for inputs, labels in sample)
        known = f"{self._count} {self.steps} {self.batch_size} " + " ".join(parts)
        self._digest = hashlib.sha256(known.encode()).hexdigest()

    def _read_sample(self, seed: int) -> Iterator[Any]:
        """Return batches of a seeded sample: of all items, or where a sampler of one's own chooses, its first ones."""
        loader = self.loader
        if type(loader.batch_sampler) is BatchSampler and type(loader.sampler) in _PLAIN_SAMPLERS:
            items: Any = loader.dataset
            chosen = random.Random(seed).sample(range(len(items)), min(len(items), _SAMPLE))
            size = loader.batch_size or 1
            loader = DataLoader(
                items,
                batch_sampler=[chosen[first : first + size] for first in range(0, len(chosen), size)],
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                worker_init_fn=loader.worker_init_fn,
            )
        rows = size = 0
        for batch in Iteration(loader, seed):
            yield batch
            inputs, labels = self._parts(batch)
            rows, size = rows + len(labels), size + sum(one.nbytes for _, one in entries(inputs))
            if rows >= _SAMPLE or size >= _BYTES:
                return

    def _parts(self, batch: Any) -> tuple[Inputs, Tensor]:
        """Return inputs and labels of a batch, or refuse it."""
        x, labels = split_labels(batch, f"batches of {self._name} must be (inputs, labels), one of them")
        labels = as_labels(labels, self._name, self._targets)
        inputs = as_entries(tuple(x) if isinstance(x, list) else x)
        for name, one in entries(inputs):
            if one.ndim < (2 if isinstance(inputs, Tensor) else 1) or len(one) != len(labels):
                raise ValueError(
                    f"{name} in a batch of {self._name} must have shape ({len(labels)}, ...), a row a label; "
                    f"got {tuple(one.shape)}"
                )
        return inputs, labels

    def _form(self, batches: Sequence[Inputs]) -> Form:
        """Return the form of several batches; sides that differ are open."""
        form: Form | None = getattr(self, "form", None)
        for inputs in batches:
            found: Form = each(form_of, inputs)
            form = found if form is None else _opened(form, found, self._name)
        assert form is not None
        return form

    @property
    def count(self) -> int:
        """How many examples an epoch has."""
        return self._count

    def inputs(self, indices: Tensor) -> Inputs:
        """Refuse: a loader has no indices."""
        raise TypeError(f"{self._name} is a DataLoader, whose examples have no indices")

    def chunks(self, rows: int | None = None) -> Iterator[Inputs]:
        """Return the sample, batch by batch."""
        yield from self._sample

    def digest(self) -> str:
        """Return a hash of the length and the sample."""
        return self._digest

    def default_samples(self, count: int) -> int:
        """Return the size of the sample."""
        return len(self.labels)

    def epoch(self, train: Tensor, seeds: Sequence[int], number: int, size: int) -> list[Any]:
        """Return every member's iterator of batches, once a step."""
        alone = self.count % self.batch_size == 1 < self.batch_size and self.steps > 1  # the last batch
        return [[self._batches(seed, number) for seed in seeds]] * (self.steps - alone)

    def ordered(self, indices: Tensor, rows: int) -> list[Any]:
        """Return an iterator of all batches, once a batch."""
        return [self._batches(0, 0)] * self.steps

    def _batches(self, seed: int, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        for batch in Iteration(self.loader, seed, epoch):
            inputs, labels = self._parts(batch)
            known, found = dict(entries(self.form)), dict(entries(inputs))
            if known.keys() != found.keys() or not all(
                own.dtype == found[name].dtype and own.fits(found[name].shape[1:]) for name, own in known.items()
            ):
                self.form = self._form([inputs])
            yield inputs, labels

    def whole(self) -> ArrayExamples:
        """Return all that one iteration gives, held in memory."""
        inputs, labels = zip(*self._batches(0, 0), strict=True)
        if any(None in one.shape for _, one in entries(self.form)):
            raise ValueError(
                f"batches of {self._name} have inputs of several lengths, and are held together here; pad them to one"
            )
        x = concatenate(inputs)
        return ArrayExamples(x, torch.cat(labels), each(form_of, x))

    def why_not_put_back(self) -> str | None:
        """Return why an epoch cannot be begun anew after an interruption, or None."""
        if self.loader.persistent_workers:
            return "persistent workers keep their random numbers from one epoch to the next; let workers end"
        first, again = (digest_of_inputs(next(self._batches(0, 0))[0]) for _ in range(2))
        if first != again:
            return "two iterations with the same seed begin with different batches; a Dataset can be put back"
        return None


def _steps(loader: "DataLoader[Any]", name: str, asked: int | None) -> int:
    try:
        found = len(loader)
    except TypeError:
        found = None
    if found is None and asked is None:
        what = "Recipe(steps_per_epoch=...)" if name == "data" else "a Dataset with a length"
        raise ValueError(f"{name} is a stream without a length; it needs {what}")
    if found is not None and asked is not None and asked > found:
        raise ValueError(f"steps_per_epoch is {asked}, and {name} has {found} batches")
    return asked or found or 0


def _opened(form: Form, other: Form, name: str) -> Form:
    """Return the form of both, with sides open where they differ, or refuse two that are no one data set's."""
    known, found = dict(entries(form)), dict(entries(other))
    for place, own in known.items():
        given = found.get(place)
        if given is None or given.dtype != own.dtype or len(given.shape) != len(own.shape) or len(known) != len(found):
            raise ValueError(f"batches of {name} differ in more than their lengths: {own} and {given} in {place}")
    return each(joined, form, other)  # type: ignore[no-any-return]


class WorkedExamples(DatasetExamples):
    """A Dataset whose items workers read, at the start and in every epoch."""

    def __init__(
        self, dataset: "Dataset[Any]", seed: int, workers: int, name: str = "data", targets: str = "classes"
    ) -> None:
        self._workers = workers
        super().__init__(dataset, seed, name, targets)

    def _items(self, seed: int) -> Iterator[Any]:
        together = [range(first, min(first + 64, self._length())) for first in range(0, self._length(), 64)]
        for items in Iteration(self._loader(together, list), seed):
            yield from items

    def _loader(self, batches: Sequence[Sequence[int]], collate: Any) -> "DataLoader[Any]":
        how = {"num_workers": self._workers, "collate_fn": collate, "worker_init_fn": _seed_worker}
        return DataLoader(self.dataset, batch_sampler=batches, **how)  # type: ignore[arg-type]

    def _read(self, batches: Sequence[Tensor], seed: int, epoch: int) -> Iterator[tuple[Inputs, Tensor]]:
        loader = self._loader([batch.tolist() for batch in batches], list)
        for indices, items in zip(batches, Iteration(loader, seed, epoch), strict=True):
            parts = (self._parts(item, int(at))[0] for item, at in zip(items, indices, strict=True))
            yield stacked(parts), self.labels[indices]

    def epoch(self, train: Tensor, seeds: Sequence[int], number: int, size: int) -> list[Any]:
        """Return every member's iterator of batches, once a step."""
        batches = super().epoch(train, seeds, number, size)
        return [[self._read([b[k] for b in batches], seed, number) for k, seed in enumerate(seeds)]] * len(batches)

    def ordered(self, indices: Tensor, rows: int) -> list[Any]:
        """Return an iterator of these examples in order, once a batch."""
        batches = indices.split(rows)
        return [self._read(batches, 0, 0)] * len(batches)


def _seed_worker(_: int) -> None:
    """Give the generators that a Dataset keeps another seed in every worker; the global ones have one."""
    worker = worker_info()
    assert worker is not None
    seed_own_generators(worker.dataset, worker.seed % 2**32)


def being_read(data: Any, name: str, seed: int, recipe: Recipe, targets: str) -> Examples | None:
    """Return what is read while it is trained on: streams, loaders, and Datasets that workers read; None of others.

    Args:
        data: as `ge.fit` takes it.
        name: what messages call it; "data" is what is learnt from.
        seed: for the generators that a Dataset has of its own.
        recipe: how it is read.
        targets: what inputs have, "classes" or "labels".
    """
    workers, steps = recipe.num_workers, recipe.steps_per_epoch if name == "data" else None
    if isinstance(data, IterableDataset):
        data, workers = DataLoader(data, batch_size=recipe.batch_size, num_workers=workers), 0
    if isinstance(data, DataLoader):
        if workers and name == "data":
            raise ValueError(f"num_workers is {workers}, and a DataLoader has its own; leave it out of the recipe")
        return LoaderExamples(data, name, seed, steps, targets)
    if steps is not None:
        raise ValueError(f"steps_per_epoch is {steps}, and is for a DataLoader or a stream; got {type(data).__name__}")
    if workers and isinstance(data, Dataset) and type(data) is not TensorDataset:
        return WorkedExamples(data, seed, workers, name, targets)
    if workers and name == "data":
        raise ValueError(f"num_workers is {workers}, and is for a Dataset; got {type(data).__name__}")
    return None
