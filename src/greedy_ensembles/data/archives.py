"""Zips and tars, whose files are read one by one or unpacked to a folder; folders are read in the same way.

An archive may be hostile. To read it writes nothing, follows no links, and has limits (docs/format.md). To unpack it,
every name is looked at before the first byte is written; then all is written to a new folder beside the target, and
moved from there when it is complete. Nothing lands outside of the folder, nothing but files and folders lands, and an
archive that is refused, or breaks off, leaves the folder as it was.
"""

import bz2
import glob
import gzip
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from greedy_ensembles.checks import check_limit, naming

Archive = zipfile.ZipFile | tarfile.TarFile
_File = tuple[str, int, Callable[[], bytes]]  # name, size, and how it is read
_COMPRESSED: dict[bytes, Callable[[Path], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_REFUSED = "cannot be unpacked"
_KINDS = "only files and folders are unpacked"
_LINK = 0o120000


def file_names(path: Path) -> list[str]:
    """Return the names of the files in a folder (relative, with /) or an archive, in no particular order.

    Links in a folder are followed, and broken ones are files that cannot be read. A folder in it that cannot be read
    is an error: it may be a class of its own. So is one that is there twice, by a link.
    """
    places: dict[str, str] = {}

    def refuse(error: OSError) -> None:
        raise PermissionError(f"the folder {error.filename} cannot be read: {error.strerror}") from error

    if path.is_dir():
        files: list[Path] = []
        for place, _, names in os.walk(path, onerror=refuse, followlinks=True):
            if (other := places.setdefault(os.path.realpath(place), place)) != place:
                raise ValueError(f"{place} and {other} are one folder, by a link; leave one of them")
            files += (Path(place, name) for name in names)
        return [file.relative_to(path).as_posix() for file in files if file.is_file() or not file.exists()]
    with _opened(path) as archive, naming(path, "is damaged"):
        return [name for name, _, _ in _files(archive)]


def contents(path: Path, wanted: Iterable[str], unreadable: list[str] | None = None) -> Iterator[tuple[str, bytes]]:
    """Yield (name, bytes) of the wanted files, in the order in which they are stored (a compressed tar cannot seek).

    `unreadable` is told of files that cannot be read, which then do not end it.
    """
    chosen = set(wanted)
    if path.is_dir():
        there = ((name, path / name) for name in sorted(chosen))
        files = ((name, file.stat().st_size if file.exists() else 0, file.read_bytes) for name, file in there)
        yield from _read(path, files, unreadable)
    else:
        with _opened(path) as archive, naming(path, "is damaged"):
            yield from _read(path, (file for file in _files(archive) if file[0] in chosen), unreadable)


def _read(path: Path, files: Iterable[_File], unreadable: list[str] | None) -> Iterator[tuple[str, bytes]]:
    for name, size, read in files:
        try:
            check_picture(str(path / name), size)
            with naming(path, f"is damaged at {name}"):
                content = read()
        except (ValueError, OSError) as error:
            if unreadable is None:
                raise
            unreadable.append(str(error))
        else:
            yield name, content


def check_picture(name: str, size: int) -> None:
    """Refuse a file that is larger than any picture."""
    check_limit("picture", size, f"{name} has more bytes than a picture")


@contextmanager
def _opened(path: Path, what: str = "is neither a folder nor a picture nor a readable zip or tar") -> Iterator[Archive]:
    with ExitStack() as stack:
        with naming(path, what):
            if zipfile.is_zipfile(path):
                archive: Archive = stack.enter_context(zipfile.ZipFile(path))
            else:
                stream: Any = stack.enter_context(closing(_Bounded(path)))
                archive = stack.enter_context(tarfile.open(fileobj=stream, mode="r:"))
        yield archive


class _Bounded:
    """The bytes of a tar, decompressed, up to a limit: tarfile would read a header of any length."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            begin, self._own = file.read(6), path.stat().st_size
        opener = next((opener for start, opener in _COMPRESSED.items() if begin.startswith(start)), None)
        self._file: IO[bytes] = path.open("rb") if opener is None else opener(path)
        self.seekable, self.tell, self.close = self._file.seekable, self._file.tell, self._file.close

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            raise ValueError("an entry has a negative size")
        check_limit("picture", size, "a header has more bytes than a picture")
        self._check(self.tell() + size)
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        self._check(position)
        return self._file.seek(position, whence)

    def _check(self, position: int) -> None:
        check_limit("expanded", position, "it becomes too many bytes", self._own)


def _files(archive: Archive) -> Iterator[_File]:
    """Yield the regular files of an archive; names are relative, also where they are not stored so."""
    if isinstance(archive, zipfile.ZipFile):
        for entry in _entries(archive):
            if not entry.is_dir():
                yield entry.filename.lstrip("/"), entry.file_size, partial(archive.read, entry)
        return
    for member in _members(archive):
        if member.isreg():
            name = member.name.removeprefix("./").lstrip("/")
            yield name, member.size, lambda member=member: archive.extractfile(member).read()  # type: ignore


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return what a zip holds, or refuse it for its size: entries may share their bytes."""
    entries = archive.infolist()
    check_limit("entries", len(entries), "it has too many entries")
    size = sum(entry.file_size for entry in entries)
    check_limit("expanded", size, "it becomes too many bytes", Path(str(archive.filename)).stat().st_size)
    return entries


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    for count, member in enumerate(archive, start=1):
        check_limit("entries", count, "it has too many entries")
        if member.size < 0:  # which would make tarfile go round in circles
            raise ValueError(f"{member.name} has a negative size")
        yield member


def unpack(archive: Path, target: Path) -> list[Path]:
    """Unpack a zip or tar into a folder, and return what is new in it; refuse to replace what is there."""
    target.mkdir(parents=True, exist_ok=True)
    with own_folder(target, archive.name) as folder:
        with naming(archive, _REFUSED), _opened(archive, _REFUSED) as opened:
            if isinstance(opened, zipfile.ZipFile):
                _check_zip(opened)
                opened.extractall(folder)
            else:
                _check_tar(opened)
                opened.extractall(folder, filter="data")
        made = [target / path.name for path in sorted(folder.iterdir())]
        for path in made:
            if path.exists():
                raise FileExistsError(f"{path} is there already: move it away to unpack {archive.name} anew")
        for path in made:
            shutil.move(folder / path.name, path)
    return made


@contextmanager
def own_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a folder for this process alone, and remove it, and those of the same name that killed ones have left.

    A lock within, which the system releases when a process ends, tells them from those in use.
    """
    from filelock import FileLock, Timeout

    start = f".{name}-"
    for left in parent.glob(f"{glob.escape(start)}*.part"):
        with suppress(Timeout, OSError):
            FileLock(left / "lock", timeout=0).acquire().lock.release()
            shutil.rmtree(left)
    outer = Path(tempfile.mkdtemp(prefix=start, suffix=".part", dir=parent))
    try:
        with FileLock(outer / "lock"):
            inner = outer / "content"
            inner.mkdir()
            yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def _check_zip(opened: zipfile.ZipFile) -> None:
    for entry in _entries(opened):
        _check_name(entry.filename)
        kind = (entry.external_attr >> 16) & 0o170000
        if kind == _LINK:
            raise ValueError(f"{entry.filename} is a link; {_KINDS}")


def _check_tar(opened: tarfile.TarFile) -> None:
    for member in _members(opened):
        _check_name(member.name)
        if not (member.isreg() or member.isdir()) or member.issparse():
            kind = "a link" if member.issym() or member.islnk() else "sparse" if member.issparse() else "a device"
            raise ValueError(f"{member.name} is {kind}; {_KINDS}")


def _check_name(name: str) -> None:
    """Refuse a name that leads out of the folder on any system: Windows takes a backslash and a drive for more."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root or ".." in posix.parts or ".." in windows.parts:
        raise ValueError(f"{name!r} leads out of the folder")
