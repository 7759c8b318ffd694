"""Sets of picture files: a folder, a zip or a tar of them is read alike, without unpacking.

A published set is a rule: which files, in which order, with which labels. There are rules for Omniglot's evaluation
alphabets, the validation set of Tiny ImageNet, the first 10,000 pictures of the test set of Places365, LSUN's test set,
and any folder of pictures. A rule lists the names, says which it wants in what order, and gets the pictures cropped,
resized and stacked. Nothing is written, so a hostile name in an archive leads nowhere; links and devices in a tar are
not followed.

Pictures of one's own have a folder for each class, in parts to train on and to judge on (`by_part`). One that cannot
be read is named and left out where that is asked for.
"""

import dataclasses
import hashlib
import importlib.util
import io
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import get_args

import numpy as np
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from greedy_ensembles.checks import check_choice, check_count, check_limit, limit, naming
from greedy_ensembles.data.archives import check_picture, contents, file_names
from greedy_ensembles.data.image_set import Bytes, Labels, Resize, check_channels, to_array, to_small_array

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

#: Folders that are parts of a set where they lie beside those of classes, and what each part is called.
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}

#: Images, labels, classes and a note.
Read = tuple[Bytes, Labels | None, tuple[str, ...] | None, str]


@dataclasses.dataclass(frozen=True)
class Look:
    """What pictures are made into."""

    size: int | None = None  #: height and width to which they are resized; None: as they are
    channels: int = 3  #: 1 (grey) or 3 (colour)
    resize: Resize = "crop"  #: or "whole" (`image_set.Resize`)
    invert: bool = False  #: whether black and white are swapped, before resizing
    upright: bool = False  #: whether they are turned as the camera was held; published sets are not

    def __post_init__(self) -> None:
        check_choice("resize", self.resize, get_args(Resize))
        check_channels(self.channels)
        if self.size is not None:
            check_count("size", self.size, 1)


def read_folder(path: Path, look: Look, depth: int = 1) -> Read:
    """Return every picture in a folder or archive, sorted by name; its label is the last `depth` folders it lies in."""
    images, chosen = stack(path, picture_names(path), look)
    return images, *by_folder(chosen, depth), ""


def read_tiny_imagenet(path: Path, look: Look) -> Read:
    """Return the validation set in the order of its annotations, labelled by its WordNet identifiers, sorted."""
    every = file_names(path)
    tables = [name for name in every if PurePosixPath(name).name == "val_annotations.txt"]
    if len(tables) != 1:
        raise ValueError(f"{path} holds {len(tables)} files val_annotations.txt, expected one")
    table = tables[0]
    folder = PurePosixPath(table).parent / "images"
    rows = [line.split("\t")[:2] for line in read_text(path, table).splitlines() if line.strip()]
    if not all(len(row) == 2 for row in rows):
        raise ValueError(f"{table} of {path} is damaged: a line has no tab")
    chosen = [str(folder / name) for name, _ in rows]
    missing = sorted(set(chosen) - set(every))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of {len(chosen)} annotated pictures, {missing[0]} among them")
    classes = tuple(sorted({identifier for _, identifier in rows}))
    labels = as_numbers((identifier for _, identifier in rows), classes)
    return stack(path, chosen, look)[0], labels, classes, _subset_note(chosen, TINY_IMAGENET_NAMES)


def read_places(path: Path, look: Look) -> Read:
    """Return the first pictures in alphabetical order; the published test set has no labels."""
    chosen = sorted(picture_names(path), key=lambda name: PurePosixPath(name).name)[:PLACES_COUNT]
    return stack(path, chosen, look)[0], None, None, _subset_note(chosen, PLACES_NAMES)


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


def read_lsun(path: Path, look: Look) -> Read:
    """Return the pictures of LSUN's test set, an LMDB folder of encoded pictures, in the order of their keys."""
    if importlib.util.find_spec("lmdb") is None:  # an extra: nothing else here needs it
        raise ValueError("LSUN is an LMDB database: pip install 'greedy-ensembles[lsun]' to read it")
    if not (path / "data.mdb").exists():
        raise ValueError(f"{path} is not an LMDB folder: it has no data.mdb")
    pictures = _lmdb_items(path)
    if not pictures:
        raise no_pictures(path)
    decoded = (decode(content, str(path / key.decode("latin1")), look) for key, content in pictures)
    return fill(enumerate(decoded), len(pictures), path)[0], None, None, ""


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


def picture_names(path: Path) -> list[str]:
    """Return the names of the pictures in a folder or archive, sorted; there must be some."""
    names = sorted(name for name in file_names(path) if is_picture(name))
    if not names:
        raise no_pictures(path)
    return names


def read_text(path: Path, name: str) -> str:
    """Return the text of one file of a folder or archive."""
    for _, content in contents(path, [name]):
        with naming(path, f"is damaged at {name}"):
            return content.decode("utf-8")
    raise ValueError(f"{path} holds no {name}")


