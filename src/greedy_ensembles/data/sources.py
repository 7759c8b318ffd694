"""Where the published files come from, and the hashes by which they are known.

Addresses are the publishers' where these still answer, then public mirrors. Hashes are those that the publishers print
(CIFAR, CIFAR-10-C on Zenodo) or that public projects record: torchvision (MNIST, Fashion-MNIST, SVHN, Omniglot, DTD),
TensorFlow Datasets (Places365), many loaders of Tiny ImageNet alike. Most are MD5: SHA-256 would be better, and is to
be recorded by whoever has the published bytes; those at hand here were compressed anew. For LSUN's test set no public
record was found: it is refused without --trust.
"""

import dataclasses
import hashlib
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Source:
    """A file to download; paths are relative to the data folder."""

    path: str
    urls: tuple[str, ...]  #: the first that gives the right bytes wins
    digest: str | None  #: algorithm:hexadecimal, or None where no public record is known
    size: float  #: about how many megabytes
    unpack: str | None = None  #: where the archive is unpacked, and then removed; None: it is kept as it is
    makes: str = ""  #: what must be there after unpacking


def _one(path: str, *urls: str, digest: str | None, size: float, **unpacked: str) -> tuple[Source, ...]:
    return (Source(path, urls, digest, size, **unpacked),)


def _idx(folder: str, mirrors: tuple[str, ...], files: dict[str, tuple[str, float]]) -> tuple[Source, ...]:
    return tuple(
        Source(f"{folder}/{file}.gz", tuple(f"{mirror}{file}.gz" for mirror in mirrors), f"md5:{md5}", size)
        for file, (md5, size) in files.items()
    )


def _cifar(name: str, md5: str, size: float, makes: str) -> tuple[Source, ...]:
    hosts = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    file = f"{name}.tar.gz"
    return _one(file, *(f"{host}{file}" for host in hosts), digest=f"md5:{md5}", size=size, unpack="", makes=makes)


SOURCES: dict[str, tuple[Source, ...]] = {
    "mnist": _idx(
        "mnist",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://yann.lecun.com/exdb/mnist/",
        ),
        {
            "train-images-idx3-ubyte": ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9.9),
            "train-labels-idx1-ubyte": ("d53e105ee54ea40749a09fcbcd1e9432", 0.03),
            "t10k-images-idx3-ubyte": ("9fb629c4189551a2d022fa330f9573f3", 1.6),
            "t10k-labels-idx1-ubyte": ("ec29112dd5afa0611ce80d1b7f02629c", 0.01),
        },
    ),
    "fashion_mnist": _idx(
        "fashion_mnist",
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
        {
            "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26.4),
            "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", 0.03),
            "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", 4.4),
            "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", 0.01),
        },
    ),
    "cifar10": _cifar("cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530", 170, makes="cifar-10-batches-bin"),
    "cifar100": _cifar("cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8", 169, makes="cifar-100-binary"),
    "svhn": tuple(
        Source(
            f"svhn/{split}_32x32.mat",
            tuple(f"{scheme}://ufldl.stanford.edu/housenumbers/{split}_32x32.mat" for scheme in ("https", "http")),
            f"md5:{md5}",
            size,
        )
        for split, md5, size in (
            ("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182),
            ("test", "eb5a983be6a315427106f1b164d9cef3", 64),
        )
    ),
    "cifar10c": _one(
        "CIFAR-10-C.tar",
        "https://zenodo.org/records/2535967/files/CIFAR-10-C.tar?download=1",
        "https://zenodo.org/record/2535967/files/CIFAR-10-C.tar",
        digest="md5:56bf5dcef84df0e2308c6dcbcbbd8499",
        size=2918,
        unpack="",
        makes="CIFAR-10-C",
    ),
    "omniglot": _one(
        "omniglot/images_evaluation.zip",
        "https://raw.githubusercontent.com/brendenlake/omniglot/master/python/images_evaluation.zip",
        "https://github.com/brendenlake/omniglot/raw/master/python/images_evaluation.zip",
        digest="md5:6b91aef0f799c5bb55b94e3f2daec811",
        size=6,
    ),
    "dtd": _one(
        "dtd-r1.0.1.tar.gz",
        "https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
        "https://thor.robots.ox.ac.uk/dtd/dtd-r1.0.1.tar.gz",
        digest="md5:fff73e5086ae6bdbea199a49dfb8a4c1",
        size=625,
        unpack="",
        makes="dtd",
    ),
    "tiny_imagenet": _one(
        "tiny-imagenet-200.zip",
        "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "https://zenodo.org/records/10720917/files/tiny-imagenet-200.zip?download=1",
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        digest="md5:90528d7ca1a48142e341f4ef8d21d0de",
        size=248,
    ),
    "places365": _one(
        "places365/test_256.tar",
        "https://data.csail.mit.edu/places/places365/test_256.tar",
        "http://data.csail.mit.edu/places/places365/test_256.tar",
        digest="sha256:037ee8180369bdde46636341b92900d4bcb8ea000c026a1fd3e0e9827a8702a1",
        size=4737,
    ),
    "lsun": _one(
        "lsun/test_lmdb.zip",
        "https://dl.yf.io/lsun/scenes/test_lmdb.zip",
        "http://dl.yf.io/lsun/scenes/test_lmdb.zip",
        digest=None,
        size=180,
        unpack="lsun",
        makes="test_lmdb",
    ),
}

_CIFAR10 = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
#: Recorded hashes by paths in the data folder: of files as they are downloaded, and of some that archives hold.
DIGESTS = {each.path: each.digest for of_set in SOURCES.values() for each in of_set if each.digest is not None}
DIGESTS |= {f"cifar-10-batches-bin/{file}": f"md5:{digest}" for file, digest in _CIFAR10.items()}


def file_digest(path: Path, like: str) -> str:
    """Return algorithm:hexadecimal of a file, with the algorithm of another such digest."""
    algorithm = like.partition(":")[0]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"
