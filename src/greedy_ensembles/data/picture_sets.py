"""Sets of picture files: a folder, a zip or a tar of them is read alike, without unpacking.

Nothing is written, so a hostile name in an archive leads nowhere; links and devices in a tar are not followed.
"""

import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageOps, UnidentifiedImageError

from greedy_ensembles.checks import as_path, check_choice, check_count, check_kind, check_limit, limit, naming
from greedy_ensembles.data.archives import check_picture, contents, file_names
from greedy_ensembles.data.download import StrPath
from greedy_ensembles.data.formats import read_arrays
from greedy_ensembles.data.image_set import (
    Bytes,
    ImageSet,
    Labels,
    Resize,
    as_numbers,
    check_channels,
    shaped,
    to_array,
)

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"))
#: What Pillow may take a file for. It knows more, and hands PostScript to another program.
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
#: How many times its bytes a photograph takes when it is decoded, at most.
_PHOTOGRAPHS = 32

#: Folders that are parts of a set where they lie beside those of classes, and what each part is called.
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}

#: Images, labels, classes and a note.
Read = tuple[Bytes, npt.NDArray[Any] | None, tuple[str, ...] | None, str]


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


def read(
    path: StrPath,
    size: int | None = None,
    channels: int | None = None,
    resize: Resize = "crop",
    *,
    unreadable: list[str] | None = None,
) -> ImageSet:
    """Return the images of any folder, zip or tar of pictures, or of any .npy or .npz of uint8 images.

    A picture's label is the folder that it lies in, if all lie in one. Pictures are turned upright as the camera says.

    Args:
        path: the folder or file.
        size: height and width to which images are resized; pictures of several sizes need it.
        channels: 1 (grey) or 3 (colour); None: those of an array, and 3 for pictures.
        resize: "crop" or "whole", as `load` has it.
        unreadable: a list that gets why pictures could not be read, which are then left out; None: the first of them
            is an error.
    """
    look = Look(size, 3 if channels is None else channels, resize, upright=True)
    path = _own_path(path, unreadable)
    if path.suffix.lower() in (".npy", ".npz"):
        images, labels = read_arrays(path)
        return shaped(ImageSet(images, labels, path.stem, None, str(path)), size, channels, resize)
    images, labels, classes, note = read_folder(path, look, unreadable=unreadable)
    return ImageSet(images, labels, path.stem, classes, str(path), note)


def read_parts(
    path: StrPath,
    size: int | None = None,
    channels: int = 3,
    resize: Resize = "crop",
    *,
    unreadable: list[str] | None = None,
) -> dict[str, ImageSet]:
    """Return the parts of a folder or archive with a folder for each class: train, and val and test where they are.

    These are the folders of that name, each with the classes' folders in it; what lies in none of them is train. All
    parts have the same classes, in the same order.

    Args:
        path: the folder, zip or tar.
        size: height and width to which pictures are resized; those of several sizes need it.
        channels: 1 (grey) or 3 (colour).
        resize: "crop" or "whole", as `load` has it.
        unreadable: as `read` has it.
    """
    look, path = Look(size, channels, resize, upright=True), _own_path(path, unreadable)
    parts = by_part(path)
    classes = tuple(sorted(set(parts["train"].values())))
    sets = {}
    for part, labelled in parts.items():
        images, kept = stack(path, list(labelled), look, unreadable)
        labels = as_numbers((labelled[name] for name in kept), classes)
        name, note = path.stem if part == "train" else f"{path.stem}, {part}", left_out(list(labelled), kept)
        sets[part] = ImageSet(images, labels, name, classes, str(path), note)
    return sets


def _own_path(path: StrPath, unreadable: list[str] | None) -> Path:
    path = as_path("path", path)
    check_kind("unreadable", [] if unreadable is None else unreadable, list, "a list")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist")
    return path


