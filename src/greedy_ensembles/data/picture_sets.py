"""Sets of picture files: a folder, a zip or a tar of them is read alike, without unpacking.

A published set is a rule: which files, in which order, with which labels. There are rules for Omniglot's evaluation
alphabets, the validation set of Tiny ImageNet, the first 10,000 pictures of the test set of Places365, LSUN's test set,
and any folder of pictures. A rule lists the names, says which it wants in what order, and gets the pictures cropped,
resized and stacked. Nothing is written, so a hostile name in an archive leads nowhere; links and devices in a tar are
not followed.
"""

import hashlib
import importlib.util
import io
import struct
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from greedy_ensembles.checks import check_limit, limit, naming
from greedy_ensembles.data.archives import check_picture, contents, file_names
from greedy_ensembles.data.image_set import Bytes, Resize, to_array, to_small_array
from greedy_ensembles.data.labelled import Labels

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))
#: How many pictures of Places365's test set the paper takes, in alphabetical order.
PLACES_COUNT = 10_000
#: SHA-256 of the file names that the rules choose from the complete sets; `names_digest` says of what exactly.
PLACES_NAMES = "a6f7ed2280adbb15ceaeb416904f229f96b139aac11314e0a085c1713cd07a97"
TINY_IMAGENET_NAMES = "3a170e2deff29b261ff74e499f729af3bcffe23712a0e4474e603cc9945074b5"
#: What Pillow may take a file for. It knows more, and hands PostScript to another program.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
#: How many times its bytes a photograph takes when it is decoded, at most.
_PHOTOGRAPHS = 32

#: Images, labels, classes and a note.
Read = tuple[Bytes, Labels | None, tuple[str, ...] | None, str]


def read_folder(
    path: Path,
    size: int | None,
    resize: Resize = "crop",
    channels: int = 3,
    depth: int = 1,
    invert: bool = False,
) -> Read:
    """Return every picture in a folder or archive, sorted by name.

    Args:
        path: the folder or archive.
        size: height and width to which pictures are resized; None: as they are.
        resize: "crop", or "whole" (`image_set.Resize`).
        channels: 1 (grey) or 3 (colour).
        depth: a picture's label is the last so many folders that it lies in; where some lie in none, there are none.
        invert: whether to swap black and white, before resizing.
    """
    chosen = picture_names(path)
    labels, classes = by_folder(chosen, depth)
    return stack(path, chosen, size, channels, resize, invert=invert), labels, classes, ""


def read_tiny_imagenet(path: Path, size: int | None, resize: Resize = "crop") -> Read:
    """Return the validation set in the order of its annotations, labelled by its WordNet identifiers, sorted."""
    every = file_names(path)
    table = _only(path, [name for name in every if PurePosixPath(name).name == "val_annotations.txt"])
    folder = PurePosixPath(table).parent / "images"
    rows = [line.split("\t")[:2] for line in read_text(path, table).splitlines() if line.strip()]
    if not all(len(row) == 2 for row in rows):
        raise ValueError(f"{table} of {path} is damaged: a line has no tab")
    chosen = [str(folder / name) for name, _ in rows]
    missing = sorted(set(chosen) - set(every))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of {len(chosen)} annotated pictures, {missing[0]} among them")
    classes = tuple(sorted({identifier for _, identifier in rows}))
    number = {identifier: index for index, identifier in enumerate(classes)}
    labels = np.array([number[identifier] for _, identifier in rows], np.int64)
    return stack(path, chosen, size, 3, resize), labels, classes, _subset_note(chosen, TINY_IMAGENET_NAMES)


def read_places(path: Path, size: int | None, resize: Resize = "crop") -> Read:
    """Return the first pictures in alphabetical order; the published test set has no labels."""
    chosen = sorted(picture_names(path), key=lambda name: PurePosixPath(name).name)[:PLACES_COUNT]
    return stack(path, chosen, size, 3, resize), None, None, _subset_note(chosen, PLACES_NAMES)


