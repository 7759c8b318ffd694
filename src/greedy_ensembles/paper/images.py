"""The image sets of a job: what it trains on, what p* is made of, and what it is judged on.

Each is read once and kept, for many jobs share them. Under the quick protocol all are cut short, and an in-domain set
that is missing gets a stand-in, which says what it is in its name, so that no table can pass for the real one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from greedy_ensembles.benchmark.presets import PRESETS, is_there, load_ood
from greedy_ensembles.benchmark.stored_runs import Bench
from greedy_ensembles.data import SETS, ImageSet, data_root, load, make_noise
from greedy_ensembles.data.cifar import SEVERITIES
from greedy_ensembles.data.noise import COUNT
from greedy_ensembles.data.noise import KINDS as NOISE
from greedy_ensembles.data.registry import find
from greedy_ensembles.method.weighting import FromData, Gaussian, Uniform, Weighting
from greedy_ensembles.paper.corruptions import can_generate, generated
from greedy_ensembles.paper.study import Case, Protocol, Study

#: Images of the quick protocol.
TRAIN, TEST, OOD = 200, 100, 50
CORRUPTED = "cifar10c"
#: What the name of a p* may be beside that of a data set.
WEIGHTINGS = ("wrap", "clip", "none", "uniform")


@dataclass
class Sets:
    """The image sets in a data folder, under a protocol."""

    protocol: Protocol
    root: Path | None = None
    _kept: dict[tuple[str, str], ImageSet] = field(default_factory=dict)
    _benches: dict[str, Bench] = field(default_factory=dict)

    def train(self, dataset: str) -> ImageSet:
        """Return the training images of an in-domain set."""
        return self._load(dataset, "train", TRAIN)

    def test(self, dataset: str) -> ImageSet:
        """Return the test images of an in-domain set."""
        return self._load(dataset, "test", TEST)

    def weighting(self, case: Case) -> Weighting | None:
        """Return p*; None for Deep Ensembles."""
        if case.strength is None:
            return None
        images = self.train(case.dataset)
        if self.protocol.quick and case.weighting not in WEIGHTINGS:
            channels, size = images.images.shape[1:3]
            return FromData(self._load(*split_of(case.weighting), TRAIN).resized(size).with_channels(channels).images)
        return named_weighting(case.weighting, images, self.root)

    def bench(self, dataset: str) -> Bench:
        """Return the test images of an in-domain set, and those of its OOD sets that are there."""
        if dataset not in self._benches:
            in_domain = self.test(dataset)
            there = [name for name in PRESETS[dataset] if is_there(name, self.root)]
            missing = tuple(name for name in PRESETS[dataset] if name not in there)
            ood = {name: self._ood(name, in_domain) for name in there}
            self._benches[dataset] = Bench(in_domain, ood, missing)
        return self._benches[dataset]

    def corruptions(self) -> Iterator[tuple[str, ImageSet]]:
        """Yield the corrupted sets, one after the other, with their names: corruption/severity.

        They are those of CIFAR-10-C that are there. Without any, others are made, whose names say so.
        """
        found = [name for name in SETS[CORRUPTED].counts if find(SETS[CORRUPTED], name, data_root(self.root))]
        for name in (f"{name}/{severity}" for name in found for severity in SEVERITIES):
            yield name, self._cut(load(CORRUPTED, name, self.root), OOD)
        if not found and self.protocol.quick:
            for severity in SEVERITIES:
                yield f"stand-in noise/{severity}", _noisy(self.test("cifar10"), severity)
        elif not found:
            yield from generated(self.test("cifar10"), self.root)

    def _ood(self, name: str, in_domain: ImageSet) -> ImageSet:
        limit = OOD if self.protocol.quick else self.protocol.ood_images
        if name in NOISE and limit is not None and limit < COUNT:  # the first images of a longer set are the same
            channels, size = in_domain.images.shape[1:3]
            noise = make_noise(name, limit, size=size, channels=channels)
            return noise.with_note(_first(limit, COUNT))
        images = load_ood(name, in_domain, self.root)
        return images if limit is None else cut(images, limit)

    def _load(self, dataset: str, split: str, limit: int) -> ImageSet:
        if (dataset, split) not in self._kept:
            self._kept[dataset, split] = self._read(dataset, split, limit)
        return self._kept[dataset, split]

    def _read(self, dataset: str, split: str, limit: int) -> ImageSet:
        if self.protocol.quick and find(SETS[dataset], split, data_root(self.root)) is None:
            return stand_in(dataset, split, limit)
        return self._cut(load(dataset, split, self.root), limit)

    def _cut(self, images: ImageSet, limit: int) -> ImageSet:
        return cut(images, limit) if self.protocol.quick else images


def cut(images: ImageSet, limit: int) -> ImageSet:
    """Return the first images of a set, with a note that they are but some."""
    if len(images) <= limit:
        return images
    labels = None if images.labels is None else images.labels[:limit]
    return images.replace(images=images.images[:limit], labels=labels).with_note(_first(limit, len(images)))


def _first(limit: int, count: int) -> str:
    return f"the first {limit:,} images of {count:,}"


def _noisy(images: ImageSet, severity: int) -> ImageSet:
    """Return images with noise, in the place of corrupted ones that are missing."""
    noise = np.random.default_rng(severity).normal(0, 20 * severity, images.images.shape)
    return images.replace(images=(images.images + noise).clip(0, 255).astype(np.uint8))


def stand_in(dataset: str, split: str, count: int) -> ImageSet:
    """Return noisy grey levels, one for each class, in the shape of a set that is missing."""
    channels, size = (1, 28) if dataset in ("mnist", "fashion_mnist") else (3, 32)
    rng = np.random.default_rng([len(dataset), split == "train"])
    labels = np.arange(count) % 10
    levels = 20 * labels[:, None, None, None] + rng.integers(0, 60, (count, channels, size, size))
    classes = tuple(f"grey level {label}" for label in range(10))
    note = f"a stand-in made of grey levels: {dataset} is not there"
    return ImageSet(levels.astype(np.uint8), labels, f"{dataset} (stand-in)", classes, "made in memory", note)


def needs(case: Case, study: Study) -> list[tuple[str, str]]:
    """Return the sets, with their splits, that a case of a study cannot do without."""
    pairs = [(case.dataset, "train"), (case.dataset, "test")]
    if case.strength is not None and case.weighting not in WEIGHTINGS:
        pairs.append(split_of(case.weighting))
    return pairs + [(CORRUPTED, "fog")] * (study.corruptions and not can_generate())


def missing(case: Case, study: Study, root: Path | None = None) -> list[str]:
    """Return those of the needed sets that are not in the data folder."""
    folder = data_root(root)
    return list(dict.fromkeys(name for name, split in needs(case, study) if find(SETS[name], split, folder) is None))


def named_weighting(name: str, data: ImageSet, root: str | Path | None = None) -> Weighting:
    """Return p* for some training images: noise about them, or the images of another set in their shape.

    name : one of WEIGHTINGS; or a data set, whose train split is taken where it has one; or set/split.
    """
    if name == "uniform":
        return Uniform(0.0, 255.0, data.images.shape[1:])
    if name in WEIGHTINGS:
        return Gaussian.from_data(data.images, overflow=name)  # type: ignore[arg-type]
    dataset, split = split_of(name)
    channels, size = data.images.shape[1:3]
    return FromData(load(dataset, split, root, size, channels).images)


def split_of(name: str) -> tuple[str, str]:
    """Return the data set and the split that a weighting of images names.

    >>> split_of("cifar10"), split_of("svhn/test"), split_of("omniglot")
    (('cifar10', 'train'), ('svhn', 'test'), ('omniglot', 'test'))
    """
    dataset, _, split = name.partition("/")
    if dataset not in SETS:
        raise ValueError(f"--weighting must be one of {', '.join(WEIGHTINGS)} or a data set, got {name!r}")
    return dataset, split or ("train" if "train" in SETS[dataset].counts else "test")