def read_folder(path: Path, look: Look, depth: int = 1, unreadable: list[str] | None = None) -> Read:
    """Return every picture in a folder or archive, sorted by name; its label is the last `depth` folders it lies in."""
    names = picture_names(path)
    images, kept = stack(path, names, look, unreadable)
    together = sorted({part for name in names for part in PurePosixPath(name).parts[:-1]} & PARTS.keys())
    notes = [left_out(names, kept), f"{' and '.join(together)} together" if len(together) > 1 else ""]
    return images, *by_folder(kept, depth), "; ".join(filter(None, notes))


def picture_names(path: Path) -> list[str]:
    """Return the names of the pictures in a folder or archive, sorted; there must be some."""
    names = sorted(name for name in file_names(path) if is_picture(name))
    if not names:
        raise ValueError(f"{path} holds no pictures ({', '.join(sorted(SUFFIXES))})")
    return names


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
            files = [source] if source.is_file() else [source / name for name in file_names(source)]
            check_room(source, count * picture.nbytes, sum(file.stat().st_size for file in files if file.exists()))
            images = np.empty((count, *picture.shape), np.uint8)
        if picture.shape != images.shape[1:]:
            raise ValueError(f"{source} holds pictures of several sizes: give the size to which they are to be resized")
        images[index] = picture
        seen.add(index)
    return images, sorted(seen)


def check_room(source: Path, size: int, stored: int) -> None:
    """Refuse pictures that become too many bytes, more than photographs do that are stored in so many."""
    check_limit("expanded", size, f"{source}, decoded, becomes too many bytes", _PHOTOGRAPHS * stored)


def decode(content: bytes, name: str, look: Look) -> Bytes:
    """Return one picture file as (channels, height, width)."""
    stored = open_picture(content, name)
    with naming(name, "is not a readable picture"):  # Pillow raises whatever the bytes lead it to
        picture = ImageOps.exif_transpose(stored) if look.upright else stored
        if look.invert:
            picture = ImageChops.invert(picture.convert("L" if look.channels == 1 else "RGB"))
        return to_array(picture, look.channels, look.size, look.resize)


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
                f"{path / name} lies in no folder of a class; labels are the names of folders, such as "
                f"{path / part / 'CLASS' / PurePosixPath(name).name}"
            )
        parts.setdefault(part, {})[name] = folders[0]
    if loose := parts.pop("", {}):
        if "train" in parts:
            beside = next(iter(loose.values()))
            raise ValueError(f"{path} has a folder train, and {beside} beside it; move all to be trained on into it")
        parts["train"] = loose
    if "train" not in parts:
        raise ValueError(f"{path} has nothing to train on, but {' and '.join(sorted(parts))} alone")
    classes = sorted(set(parts["train"].values()))
    if strange := next((pair for own in parts.values() for pair in own.items() if pair[1] not in classes), None):
        raise ValueError(
            f"{path / strange[0]} is of class {strange[1]!r}, of which there is nothing to train on; the classes are "
            f"{', '.join(classes)}"
        )
    return {part: parts[part] for part in dict.fromkeys(PARTS.values()) if part in parts}


def _common_folders(names: Sequence[str]) -> int:
    """Return how many folders all pictures share that are none of a class, as the one that an archive begins with."""
    levels = zip(*(PurePosixPath(name).parts[:-2] for name in names), strict=False)  # down to the last folder but one
    return sum(1 for _ in takewhile(lambda level: len(set(level)) == 1 and level[0].lower() not in PARTS, levels))


def left_out(wanted: Sequence[str], kept: Sequence[str]) -> str:
    """Return the note on pictures that could not be read, with the names of the first, if there are any."""
    lost = sorted(set(wanted) - set(kept))
    named = ", ".join(ascii(name)[1:-1] for name in lost[:3]) + (", ..." if len(lost) > 3 else "")
    return f"{len(lost):,} of {len(wanted):,} pictures could not be read ({named})" if lost else ""