#: Reads an LMDB folder, and writes lengths and bytes of its keys and values, so many bytes in all; with so much memory.
_LMDB = """
import contextlib, struct, sys
import lmdb
folder, left, memory = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with contextlib.suppress(ImportError, OSError, ValueError):  # where the system has no such limit
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
with lmdb.open(folder, readonly=True, lock=False, readahead=False, max_readers=1) as database:
    with database.begin() as transaction:
        for key, content in transaction.cursor():
            left -= 16 + len(key) + len(content)
            if left < 0:
                sys.exit("it holds more than its size")
            sys.stdout.buffer.write(struct.pack("<QQ", len(key), len(content)) + key + content)
"""
#: Bytes of memory for that beside twice the file, which it maps, and copies a value of: Python and the library.
_LMDB_MEMORY = 512 << 20


def read_lsun(path: Path, size: int | None, resize: Resize = "crop") -> Read:
    """Return the pictures of LSUN's test set, an LMDB folder of encoded pictures, in the order of their keys."""
    if importlib.util.find_spec("lmdb") is None:  # an extra: nothing else here needs it
        raise ValueError("LSUN is an LMDB database: pip install 'greedy-ensembles[lsun]' to read it")
    if not (path / "data.mdb").exists():
        raise ValueError(f"{path} is not an LMDB folder: it has no data.mdb")
    pictures = _lmdb_items(path)
    numbered = (
        (index, decode(content, str(path / key.decode("latin1")), size, 3, resize=resize))
        for index, (key, content) in enumerate(pictures)
    )
    return assemble(numbered, len(pictures), path), None, None, ""


