"""Download published files, once, whole, and only if they are the right ones.

Each file comes to a folder of this process alone beside its place. There it is hashed, and only one with the recorded
hash takes its place. An address that fails is tried again, then the next one; if all fail, the message names each with
its reason, and whatever was there before is there still. An address that sends more than the file can have, or next to
nothing for a long time, has failed.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greedy_ensembles.checks import check_choice
from greedy_ensembles.data.archives import own_folder, unpack
from greedy_ensembles.data.registry import StrPath, data_root
from greedy_ensembles.data.sources import SOURCES, Source, file_digest

_CHUNK = 1 << 18
_SLOWEST = 1000  # bytes a second, over the time after which a connection counts as stalled


class DownloadError(OSError):
    """A file that could not be had from any of its addresses."""


class WrongHashError(OSError):
    """A file that is not the recorded one."""


def download(name: str, root: StrPath | None = None, *, trust: bool = False, **options: Any) -> list[Path]:
    """Download the files of a set that are not there yet, unpack what is to be unpacked, and return the paths.

    Args:
        name: of the set, as `data list` shows it.
        root: the data folder; None: GREEDY_ENSEMBLES_DATA, else a cache folder.
        trust: whether to take files of which no hash is known, whatever arrives.
        options: as `fetch` takes them.
    """
    check_name(name)
    unknown = [source.path for source in SOURCES[name] if source.digest is None]
    if unknown and not trust:
        raise ValueError(
            f"no public hash of {', '.join(unknown)} is known, so nobody can tell what would arrive; "
            "--trust (trust=True) downloads it all the same"
        )
    return [_provide(source, data_root(root), options) for source in SOURCES[name]]


def check_name(name: str) -> None:
    """Raise ValueError unless there is something to download by that name."""
    check_choice("name", name, SOURCES)


def _provide(source: Source, root: Path, options: dict[str, Any]) -> Path:
    archive = root / source.path
    options = {"most": int(1.5e6 * source.size) + 1_000_000, **options}  # the size is a rounded figure
    if source.unpack is None:
        fetch(source.urls, archive, source.digest, **options)
        return archive
    made = root / source.unpack / source.makes
    if made.exists():
        print(f"{made} is there already")
        return made
    fetch(source.urls, archive, source.digest, **options)
    print(f"unpacking {archive.name}")
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
    progress: bool = False,
    most: int | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
) -> None:
    """Bring a file to `path` from the first address that gives the right bytes; leave the right file alone.

    Args:
        urls: addresses, tried in this order.
        path: where the file goes.
        digest: algorithm:hexadecimal; None where no public record is known.
        progress: whether to show a bar on the terminal.
        most: how many bytes it can have; None: any number.
        timeout: seconds with less than 1,000 bytes each after which an address counts as stalled.
        attempts: how often each address is tried.
        pause: seconds before the second attempt; twice that before the next.
    """
    if path.exists() and (digest is None or file_digest(path, digest) == digest):
        print(f"{path} is there already" + ("" if digest else ", unverified: no public hash is known"))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in urls:
        for attempt in range(attempts):
            time.sleep(pause * attempt)
            print(f"downloading {url}" + (f", attempt {attempt + 1}" if attempt else ""))
            try:
                _fetch_once(url, path, digest, progress, most, timeout)
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


def _fetch_once(url: str, path: Path, digest: str | None, progress: bool, most: int | None, timeout: float) -> None:
    with own_folder(path.parent, path.name) as folder:
        part = folder / path.name
        with part.open("xb") as file:
            for chunk in _received(url, progress, most, timeout):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        found = file_digest(part, digest or "sha256:")
        if digest is not None and found != digest:
            raise WrongHashError(f"{path.name} from {url} has the wrong hash: expected {digest}, found {found}")
        if digest is None:
            print(f"{path.name} is unverified, for no public hash is known: this one has {found}")
        part.replace(path)


def _received(url: str, progress: bool, most: int | None, timeout: float) -> Iterator[bytes]:
    """Yield what an address sends, as it comes."""
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
                if most is not None and done > most:
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
