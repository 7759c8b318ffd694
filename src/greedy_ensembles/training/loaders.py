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
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data import get_worker_info as worker_info

from greedy_ensembles.forms import Form, InputForm, are_alike, form_of, joined
from greedy_ensembles.generators import (
    READ,
    Generators,
    generator,
    own_generators,
    seed_generators,
    seed_own_generators,
)
from greedy_ensembles.inputs import Inputs, as_entries, concatenate, each, entries
from greedy_ensembles.labels import as_labels, split_labels
from greedy_ensembles.storage import digest_of_tensor
from greedy_ensembles.training.examples import (
    ArrayExamples,
    DatasetExamples,
    Examples,
    digest_of_inputs,
)

_SAMPLE, _BYTES = 4096, 1 << 26  # examples, and their size, that stand for data that is not read whole
_CPU = torch.device("cpu")
_PLAIN_SAMPLERS = (SequentialSampler, RandomSampler)


class Iteration(Iterator[Any]):
    """A fresh iteration over a loader, begun at the first batch; its random numbers depend on seed and epoch alone."""

    def __init__(self, loader: "DataLoader[Any]", seed: int, epoch: int = 0) -> None:
        self._loader, self._epoch = loader, epoch
        self._seed = generator(READ, seed, epoch).initial_seed() % 2**32
        self._own = own_generators(loader)
        self._states: tuple[Generators, list[Any]] | None = None
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        with self._generators():
            if self._iterator is None:
                for part in (self._loader.sampler, self._loader.batch_sampler, self._loader.dataset):
                    if callable(set_epoch := getattr(part, "set_epoch", None)):
                        set_epoch(self._epoch)
                self._iterator = iter(self._loader)
            return next(self._iterator)

    @contextmanager
    def _generators(self) -> Iterator[None]:
        """Give the global generators, and those that the loader keeps, the states of this iteration in the block."""
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
            if isinstance(one, np.random.Generator):
                one.bit_generator.state = state
            elif isinstance(one, random.Random):
                one.setstate(state)
            else:
                one.set_state(state)


def _state(one: Any) -> Any:
    if isinstance(one, np.random.Generator):
        return one.bit_generator.state
    return one.getstate() if isinstance(one, random.Random) else one.get_state()


class LoaderExamples(Examples):
    """The examples of a DataLoader, read batch by batch in every epoch; form, labels and checksum are of a sample."""

    off_device = "a DataLoader is read batch by batch; give data as a pair of arrays"
    indexed = False

    def __init__(
        self, loader: "DataLoader[Any]", name: str, steps: int | None = None, targets: str = "classes"
    ) -> None:
        self.loader, self._name, self._targets = loader, name, targets
        self.steps = _steps(loader, name, steps)
        sample = list(self._read_sample())
        if not sample:
            raise ValueError(f"{name} gives no batch; training needs examples")
        self._sample = [inputs for inputs, _ in sample]
        self.labels = torch.cat([labels for _, labels in sample])
        self.form = each(form_of, self._sample[0])
        for inputs in self._sample[1:]:
            self._extend_form(inputs)
        open_sides = any(None in one.shape for _, one in entries(self.form))
        self.one_shape = loader.collate_fn is default_collate and not open_sides
        self.batch_size = loader.batch_size or len(sample[0][1])
        most = self.steps * self.batch_size
        items: Any = loader.dataset if isinstance(loader.dataset, IterableDataset) else loader.sampler
        counted = type(loader.batch_sampler) is BatchSampler and hasattr(items, "__len__")
        self._count = min(len(items), most) if counted else most
        parts = (digest_of_inputs(inputs) + digest_of_tensor(labels) for inputs, labels in sample)
        known = f"{self._count} {self.steps} {self.batch_size} " + " ".join(parts)
        self._digest = hashlib.sha256(known.encode()).hexdigest()

    def _read_sample(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Return batches of a sample of all items, with the user's own sampler of the first ones."""
        loader = self.loader
        if type(loader.batch_sampler) is BatchSampler and type(loader.sampler) in _PLAIN_SAMPLERS:
            items: Any = loader.dataset
            chosen = random.Random(0).sample(range(len(items)), min(len(items), _SAMPLE))
            size = loader.batch_size or 1
            loader = DataLoader(
                items,
                batch_sampler=[chosen[first : first + size] for first in range(0, len(chosen), size)],
                num_workers=loader.num_workers,
                collate_fn=loader.collate_fn,
                worker_init_fn=loader.worker_init_fn,
            )
        rows = size = 0
        for batch in Iteration(loader, 0):
            inputs, labels = self._split_batch(batch)
            yield inputs, labels
            rows, size = rows + len(labels), size + sum(one.nbytes for _, one in entries(inputs))
            if rows >= _SAMPLE or size >= _BYTES:
                return

    def _split_batch(self, batch: Any) -> tuple[Inputs, Tensor]:
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

    def _extend_form(self, inputs: Inputs) -> None:
        """Widen the form to these inputs: sides that differ become open; other entries or types are refused."""
        form: Form = each(form_of, inputs)
        known, found = dict(entries(self.form)), dict(entries(form))
        for place in known | found:
            expected, given = known.get(place), found.get(place)
            kinds = [one and (one.dtype, len(one.shape)) for one in (expected, given)]  # None: it is missing
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"batches of {self._name} differ in more than their lengths: {expected} and {given} in {place}"
                )
        self.form = each(joined, self.form, form)

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
            inputs, labels = self._split_batch(batch)
            if not are_alike(self.form, each(lambda one: InputForm(tuple(one.shape[1:]), one.dtype), inputs)):
                self._extend_form(inputs)
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

    def why_not_resumable(self) -> str | None:
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


class WorkedExamples(DatasetExamples):
    """A Dataset that is read in iterations of their own, at the start and in every epoch.

    Workers read it, or this process where it keeps random numbers of its own: every iteration then begins with those of
    its seed and epoch, so that training can be resumed, and members that train together do not share them.
    """

    def __init__(self, dataset: Any, name: str, targets: str, workers: int) -> None:
        self._workers = workers
        super().__init__(dataset, name, targets)

    def _items(self) -> Iterator[Any]:
        positions = range(len(self.dataset))
        batches = [positions[at : at + 64] for at in positions[::64]]
        for items in Iteration(self._loader(batches, self._workers), 0):
            yield from items

    def _loader(self, batches: Sequence[Sequence[int]], workers: int) -> "DataLoader[Any]":
        how = {"num_workers": workers, "collate_fn": list, "worker_init_fn": _seed_worker}
        return DataLoader(self.dataset, batch_sampler=batches, **how)  # type: ignore[arg-type]

    def inputs(self, indices: Tensor) -> Inputs:
        """Return the inputs at these indices, read anew in this process, with the same random numbers every time."""
        return next(self._read([indices], 0, 0, workers=0))[0]

    def _read(
        self, batches: Sequence[Tensor], seed: int, epoch: int, workers: int | None = None
    ) -> Iterator[tuple[Inputs, Tensor]]:
        loader = self._loader([batch.tolist() for batch in batches], self._workers if workers is None else workers)
        for indices, items in zip(batches, Iteration(loader, seed, epoch), strict=True):
            yield self._stacked(items, indices), self.labels[indices]

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