def _lmdb_items(path: Path) -> list[tuple[bytes, bytes]]:
    """Return keys and values of an LMDB folder, read in a process of its own: the library trusts what it reads.

    A damaged file may end that process, lead it in circles, or have it ask for memory; it cannot hold more than itself.
    """
    size, seconds = (path / "data.mdb").stat().st_size, limit("seconds")
    command = [sys.executable, "-c", _LMDB, str(path), str(size), str(2 * size + _LMDB_MEMORY)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        why = f"it takes more than {seconds} seconds; `with ge.limits(seconds=...):` gives it more"
        raise ValueError(f"{path} is not a readable LMDB database: {why}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        why = said[-1] if said else f"its reader ended by signal {-done.returncode}"
        raise ValueError(f"{path} is not a readable LMDB database: {why}")
    items, at = [], 0
    while at < len(done.stdout):
        key, content = struct.unpack_from("<QQ", done.stdout, at)
        middle, end = at + 16 + key, at + 16 + key + content
        items.append((done.stdout[at + 16 : middle], done.stdout[middle:end]))
        at = end
    return items


def _subset_note(chosen: list[str], recorded: str) -> str:
    """Return a note unless the chosen files are those that the rule chooses from the complete set."""
    return "" if names_digest(chosen) == recorded else "not the recorded choice of files"


def _only(path: Path, candidates: list[str]) -> str:
    if len(candidates) != 1:
        raise ValueError(f"{path} holds {len(candidates)} files val_annotations.txt, expected one")
    return candidates[0]


def picture_names(path: Path) -> list[str]:
    """Return the names of the pictures in a folder or archive, sorted."""
    return sorted(name for name in file_names(path) if is_picture(name))


def read_text(path: Path, name: str) -> str:
    """Return the text of one file of a folder or archive."""
    for _, content in contents(path, [name]):
        with naming(path, f"is damaged at {name}"):
            return content.decode("utf-8")
    raise ValueError(f"{path} holds no {name}")


def stack(
    path: Path, wanted: Sequence[str], size: int | None, channels: int, resize: Resize = "crop", *, invert: bool = False
) -> Bytes:
    """Return the wanted pictures, in that order, as one array; `invert` swaps black and white before resizing."""
    position = {name: index for index, name in enumerate(wanted)}
    pictures = (
        (position[name], decode(content, str(path / name), size, channels, invert, resize=resize))
        for name, content in contents(path, wanted)
    )
    return assemble(pictures, len(wanted), path)


def assemble(pictures: Iterable[tuple[int, Bytes]], count: int, source: Path) -> Bytes:
    """Return one array of numbered pictures, which must be of one shape, and all there."""
    images, seen = fill(pictures, count, source)
    if len(seen) != count:
        raise ValueError(f"{source} holds {len(seen)} of {count} pictures that were looked for")
    return images


def fill(pictures: Iterable[tuple[int, Bytes]], count: int, source: Path) -> tuple[Bytes, list[int]]:
    """Return one array of numbered pictures, which must be of one shape, and the numbers that there are."""
    if not count:
        raise no_pictures(source)
    images, seen = np.empty((count, 0), np.uint8), set[int]()
    for index, picture in pictures:
        if not seen:
            files = [source] if source.is_file() else [file for file in source.rglob("*") if file.is_file()]
            check_room(source, count * picture.nbytes, sum(file.stat().st_size for file in files))
            images = np.empty((count, *picture.shape), np.uint8)
        if picture.shape != images.shape[1:]:
            raise ValueError(f"{source} holds pictures of several sizes: give the size to which they are to be resized")
        images[index] = picture
        seen.add(index)
    return images, sorted(seen)


def check_room(source: Path, size: int, stored: int) -> None:
    """Refuse pictures that become too many bytes, more than photographs do that are stored in so many."""
    check_limit("expanded", size, f"{source}, decoded, becomes too many bytes", _PHOTOGRAPHS * stored)


def no_pictures(path: Path) -> ValueError:
    """Return what is wrong with a folder or archive without pictures."""
    return ValueError(f"{path} holds no pictures ({', '.join(sorted(SUFFIXES))})")


def decode(
    content: bytes,
    name: str,
    size: int | None,
    channels: int,
    invert: bool = False,
    upright: bool = False,
    resize: Resize = "crop",
) -> Bytes:
    """Return one picture file as (channels, height, width); `upright` turns it as the camera says that it was held.

    Published sets are taken as they are stored, as everyone takes them.
    """
    stored = open_picture(content, name)
    with naming(name, "is not a readable picture"):  # Pillow raises whatever the bytes lead it to
        picture = (ImageOps.exif_transpose(stored) if upright else stored).convert("L" if channels == 1 else "RGB")
        if invert:
            picture = ImageChops.invert(picture)
        return to_array(picture, channels) if size is None else to_small_array(picture, size, channels, resize)


def open_picture(content: bytes, name: str) -> Image.Image:
    """Return a picture whose pixels are not read yet, or refuse it: its format, its number of pixels, their bits."""
    check_picture(name, len(content))
    with naming(name, "is not a readable picture"):
        try:
            stored: Image.Image = Image.open(io.BytesIO(content), formats=_FORMATS)
        except UnidentifiedImageError:  # whose own words name an object in memory
            raise ValueError("it is of no format that is known here") from None
        check_limit("pixels", stored.width * stored.height, "it has too many pixels")
    if Image.getmodetype(stored.mode) != "L" or stored.mode.startswith("I;"):
        raise ValueError(f"{name} has pixels of {stored.mode!r}, beyond 8 bits, which would be cut off; save it with 8")
    return stored


def is_picture(name: str) -> bool:
    """Say whether a name is that of a picture (and not of a hidden file, as macOS leaves in archives)."""
    path = PurePosixPath(name)
    return path.suffix.lower() in SUFFIXES and not any(part.startswith((".", "__MACOSX")) for part in path.parts)


def by_folder(pictures: Iterable[str], depth: int = 1) -> tuple[Labels | None, tuple[str, ...] | None]:
    """Return (labels, classes) by the last `depth` folders of each name; (None, None) where they have none."""
    folders = ["/".join(PurePosixPath(name).parts[-1 - depth : -1]) for name in pictures]
    if not all(folders):
        return None, None
    classes = tuple(sorted(set(folders)))
    number = {folder: index for index, folder in enumerate(classes)}
    return np.array([number[folder] for folder in folders], np.int64), classes


def names_digest(pictures: Iterable[str]) -> str:
    """Return the SHA-256 of file names (without folders) in their order: what a rule chose, whatever the pixels."""
    return hashlib.sha256("".join(f"{PurePosixPath(name).name}\n" for name in pictures).encode()).hexdigest()
