"""Weighting distributions p* by the names that studies and the command line use."""

from pathlib import Path

from greedy_ensembles.data import SETS, ImageSet, load
from greedy_ensembles.method.weighting import FromData, Gaussian, Uniform, Weighting

#: What a name may be beside that of a data set.
WEIGHTINGS = ("wrap", "clip", "none", "uniform")


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
