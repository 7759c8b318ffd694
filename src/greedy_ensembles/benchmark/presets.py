"""Which OOD sets belong to an in-domain set, as the paper has them, or noise for data of one's own; how they are found.

A set that is not in the data folder leaves a hole in the table instead of an error, unless it was asked for by name.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from greedy_ensembles.checks import check_choice, check_kind
from greedy_ensembles.data import SETS, ImageSet, LabelledSet, TableSet, data_root, load, make_noise, read, read_table
from greedy_ensembles.data.image_set import Resize
from greedy_ensembles.data.noise import KINDS as NOISE
from greedy_ensembles.data.registry import find

_SYNTHETIC = ("bernoulli", "blobs", "gaussian", "uniform")
_MOST_NOISE = 2000  # images of a kind beside data of one's own
_STRETCH = 3.0  # how much wider than a column's own range uniform noise is
_SCENES = ("dtd", "lsun", "places365", "tiny_imagenet")

#: By in-domain set: the paper's OOD sets, synthetic ones first.
PRESETS: dict[str, tuple[str, ...]] = {
    "cifar10": (*_SYNTHETIC, "cifar100", "svhn", *_SCENES),
    "cifar100": (*_SYNTHETIC, "cifar10", "svhn", *_SCENES),
    "svhn": (*_SYNTHETIC, "cifar10", "cifar100", *_SCENES),
    "mnist": ("bernoulli", "gaussian", "uniform", "dtd", "fashion_mnist", "omniglot"),
}


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

    `shape` is that of the images that runs were trained on, where it is known; None: the set's own.
    """
    if not ood and dataset not in PRESETS:
        raise ValueError(f"there is no preset of OOD sets for {dataset}, only for {', '.join(PRESETS)}; name some sets")
    channels, size = (None, None) if shape is None else shape[:2]
    in_domain = load(dataset, "test", root, size, channels)
    if ood:
        return Bench(in_domain, load_named(ood, in_domain, root))
    return Bench(in_domain, *load_preset(dataset, in_domain, root))


def lay_out_own(in_domain: LabelledSet, ood: Sequence[str] = (), root: str | Path | None = None) -> Bench:
    """Return data of one's own, noise of as many inputs, up to 2,000 of each kind, and the OOD sets asked for."""
    count = min(len(in_domain), _MOST_NOISE)
    noise: dict[str, LabelledSet] = {}
    if isinstance(in_domain, TableSet):
        low, high = in_domain.rows.min(axis=0), in_domain.rows.max(axis=0)
        drawn = np.random.default_rng(0).uniform(-1, 1, (count, len(low)))
        rows = (low + high) / 2 + (high - low) * _STRETCH / 2 * drawn
        note = "each column uniform over three times its range"
        noise["uniform"] = in_domain.replace(rows=rows, labels=None, name="uniform", source="generated", note=note)
    else:
        channels, height, width = in_domain.inputs.shape[1:]
        for kind in _SYNTHETIC:
            made = make_noise(kind, count, size=max(height, width), channels=channels)
            noise[kind] = made.replace(images=made.images[:, :, :height, :width])
    return Bench(in_domain, {**noise, **load_named([name for name in ood if name not in noise], in_domain, root)})


def kind_of(name: str) -> str:
    """Return synthetic for noise that is made, natural for everything else (Omniglot and one's own sets among it)."""
    return "synthetic" if name in NOISE else "natural"


def load_preset(
    name: str, in_domain: ImageSet, root: str | Path | None = None
) -> tuple[dict[str, ImageSet], tuple[str, ...]]:
    """Return the OOD sets of a preset in the shape of the in-domain images, and the names of those that are missing.

    Args:
        name: one of `PRESETS`, which are called by their in-domain sets.
        in_domain: the images whose channels and size the sets are brought to.
        root: the data folder; None: the one that `ge.data.data_root` says.
    """
    check_choice("ood, the name of a preset,", name, PRESETS)
    check_kind("in_domain", in_domain, ImageSet, "an ImageSet")
    there = [entry for entry in PRESETS[name] if is_there(entry, root)]
    missing = tuple(entry for entry in PRESETS[name] if entry not in there)
    return {entry: load_ood(entry, in_domain, root) for entry in there}, missing


def load_named(names: Sequence[str], in_domain: LabelledSet, root: str | Path | None = None) -> dict[str, LabelledSet]:
    """Return sets that were asked for: names of data sets, or paths of folders, archives and arrays of one's own."""
    sets: dict[str, LabelledSet] = {}
    places: set[str | Path] = set()  # a path may be spelled in several ways
    known = {hashlib.sha256(one.tobytes()).digest() for one in in_domain.inputs} if names else set()
    for name in names:
        place = name if name in SETS else Path(name).expanduser().resolve()
        if place in places:
            raise ValueError(f"{name} is asked for twice as an OOD set")
        places.add(place)
        if name == in_domain.name:
            raise ValueError(f"{name} is the in-domain set; it cannot be out of its own distribution")
        found = _load_table(name, in_domain) if isinstance(in_domain, TableSet) else load_ood(name, in_domain, root)
        if both := sum(hashlib.sha256(one.tobytes()).digest() in known for one in found.inputs):
            found = found.with_note(f"{both:,} of these {len(found):,} {found.unit} are in {in_domain.name}, too")
        sets[name] = found
    return sets


def _load_table(name: str, in_domain: TableSet) -> TableSet:
    """Return the rows of a CSV file that has the columns of an in-domain table."""
    if not Path(name).expanduser().is_file():
        raise FileNotFoundError(f"there is no table {name}; OOD rows for a table come from a CSV file")
    return read_table(name, columns=in_domain.columns).replace(name=name)


def load_ood(name: str, in_domain: LabelledSet, root: str | Path | None = None, resize: Resize = "crop") -> ImageSet:
    """Return a set by name or path, resized (as `data.load` has it) to the shape of the in-domain images.

    A path keeps the spelling it was given in as its name, so that no picture of one's own passes for a published set.
    Pictures that cannot be read are left out, and the note says how many.
    """
    channels, size = in_domain.inputs.shape[1:3]
    if name in SETS and "test" not in SETS[name].counts:
        raise ValueError(
            f"{name} has no test split, but {', '.join(SETS[name].counts)}; evaluate it in Python, with "
            f"ge.benchmark.evaluate and sets of ge.data.load({name!r}, ...)"
        )
    if name in SETS:
        split = _split(name, data_root(root)) or "test"  # where neither is there, the error names the usual one
        images = load(name, split, root, size, channels, resize)
        counted = f"the test split, {len(images):,} images, where the paper counts the 73,257 of the train split"
        return images.with_note(counted if (name, split) == ("svhn", "test") else "")
    if not Path(name).expanduser().exists():
        check_choice(f"an OOD set that is not a path (there is no {name})", name, SETS)
    return read(Path(name).expanduser(), size, channels, resize, unreadable=[]).replace(name=name)


def is_there(name: str, root: str | Path | None = None) -> bool:
    """Say whether the benchmark finds a set in the data folder; noise is made, and always there."""
    return _split(name, data_root(root)) is not None


def _split(name: str, root: Path) -> str | None:
    """Return the split that the benchmark takes, None if it is not there.

    Of SVHN that is the train split, for the paper counts 73,257 images; AP would be another with a third of them.
    """
    splits = ("train", "test") if name == "svhn" else ("test",)
    entry = SETS[name]
    return next((split for split in splits if not entry.forms or find(entry, split, root)), None)
