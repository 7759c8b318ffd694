"""The data folder, where the published files come from, and how they get there: once, whole, and only the right ones.

Addresses are the publishers' where these still answer, then public mirrors. Hashes are those that the publishers print
(CIFAR, CIFAR-10-C on Zenodo) or that public projects record: torchvision (MNIST, Fashion-MNIST, SVHN, Omniglot, DTD),
TensorFlow Datasets (Places365), many loaders of Tiny ImageNet alike. Most are MD5: SHA-256 would be better, and is to
be recorded by whoever has the published bytes; those at hand here were compressed anew. For LSUN's test set no public
record was found: it is refused without --trust.

Each file comes to a folder of this process alone beside its place, and only one with the recorded hash takes its place.
An address that sends more than the file can have, or next to nothing for a long time, has failed.
"""

import dataclasses
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from greedy_ensembles.checks import as_path, check_choice
from greedy_ensembles.data.archives import own_folder, unpack

StrPath = str | os.PathLike[str]
_CHUNK = 1 << 18
_SLOWEST = 1000  # bytes a second, over the time after which a connection counts as stalled


@dataclasses.dataclass(frozen=True)
class Source:
    """A file to download; paths are relative to the data folder."""

    path: str
    urls: tuple[str, ...]  #: the first that gives the right bytes wins
    digest: str | None  #: algorithm:hexadecimal, or None where no public record is known
    size: float  #: about how many megabytes
    makes: str = ""  #: what it becomes, unpacked beside itself and then removed; "": it is kept as it is


def _one(path: str, *urls: str, digest: str | None, size: float, makes: str = "") -> tuple[Source, ...]:
    return (Source(path, urls, digest, size, makes),)


def _idx(folder: str, mirrors: tuple[str, ...], files: dict[str, tuple[str, float]]) -> tuple[Source, ...]:
    return tuple(
        Source(f"{folder}/{file}.gz", tuple(f"{mirror}{file}.gz" for mirror in mirrors), f"md5:{md5}", size)
        for file, (md5, size) in files.items()
    )


def _cifar(name: str, md5: str, size: float, makes: str) -> tuple[Source, ...]:
    hosts = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
    urls = (f"{host}{name}.tar.gz" for host in hosts)
    return _one(f"{name}.tar.gz", *urls, digest=f"md5:{md5}", size=size, makes=makes)


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


def data_root(root: StrPath | None = None) -> Path:
    """Return the data folder: `root`, else what GREEDY_ENSEMBLES_DATA names, else a cache folder of the user."""
    named = root or os.environ.get("GREEDY_ENSEMBLES_DATA")
    if named:
        return as_path("root", named)
    if sys.platform == "win32":
        cache = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "greedy-ensembles" / "data"


class DownloadError(OSError):
    """A file that could not be had from any of its addresses."""


class WrongHashError(OSError):
    """A file that is not the recorded one."""


def download(name: str, root: StrPath | None = None, *, trust: bool = False, progress: bool = False) -> list[Path]:
    """Download the files of a set that are not there yet, unpack what is to be unpacked, and return the paths.

    Args:
        name: of the set, as `data list` shows it.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        trust: whether to take files of which no hash is known, whatever arrives.
        progress: whether to show a bar on the terminal.
    """
    check_choice("name", name, SOURCES)
    unknown = [source.path for source in SOURCES[name] if source.digest is None]
    if unknown and not trust:
        raise ValueError(
            f"no public hash of {', '.join(unknown)} is known, so nobody can tell what would arrive; "
            "--trust (trust=True) downloads it all the same"
        )
    return [_provide(source, data_root(root), progress) for source in SOURCES[name]]


def _provide(source: Source, root: Path, progress: bool) -> Path:
    archive = root / source.path
    made = archive.parent / source.makes if source.makes else archive
    if source.makes and made.exists():
        print(f"{made} is there already")
        return made
    fetch(source, archive, progress=progress)
    if source.makes:
        print(f"unpacking {archive.name}")
        unpack(archive, archive.parent)
        if not made.exists():
            raise ValueError(f"{archive} was unpacked but has not made {made}")
        archive.unlink()
    return made


