"""Download published files, once, whole, and only if they are the right ones; and unpack their archives.

pooch fetches each file to a name of its own in the data folder; there it is hashed, and only a file with the recorded
hash takes its place. An address that fails is tried again, then the next one; if all fail, the message names each with
its reason, and whatever was there before is there still.

An archive may be hostile: nothing lands outside the folder, and nothing but files and folders lands. Every name is
looked at before the first byte is written; then all is written to a new folder beside the target, and moved from there
when it is complete. So an archive that is refused, or breaks off, leaves the data folder as it was.
"""

import gzip
import os
import secrets
import shutil
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from greedy_ensembles.checks import check_choice
from greedy_ensembles.data.registry import StrPath, data_root
from greedy_ensembles.data.sources import SOURCES, Source

#: Told what happens, a line at a time.
Say = Callable[[str], None]
_CHUNK = 1 << 18
_KINDS = "only files and folders are unpacked"
_LINK = 0o120000


class DownloadError(OSError):
    """A file that could not be had from any of its addresses."""


class WrongHashError(OSError):
    """A file that is not the recorded one."""


class Bar:
    """A progress bar on the terminal, with the four names by which pooch moves one."""

    def __init__(self) -> None:
        from rich import progress

        columns = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
        self._progress = progress.Progress(*columns, progress.TimeRemainingColumn(), transient=True)
        self._task: Any = None

    @property
    def total(self) -> float | None:
        """How many bytes there will be; to set it starts the bar anew."""
        return None if self._task is None else self._progress.tasks[-1].total

    @total.setter
    def total(self, total: int) -> None:
        if self._task is not None:  # an attempt that failed never came to close it
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task("", total=total or None)
        self._progress.start()

    def update(self, count: int) -> None:
        """Move on by some bytes."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Go back to the start."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Take the bar off the terminal."""
        self._progress.stop()


def download(name: str, root: StrPath | None = None, *, say: Say = print, **options: Any) -> list[Path]:
    """Download the files of a set that are not there yet, unpack what is to be unpacked, and return the paths.

    Args:
        name: of the set, as `data list` shows it.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        say: is told what happens, a line at a time.
        options: as `fetch` takes them.
    """
    check_name(name)
    return [_provide(source, data_root(root), say, options) for source in SOURCES[name]]


def check_name(name: str) -> None:
    """Raise ValueError unless there is something to download by that name."""
    check_choice("name", name, SOURCES)


def _provide(source: Source, root: Path, say: Say, options: dict[str, Any]) -> Path:
    archive = root / source.path
    if source.unpack is None:
        fetch(source.urls, archive, source.digest, say=say, **options)
        return archive
    made = root / source.unpack / source.makes
    if made.exists():
        say(f"{made} is there already")
        return made
    fetch(source.urls, archive, source.digest, say=say, **options)
    say(f"unpacking {archive.name}")
    unpack(archive, root / source.unpack)
    if not made.exists():
        raise ValueError(f"{archive} was unpacked but has not made {made}")
    archive.unlink()
    return made


