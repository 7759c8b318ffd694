"""Pictures of one's own: a folder for each class, parts to train on and to judge on, and files that cannot be read.

Published sets are taken as they are stored; these are turned upright as the camera says that it was held, in training
as in prediction, and one that cannot be read is named and left out where that is asked for.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from greedy_ensembles.data.archives import contents
from greedy_ensembles.data.image_set import Bytes, Resize
from greedy_ensembles.data.picture_sets import Read, decode, fill, no_pictures, picture_names

#: Folders that are parts of a set where they lie beside those of classes, and what each part is called.
PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def read_parts(
    path: Path, size: int | None, resize: Resize = "crop", channels: int = 3, unreadable: list[str] | None = None
) -> dict[str, Read]:
    """Return the pictures of a folder or archive with a folder for each class, by part: train, and val and test.

    Parts are the folders of these names, with the classes' folders in them; what lies in none of them is to be
    trained on. A picture's class is the first folder that it lies in, however deep. All parts have the same classes.

    Args:
        path: the folder or archive.
        size: height and width to which pictures are resized; None: as they are.
        resize: "crop", or "whole" (`image_set.Resize`).
        channels: 1 (grey) or 3 (colour).
        unreadable: gets why pictures could not be read, which are then left out; None: the first of them is an error.
    """
    parts: dict[str, dict[str, str]] = {}  # by part: from the name of a file to its class
    chosen = picture_names(path)
    if not chosen:
        raise no_pictures(path)
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
    classes = tuple(sorted(set(parts["train"].values())))
    return {
        part: _read_part(path, own, classes, size, resize, channels, unreadable)
        for part, own in sorted(parts.items(), key=lambda item: list(PARTS).index(item[0]))
    }


def _common_folders(names: Sequence[str]) -> int:
    """Return how many folders all pictures share that are none of a class, as the one that an archive begins with."""
    count, folders = 0, [PurePosixPath(name).parts[:-1] for name in names]
    while len({own[: count + 1] for own in folders}) == 1 and min(map(len, folders)) > count + 1:
        if folders[0][count].lower() in PARTS:
            break
        count += 1
    return count


def _read_part(
    path: Path,
    labelled: dict[str, str],
    classes: tuple[str, ...],
    size: int | None,
    resize: Resize,
    channels: int,
    unreadable: list[str] | None,
) -> Read:
    other = next((name for name, label in labelled.items() if label not in classes), None)
    if other is not None:
        raise ValueError(
            f"{path / other} is of class {labelled[other]!r}, of which there is nothing to train on; the classes are "
            f"{', '.join(classes)}"
        )
    lost: list[str] | None = None if unreadable is None else []
    images, kept = stack_readable(path, list(labelled), size, channels, resize, lost)
    number = {name: index for index, name in enumerate(classes)}
    labels = np.array([number[labelled[name]] for name in kept], np.int64)
    if unreadable is not None:
        unreadable += lost or []
    return images, labels, classes, left_out(lost or [], len(labelled))


def left_out(unreadable: Sequence[str], count: int) -> str:
    """Return the note on pictures that could not be read, if there are any."""
    return f"{len(unreadable):,} of {count:,} pictures could not be read" if unreadable else ""


def stack_readable(
    path: Path,
    wanted: Sequence[str],
    size: int | None,
    channels: int,
    resize: Resize = "crop",
    unreadable: list[str] | None = None,
) -> tuple[Bytes, list[str]]:
    """Return pictures of one's own, turned upright, and the names of those that could be read.

    Args:
        path: the folder or archive.
        wanted: names of the pictures.
        size: height and width to which they are resized; None: as they are.
        channels: 1 (grey) or 3 (colour).
        resize: "crop", or "whole" (`image_set.Resize`).
        unreadable: gets why pictures could not be read, which are then left out; None: the first of them is an error.
    """
    position = {name: index for index, name in enumerate(wanted)}

    def pictures() -> Iterator[tuple[int, Bytes]]:
        for name, content in contents(path, wanted, unreadable):
            try:
                picture = decode(content, str(path / name), size, channels, upright=True, resize=resize)
            except ValueError as error:
                if unreadable is None:
                    raise
                unreadable.append(str(error))
            else:
                yield position[name], picture

    images, kept = fill(pictures(), len(wanted), path)
    if not kept:
        why = f": {unreadable[0]}" if unreadable else ""
        raise ValueError(f"none of the {len(wanted):,} pictures of {path} can be read{why}")
    return images if len(kept) == len(wanted) else images[kept], [wanted[index] for index in kept]
