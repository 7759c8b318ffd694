"""The published sets of picture files, each a rule: which files, in which order, with which labels.

Omniglot's evaluation alphabets, the Describable Textures (DTD), the validation set of Tiny ImageNet, the first 10,000
pictures of the test set of Places365, and any folder of pictures. All take a folder or the published archive.
"""

from pathlib import Path, PurePosixPath

import numpy as np

from greedy_ensembles.data import pictures
from greedy_ensembles.data.image_set import Bytes

#: How many pictures of Places365's test set the paper takes, in alphabetical order.
PLACES_COUNT = 10_000
#: SHA-256 of the file names that the rules choose from the complete sets; `pictures.digest` says of what exactly.
PLACES_NAMES = "a6f7ed2280adbb15ceaeb416904f229f96b139aac11314e0a085c1713cd07a97"
TINY_IMAGENET_NAMES = "3a170e2deff29b261ff74e499f729af3bcffe23712a0e4474e603cc9945074b5"

Read = tuple[Bytes, list[int] | None, tuple[str, ...] | None, str]


def read_folder(path: Path, size: int | None, channels: int = 3) -> Read:
    """Return (images, labels, classes, note) of every picture in a folder or archive, sorted by name.

    Pictures in folders are labelled by the folder they lie in; where some lie in none, there are no labels.
    """
    chosen = _sorted_pictures(path)
    labels, classes = pictures.by_folder(chosen)
    return pictures.stack(path, chosen, size, channels), labels, classes, ""


def read_omniglot(path: Path, size: int | None) -> Read:
    """Return the characters as white strokes on black, labelled alphabet/character."""
    chosen = _sorted_pictures(path)
    labels, classes = pictures.by_folder(chosen, depth=2)
    return pictures.stack(path, chosen, size, 1, invert=True), labels, classes, ""


def read_dtd(path: Path, size: int | None) -> Read:
    """Return the textures, labelled by their words; all of them, whatever the split they are used in."""
    chosen = _sorted_pictures(path)
    labels, classes = pictures.by_folder(chosen)
    return pictures.stack(path, chosen, size, 3), labels, classes, ""


def read_tiny_imagenet(path: Path, size: int | None) -> Read:
    """Return the validation set in the order of its annotations, labelled by its WordNet identifiers, sorted."""
    every = pictures.names(path)
    table = _only(path, [name for name in every if PurePosixPath(name).name == "val_annotations.txt"])
    folder = PurePosixPath(table).parent / "images"
    rows = [line.split("\t")[:2] for line in pictures.read_text(path, table).splitlines() if line.strip()]
    if not all(len(row) == 2 for row in rows):
        raise ValueError(f"{table} of {path} is damaged: a line has no tab")
    chosen = [str(folder / name) for name, _ in rows]
    missing = sorted(set(chosen) - set(every))
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} of {len(chosen)} annotated pictures, {missing[0]} among them")
    classes = tuple(sorted({identifier for _, identifier in rows}))
    number = {identifier: index for index, identifier in enumerate(classes)}
    labels = [number[identifier] for _, identifier in rows]
    return pictures.stack(path, chosen, size, 3), labels, classes, subset_note(chosen, TINY_IMAGENET_NAMES)


def read_places(path: Path, size: int | None) -> Read:
    """Return the first pictures in alphabetical order; the published test set has no labels."""
    chosen = sorted(_sorted_pictures(path), key=lambda name: PurePosixPath(name).name)[:PLACES_COUNT]
    return pictures.stack(path, chosen, size, 3), None, None, subset_note(chosen, PLACES_NAMES)


def read_lsun(path: Path, size: int | None) -> Read:
    """Return the pictures of LSUN's test set, an LMDB folder of encoded pictures, in the order of their keys."""
    try:
        import lmdb  # an extra: nothing else here needs it
    except ImportError:
        raise ValueError("LSUN is an LMDB database: pip install 'greedy-ensembles[lsun]' to read it") from None
    if not (path / "data.mdb").exists():
        raise ValueError(f"{path} is not an LMDB folder: it has no data.mdb")
    try:
        with (
            lmdb.open(str(path), readonly=True, lock=False, readahead=False, max_readers=1) as database,
            database.begin() as transaction,
        ):
            count = transaction.stat()["entries"]
            numbered = (
                (index, pictures.decode(content, key.decode("latin1"), size, 3))
                for index, (key, content) in enumerate(transaction.cursor())
            )
            return pictures.assemble(numbered, count, path), None, None, ""
    except lmdb.Error as error:
        raise ValueError(f"{path} is not a readable LMDB database: {error}") from error


def subset_note(chosen: list[str], recorded: str) -> str:
    """Return a note unless the chosen files are those that the rule chooses from the complete set."""
    return "" if pictures.digest(chosen) == recorded else "not the recorded choice of files"


def as_labels(labels: list[int] | None) -> np.ndarray | None:
    """Return labels as an array."""
    return None if labels is None else np.array(labels, np.int64)


def _sorted_pictures(path: Path) -> list[str]:
    return sorted(name for name in pictures.names(path) if pictures.is_picture(name))


def _only(path: Path, candidates: list[str]) -> str:
    if len(candidates) != 1:
        raise ValueError(f"{path} holds {len(candidates)} files val_annotations.txt, expected one")
    return candidates[0]