def stack(
    path: Path, wanted: Sequence[str], look: Look, unreadable: list[str] | None = None
) -> tuple[Bytes, list[str]]:
    """Return pictures of a folder or archive, in that order, as one array, and the names of those that could be read.

    `unreadable` gets why others could not; None: the first of them is an error.
    """
    position = {name: index for index, name in enumerate(wanted)}

    def pictures() -> Iterator[tuple[int, Bytes]]:
        for name, content in contents(path, wanted, unreadable):
            try:
                picture = decode(content, str(path / name), look)
            except ValueError as error:
                if unreadable is None:
                    raise
                unreadable.append(str(error))
            else:
                yield position[name], picture

    images, kept = fill(pictures(), len(wanted), path)
    if len(kept) == len(wanted):
        return images, list(wanted)
    if unreadable is None:
        raise ValueError(f"{path} holds {len(kept)} of {len(wanted)} pictures that were looked for")
    if not kept:
        raise ValueError(f"none of the {len(wanted):,} pictures of {path} can be read: {', '.join(unreadable[-1:])}")
    return images[kept], [wanted[index] for index in kept]


def fill(pictures: Iterable[tuple[int, Bytes]], count: int, source: Path) -> tuple[Bytes, list[int]]:
    """Return one array of numbered pictures, which must be of one shape, and the numbers that there are."""
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


def decode(content: bytes, name: str, look: Look) -> Bytes:
    """Return one picture file as (channels, height, width)."""
    stored = open_picture(content, name)
    with naming(name, "is not a readable picture"):  # Pillow raises whatever the bytes lead it to
        picture = ImageOps.exif_transpose(stored) if look.upright else stored
        picture = picture.convert("L" if look.channels == 1 else "RGB")
        if look.invert:
            picture = ImageChops.invert(picture)
        if look.size is None:
            return to_array(picture, look.channels)
        return to_small_array(picture, look.size, look.channels, look.resize)


def open_picture(content: bytes, name: str) -> Image.Image:
    """Return a picture whose pixels are not read yet, or refuse it: its format, its number of pixels, their bits."""
    check_picture(name, len(content))
    most = limit("pixels")
    if Image.MAX_IMAGE_PIXELS is not None and most > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = most  # Pillow's own limit, which it holds above twice that, would be the lower one
    with naming(name, "is not a readable picture"):
        try:
            stored: Image.Image = Image.open(io.BytesIO(content), formats=_FORMATS)
        except UnidentifiedImageError:  # whose own words name an object in memory
            raise ValueError("it is of no format that is known here") from None
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise ValueError(f"it has more than the {most:,} pixels of ge.limits(pixels={most})") from None
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
    return as_numbers(folders, classes), classes


def as_numbers(words: Iterable[str], classes: Sequence[str]) -> Labels:
    """Return the number of each word among the classes."""
    number = {name: index for index, name in enumerate(classes)}
    return np.array([number[word] for word in words], np.int64)


def by_part(path: Path) -> dict[str, dict[str, str]]:
    """Return the pictures of a folder or archive, by part (train, and val and test), with the class of each.

    Parts are the folders of these names, with the classes' folders in them; what lies in none of them is to be
    trained on. A picture's class is the first folder that it lies in, however deep. All parts have the same classes.
    """
    parts: dict[str, dict[str, str]] = {}
    chosen = picture_names(path)
    common = _common_folders(chosen)
    for name in chosen:
        folders = PurePosixPath(name).parts[common:-1]
        part = PARTS.get(folders[0].lower(), "") if folders else ""
        folders = folders[1:] if part else folders
        if not folders:
            raise ValueError(
                f"{path / name} lies in no folder of a class; training needs a folder for each class, such as "
                f"{path / part / 'CLASS' / PurePosixPath(name).name}"
            )
        parts.setdefault(part, {})[name] = folders[0]
    if "" in parts and "train" in parts:
        loose = next(iter(parts[""].values()))
        raise ValueError(f"{path} has a folder train, and {loose} beside it; move all that is to be trained on into it")
    parts = {part or "train": own for part, own in parts.items()}
    if "train" not in parts:
        raise ValueError(f"{path} has nothing to train on, but {' and '.join(sorted(parts))} alone")
    classes = sorted(set(parts["train"].values()))
    for name, label in (pair for own in parts.values() for pair in own.items()):
        if label not in classes:
            raise ValueError(
                f"{path / name} is of class {label!r}, of which there is nothing to train on; the classes are "
                f"{', '.join(classes)}"
            )
    return {part: parts[part] for part in dict.fromkeys(PARTS.values()) if part in parts}


def _common_folders(names: Sequence[str]) -> int:
    """Return how many folders all pictures share that are none of a class, as the one that an archive begins with."""
    count, folders = 0, [PurePosixPath(name).parts[:-1] for name in names]
    while len({own[: count + 1] for own in folders}) == 1 and min(map(len, folders)) > count + 1:
        if folders[0][count].lower() in PARTS:
            break
        count += 1
    return count


def left_out(wanted: Sequence[str], kept: Sequence[str]) -> str:
    """Return the note on pictures that could not be read, with the names of the first, if there are any."""
    lost = sorted(set(wanted) - set(kept))
    named = ", ".join(ascii(name)[1:-1] for name in lost[:3]) + (", ..." if len(lost) > 3 else "")
    return f"{len(lost):,} of {len(wanted):,} pictures could not be read ({named})" if lost else ""


def names_digest(pictures: Iterable[str]) -> str:
    """Return the SHA-256 of file names (without folders) in their order: what a rule chose, whatever the pixels."""
    return hashlib.sha256("".join(f"{PurePosixPath(name).name}\n" for name in pictures).encode()).hexdigest()
