"""Unpack an archive that may be hostile: nothing lands outside the folder, and nothing but files and folders lands.

Every name is looked at before the first byte is written; then all is written to a new folder beside the target, and
moved from there when it is complete. So an archive that is refused, or breaks off, leaves the data folder as it was.
"""

import gzip
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath

_KINDS = "only files and folders are unpacked"
_LINK = 0o120000


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