def fetch(
    urls: tuple[str, ...],
    path: Path,
    digest: str | None,
    *,
    say: Say = print,
    progress: Any = None,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
) -> None:
    """Bring a file to `path` from the first address that gives the right bytes; leave the right file alone.

    Args:
        urls: addresses, tried in this order.
        path: where the file goes.
        digest: algorithm:hexadecimal; None where no public record is known.
        say: is told what happens, a line at a time.
        progress: an object with `total`, `update(n)`, `reset()` and `close()`, as pooch takes it.
        timeout: seconds without a byte after which an address counts as stalled.
        attempts: how often each address is tried.
        pause: seconds before the second attempt; twice that before the next.
    """
    if path.exists() and (digest is None or file_digest(path, digest) == digest):
        say(f"{path} is there already" + ("" if digest else ", unverified: no public hash is known"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in urls:
        for attempt in range(attempts):
            time.sleep(pause * attempt)
            say(f"downloading {url}" + (f", attempt {attempt + 1}" if attempt else ""))
            try:
                _fetch_once(url, path, digest, progress, timeout, say)
            except WrongHashError as error:
                failures.append(str(error))
                break  # the same address will give the same bytes
            except OSError as error:  # of requests and of the disk alike
                failures.append(f"{url}: {_reason(error)}")
                if _is_final(error):
                    break
            else:
                return
    old = "; the file that was there is kept" if path.exists() else ""
    raise DownloadError(f"{path.name} could not be downloaded{old}: " + "; ".join(dict.fromkeys(failures)))


def _fetch_once(url: str, path: Path, digest: str | None, progress: Any, timeout: float, say: Say) -> None:
    import pooch  # slow to import, and needed for nothing but this

    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}.part")  # mkstemp's file would be for this user alone
    try:
        with part.open("xb") as file:
            fetcher = pooch.HTTPDownloader(progressbar=progress or False, chunk_size=_CHUNK, timeout=timeout)
            fetcher(url, file, None)
            file.flush()
            os.fsync(file.fileno())
        found = file_digest(part, digest or "sha256:")
        if digest is not None and found != digest:
            raise WrongHashError(f"{path.name} from {url} has the wrong hash: expected {digest}, found {found}")
        if digest is None:
            say(f"{path.name} is unverified, for no public hash is known: this one has {found}")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        if progress is not None:
            progress.close()


def file_digest(path: Path, like: str) -> str:
    """Return algorithm:hexadecimal of a file, with the algorithm of another such digest."""
    import pooch

    algorithm = like.partition(":")[0]
    return f"{algorithm}:{pooch.file_hash(str(path), alg=algorithm)}"


def _is_final(error: OSError) -> bool:
    """Say whether asking again is pointless: the server answered that there is no such file, or not for us."""
    response = getattr(error, "response", None)
    return response is not None and 400 <= response.status_code < 500 and response.status_code not in (408, 429)


def _reason(error: OSError) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"{response.status_code} {response.reason}"
    text = str(error).lower()
    if "timed out" in text:
        return "the connection stalled"
    if "resolve" in text:
        return "the host is not found; is there a network?"
    return f"{type(error).__name__}: {error}"


def unpack(archive: Path, target: Path) -> list[Path]:
    """Unpack a zip or tar into a folder, and return what is new in it; refuse to replace what is there."""
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=target) as name:
        folder = Path(name)
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as opened:
                    _check_zip(opened, archive)
                    opened.extractall(folder)
            else:
                with tarfile.open(archive) as opened_tar:
                    _check_tar(opened_tar, archive)
                    opened_tar.extractall(folder, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, RuntimeError) as error:
            raise ValueError(f"{archive} cannot be unpacked: {error}") from error
        made = [target / path.name for path in sorted(folder.iterdir())]
        for path in made:
            if path.exists():
                raise FileExistsError(f"{path} is there already: move it away to unpack {archive.name} anew")
        for path in made:
            shutil.move(folder / path.name, path)
    return made


def _check_zip(opened: zipfile.ZipFile, archive: Path) -> None:
    for entry in opened.infolist():
        _check_name(entry.filename, archive)
        kind = (entry.external_attr >> 16) & 0o170000
        if kind == _LINK:
            raise ValueError(f"{archive} is refused: {entry.filename} is a link; {_KINDS}")


def _check_tar(opened: tarfile.TarFile, archive: Path) -> None:
    for member in opened:
        _check_name(member.name, archive)
        if not (member.isreg() or member.isdir()):
            kind = "a link" if member.issym() or member.islnk() else "a device"
            raise ValueError(f"{archive} is refused: {member.name} is {kind}; {_KINDS}")


def _check_name(name: str, archive: Path) -> None:
    """Refuse a name that leads out of the folder on any system: Windows takes a backslash and a drive for more."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    if posix.is_absolute() or windows.drive or windows.root or ".." in posix.parts or ".." in windows.parts:
        raise ValueError(f"{archive} is refused: {name!r} leads out of the folder")
