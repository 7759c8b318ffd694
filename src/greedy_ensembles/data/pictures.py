"""Sets of picture files: a folder, a zip or a tar of them is read alike, without unpacking.

A reader lists the names, says which it wants in what order, and gets the pictures cropped, resized and stacked. Nothing
is written, so a hostile name in an archive leads nowhere; links and devices in a tar are not followed.
"""

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from greedy_ensembles.data.image_set import Bytes, fit_square, to_array

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))
_LARGEST = 1 << 26  # bytes of one file: far above any picture here, far below what would fill memory

Named = tuple[str, bytes]


def names(path: Path) -> list[str]:
    """Return the names of the files in a folder (relative, with /) or an archive, in no particular order."""
    if path.is_dir():
        return [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
    with _opened(path) as archive:
        if isinstance(archive, zipfile.ZipFile):
            return [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        return [_clean(member.name) for member in archive if member.isreg()]


def contents(path: Path, wanted: Iterable[str]) -> Iterator[Named]:
    """Yield (name, bytes) of the wanted files, in the order in which they are stored (a compressed tar cannot seek)."""
    chosen = set(wanted)
    if path.is_dir():
        for name in sorted(chosen):
            yield name, (path / name).read_bytes()
        return
    with _opened(path) as archive:
        try:
            yield from _zipped(archive, chosen) if isinstance(archive, zipfile.ZipFile) else _tarred(archive, chosen)
        except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, RuntimeError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def read_text(path: Path, name: str) -> str:
    """Return the text of one file of a folder or archive."""
    for _, content in contents(path, [name]):
        return content.decode("utf-8")
    raise ValueError(f"{path} holds no {name}")


def stack(path: Path, wanted: Sequence[str], size: int | None, channels: int, *, invert: bool = False) -> Bytes:
    """Return the wanted pictures, in that order, as one array; `invert` swaps black and white before resizing."""
    position = {name: index for index, name in enumerate(wanted)}
    pictures = (
        (position[name], decode(content, name, size, channels, invert)) for name, content in contents(path, wanted)
    )
    return assemble(pictures, len(wanted), path)


def assemble(pictures: Iterable[tuple[int, Bytes]], count: int, source: Path) -> Bytes:
    """Return one array of numbered pictures, which must be of one shape."""
    images: Bytes | None = None
    seen = set()
    for index, picture in pictures:
        if images is None:
            images = np.empty((count, *picture.shape), np.uint8)
        if picture.shape != images.shape[1:]:
            raise ValueError(f"{source} holds pictures of several sizes: give the size to which they are to be resized")
        images[index] = picture
        seen.add(index)
    if not count:
        raise ValueError(f"{source} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    if images is None or len(seen) != count:
        raise ValueError(f"{source} holds {len(seen)} of {count} pictures that were looked for")
    return images


def decode(
    content: bytes, name: str, size: int | None, channels: int, invert: bool = False, upright: bool = False
) -> Bytes:
    """Return one picture file as (channels, height, width); `upright` turns it as the camera says that it was held.

    Published sets are taken as they are stored, as everyone takes them.
    """
    try:
        stored = Image.open(io.BytesIO(content))
        if Image.getmodetype(stored.mode) != "L" or stored.mode.startswith("I;"):
            raise ValueError(
                f"{name} has pixels of {stored.mode!r}, beyond 8 bits, which would be cut off; save it with 8"
            )
        picture = (ImageOps.exif_transpose(stored) if upright else stored).convert("L" if channels == 1 else "RGB")
    except UnidentifiedImageError:  # whose own words name an object in memory
        raise ValueError(f"{name} is not a readable picture: it is of no format that is known here") from None
    except (OSError, SyntaxError, struct.error, Image.DecompressionBombError) as error:  # struct: from notes of cameras
        raise ValueError(f"{name} is not a readable picture: {error}") from error
    if invert:
        picture = ImageChops.invert(picture)
    return to_array(picture if size is None else fit_square(picture, size), channels)


def is_picture(name: str) -> bool:
    """Say whether a name is that of a picture (and not of a hidden file, as macOS leaves in archives)."""
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def by_folder(pictures: Iterable[str], depth: int = 1) -> tuple[list[int] | None, tuple[str, ...] | None]:
    """Return (labels, classes) by the last `depth` folders of each name; (None, None) where they have none."""
    folders = ["/".join(PurePosixPath(name).parts[-1 - depth : -1]) for name in pictures]
    if not all(folders):
        return None, None
    classes = tuple(sorted(set(folders)))
    number = {folder: index for index, folder in enumerate(classes)}
    return [number[folder] for folder in folders], classes


def digest(pictures: Iterable[str]) -> str:
    """Return the SHA-256 of file names (without folders) in their order: what a rule chose, whatever the pixels."""
    return hashlib.sha256("".join(f"{PurePosixPath(name).name}\n" for name in pictures).encode()).hexdigest()


def _opened(path: Path) -> zipfile.ZipFile | tarfile.TarFile:
    try:
        return zipfile.ZipFile(path) if zipfile.is_zipfile(path) else tarfile.open(path)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error) as error:  # tarfile says why on six lines
        raise ValueError(f"{path} is neither a folder nor a picture nor a readable zip or tar") from error


def _zipped(archive: zipfile.ZipFile, chosen: set[str]) -> Iterator[Named]:
    for entry in archive.infolist():
        if entry.filename in chosen:
            _check_size(entry.filename, entry.file_size)
            yield entry.filename, archive.read(entry)


def _tarred(archive: tarfile.TarFile, chosen: set[str]) -> Iterator[Named]:
    for member in archive:
        if member.isreg() and _clean(member.name) in chosen:
            _check_size(member.name, member.size)
            file = archive.extractfile(member)
            assert file is not None  # a regular file has content
            yield _clean(member.name), file.read()


def _clean(name: str) -> str:
    return name.removeprefix("./")


def _check_size(name: str, size: int) -> None:
    if size > _LARGEST:
        raise ValueError(f"{name} is {size:,} bytes: no picture is that large")