def fetch(
    source: Source,
    path: Path,
    *,
    progress: bool = False,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
) -> None:
    """Bring a file to `path` from the first address that gives the right bytes; leave the right file alone.

    After `timeout` seconds with less than 1,000 bytes each an address counts as stalled. `pause` seconds pass before
    its second attempt, twice that before the next.
    """
    digest = source.digest
    if path.exists() and (digest is None or file_digest(path, digest) == digest):
        print(f"{path} is there already" + ("" if digest else ", unverified: no public hash is known"))
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        where = "name another data folder with root=FOLDER or GREEDY_ENSEMBLES_DATA"
        raise OSError(f"the folder {path.parent} cannot be made: {error.strerror}; {where}") from error
    failures = []
    for url in source.urls:
        for attempt in range(attempts):
            time.sleep(pause * attempt)
            print(f"downloading {url}" + (f", attempt {attempt + 1}" if attempt else ""))
            try:
                _fetch_once(source, url, path, progress, timeout)
            except OSError as error:  # of requests and of the disk alike
                reason, is_final = _why(error)
                failures.append(f"{url}: {reason}")
                if is_final:
                    break
            else:
                return
    old = "; the file that was there is kept" if path.exists() else ""
    raise DownloadError(f"{path.name} could not be downloaded{old}: " + "; ".join(dict.fromkeys(failures)))


def _fetch_once(source: Source, url: str, path: Path, progress: bool, timeout: float) -> None:
    most = int(1.5e6 * source.size) + 1_000_000  # the size is a rounded figure
    with own_folder(path.parent, path.name) as folder:
        part = folder / path.name
        with part.open("xb") as file:
            for chunk in _received(url, progress, most, timeout):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        found = file_digest(part, source.digest or "sha256:")
        if source.digest is None:
            print(f"{path.name} is unverified, for no public hash is known: this one has {found}")
        elif found != source.digest:
            raise WrongHashError(f"it has the wrong hash: expected {source.digest}, found {found}")
        part.replace(path)


def _received(url: str, progress: bool, most: int, timeout: float) -> Iterator[bytes]:
    import requests  # slow to import, and needed for nothing but this
    from rich import progress as bars
    from urllib3.exceptions import HTTPError

    as_it_is = {"Accept-Encoding": "identity"}  # the bytes that were hashed, not compressed anew for the way
    columns = bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn()
    with (
        requests.get(url, stream=True, timeout=timeout, headers=as_it_is) as response,
        bars.Progress(*columns, transient=True, disable=not progress) as bar,
    ):
        response.raise_for_status()
        total = int(response.headers.get("Content-Length") or 0)
        task = bar.add_task("", total=total or None)
        done, marked, mark = 0, 0, time.monotonic()
        try:
            while chunk := response.raw.read1(_CHUNK, decode_content=False):
                done += len(chunk)
                if done > most:
                    raise OSError(f"it sends more than {most:,} bytes")
                if time.monotonic() - mark > timeout:
                    if done - marked < _SLOWEST * timeout:
                        raise TimeoutError("timed out: it sends next to nothing")
                    marked, mark = done, time.monotonic()
                bar.advance(task, len(chunk))
                yield chunk
        except HTTPError as error:
            raise OSError(str(error)) from error
        if done < total:
            raise OSError(f"it broke off after {done:,} of {total:,} bytes")


def _why(error: OSError) -> tuple[str, bool]:
    """Return why an address failed, and whether asking again is pointless: no such file, not for us, other bytes."""
    response = getattr(error, "response", None)
    if response is not None:
        is_final = 400 <= response.status_code < 500 and response.status_code not in (408, 429)
        return f"{response.status_code} {response.reason}", is_final
    if isinstance(error, WrongHashError):
        return str(error), True
    text = str(error).lower()
    if "timed out" in text:
        return "the connection stalled", False
    if "resolve" in text:
        return "the host is not found; is there a network?", False
    return f"{type(error).__name__}: {error}", False
